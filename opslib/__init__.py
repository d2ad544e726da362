"""An operations notebook kit for large language models served by vLLM under systemd."""

__version__ = "0.1.0"
