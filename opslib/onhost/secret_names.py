"""Whether a name says that its value is a secret; the words are data, given by whoever asks."""

import re
from typing import Any, Mapping


def says_secret(name: str, rule: Mapping[str, Any]) -> bool:
    """Whether a parameter, variable or flag of this name holds a secret; `rule` has words, endings and harmless names.

    >>> rule = {"words": ["key"], "endings": ["token"], "harmless": ["eos_token"]}
    >>> [says_secret(name, rule) for name in ("--api-key", "HF_TOKEN", "--eos-token", "--tokenizer")]
    [True, True, False, False]
    """
    plain = name.lower().lstrip("-").replace("-", "_")
    if plain in rule["harmless"]:
        return False
    return plain.endswith(tuple(rule["endings"])) or any(word in rule["words"] for word in re.split(r"[_.]", plain))
