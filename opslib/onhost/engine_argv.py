"""Reads an inference engine's command line: which engine it is, what it serves, and where it listens."""

import re
from typing import List, NamedTuple, Optional, Tuple


class EngineKind(NamedTuple):
    """How one engine says on its command line what the others say as well."""

    name: str
    word: str  # what its program or module is called
    model_flags: Tuple[str, ...]
    default_port: int
    package: str  # the Python package whose version counts, "" for a compiled program


# Sources: vLLM 0.15 `vllm serve --help`; SGLang 0.5 server_args.py; llama.cpp server README; TGI 3 launcher docs.
ENGINES = (
    EngineKind("vllm", "vllm", ("--model",), 8000, "vllm"),
    EngineKind("sglang", "sglang", ("--model-path", "--model"), 30000, "sglang"),
    EngineKind("llama-server", "llama-server", ("--model", "-m", "--hf-repo", "-hf"), 8080, ""),
    EngineKind("text-generation", "text-generation", ("--model-id",), 3000, ""),
)
_ANY_ADDRESS = ("0.0.0.0", "::", "", "localhost")  # noqa: S104 - compared with, never bound


class EngineArguments(NamedTuple):
    """What a command line says: engine, model ("" where unknown), port and address that it listens on."""

    kind: EngineKind
    model: str
    port: int
    address: str  # "" for any address


def engine_of(text: str) -> Optional[EngineKind]:
    """The engine that a command line mentions as a word of its own, None for any other program.

    >>> engine_of("pytest -m realvllm") is None, engine_of("python -m vllm.entrypoints.openai.api_server").name
    (True, 'vllm')
    """
    for kind in ENGINES:
        if re.search(r"(?<![A-Za-z0-9])%s(?![A-Za-z0-9])" % kind.word, text):
            return kind
    return None


def read_engine_arguments(argv: List[str]) -> Optional[EngineArguments]:
    """What an engine's command line says; None where it is no engine's.

    >>> read_engine_arguments(["/opt/vllm/bin/vllm", "serve", "/srv/m", "--port=8001"])[1:]
    ('/srv/m', 8001, '')
    """
    kind = engine_of(" ".join(argv))
    if kind is None:
        return None
    port = flag_value(argv, ("--port",))
    published = flag_value(argv, ("-p", "--publish")).split(":")[0]  # a container: host port before container port
    number = port if port.isdigit() else published if published.isdigit() else ""
    address = flag_value(argv, ("--host", "--hostname"))
    return EngineArguments(
        kind=kind,
        model=flag_value(argv, kind.model_flags) or _positional(argv, kind),
        port=int(number) if number else kind.default_port,
        address="" if address in _ANY_ADDRESS else address,
    )


def flag_value(argv: List[str], flags: Tuple[str, ...]) -> str:
    """The last value of any of these flags, given as two words or with an equals sign."""
    found = ""
    for at, word in enumerate(argv):
        flag, has_value, value = word.partition("=")
        if flag.replace("_", "-") in flags:
            found = value if has_value else (argv[at + 1] if at + 1 < len(argv) else "")
    return found


def _positional(argv: List[str], kind: EngineKind) -> str:
    """The model as vLLM takes it: the word after `serve`."""
    if kind.name == "vllm" and "serve" in argv[:-1]:
        word = argv[argv.index("serve") + 1]
        return "" if word.startswith("-") else word
    return ""
