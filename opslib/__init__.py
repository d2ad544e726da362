"""An operations notebook kit for large language models served by vLLM under systemd."""

import sys

# jsonschema, under nbformat, would compile a grammar of IRIs at each start (1.3 s); no notebook needs it.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]

__version__ = "0.1.0"
