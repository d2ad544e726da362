"""What lies in a model's directory, as far as it says which model it is and how it talks."""

import hashlib
import json
import os
from typing import Any, Dict, Optional

_INDEX = "model.safetensors.index.json"
_NOTES = os.path.join(".cache", "huggingface", "download")
_TEMPLATES = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")
_TYPES = ("dtype", "torch_dtype")


def describe_model(root: str) -> Dict[str, Any]:
    """Digest of the weights' identity, digests of config and chat template, vocabulary, dtype, quantization.

    A `root` that is no directory (a hub's name, an unreadable place) is described by its name alone.
    """
    if not os.path.isdir(root):
        return {"model_digest": _digest([root])} if root else {}
    config = _json(os.path.join(root, "config.json"))
    text = config.get("text_config") if isinstance(config.get("text_config"), dict) else {}
    quantization = config.get("quantization_config")
    return {
        "model_digest": _weights_digest(root),
        "config_digest": _file_digest(os.path.join(root, "config.json")),
        "generation_digest": _file_digest(os.path.join(root, "generation_config.json")),
        "template_digest": _template_digest(root),
        "vocab_size": config.get("vocab_size") or (text or {}).get("vocab_size"),
        "dtype": next((str(part[name]) for part in (config, text or {}) for name in _TYPES if part.get(name)), ""),
        "quantization": str(quantization.get("quant_method") or "") if isinstance(quantization, dict) else "",
    }


def _weights_digest(root: str) -> str:
    """Which weights these should be: index, names and sizes, and what the download's notes say of their content.

    Not the content itself: a damaged copy has the same identity, and so is compared with the sound one. Fine-tunes
    of one model have equal indexes; where no notes tell them apart, the directory's name does.
    """
    parts = [_file_digest(os.path.join(root, _INDEX))]
    notes = []
    try:
        names = sorted(name for name in os.listdir(root) if name.endswith((".safetensors", ".gguf", ".bin")))
        for name in names:
            parts += [name, str(os.path.getsize(os.path.join(root, name)))]
            notes.append(_etag(os.path.join(root, _NOTES, name + ".metadata")))
    except OSError:
        pass
    return _digest([*parts, *(notes if notes and all(notes) else [os.path.basename(root.rstrip("/"))])])


def _etag(path: str) -> str:
    """The second line of a note that `hf download` leaves: the file's content, as the hub names it."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read().split()
    except OSError:
        return ""
    return lines[1] if len(lines) > 1 else ""


def _template_digest(root: str) -> str:
    """Digest of the chat template, wherever this model keeps it; "" where it has none."""
    for name in _TEMPLATES:
        path = os.path.join(root, name)
        if name.endswith(".jinja"):
            found: Optional[str] = _file_digest(path)
        else:
            template = _json(path).get("chat_template")
            found = _digest([json.dumps(template, sort_keys=True)]) if template else ""
        if found:
            return found
    return ""


def _json(path: str) -> Dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _file_digest(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return ""


def _digest(parts: Any) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()
