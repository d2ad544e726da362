"""Are the small files there and readable, and did a broken download leave anything behind?"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from opslib.domain.checkpoint_listing import Listing, Problem

_TOKENIZERS = (
    "tokenizer.json",
    "tokenizer.model",
    "tekken.json",
    "vocab.json",
    "vocab.txt",
    "tiktoken.model",
    "qwen.tiktoken",
    "spiece.model",
    "spm.model",
    "sentencepiece.bpe.model",
)
_LEFTOVERS = (".incomplete", ".aria2", ".lock", ".part", ".crdownload")
_TEMPORARY = "._____temp/"  # ModelScope's unfinished downloads
_NEEDED = (".safetensors", ".bin", ".gguf", ".json", ".model", ".py")
_TEXTS = ("vocab_size", "text_config", "llm_config", "language_config")
_SENSES = ("vision_config", "audio_config")
_PROCESSORS = ("preprocessor_config.json", "processor_config.json")
_METADATA_S = 1.0  # how much newer a file may be than its metadata (huggingface_hub, _local_folder.py)


def file_problems(listing: Listing) -> Iterator[Problem]:
    """Everything about files that are no sound weights."""
    yield from _companion_problems(listing)
    for entry in listing.files:
        problem = _problem_of(entry)
        if problem:
            yield problem
    yield from _download_problems(listing)
    yield from _expected_problems(listing)


def _companion_problems(listing: Listing) -> Iterator[Problem]:
    names = listing.names
    for name, answer in listing.companions.items():
        if answer.get("problem"):
            yield Problem(
                "not-json", name, f"not valid JSON: {answer['problem']}", "JSON", str(answer["problem"])[:100]
            )
    is_gguf = any(name.endswith(".gguf") for name in names)
    if "adapter_config.json" in names or is_gguf:  # loaded beside its base model; or it holds all that itself
        return
    if not names & {"config.json", "params.json"}:
        yield _missing("config.json", "the model's config is missing")
    config = _content(listing, "config.json")
    is_picture_model = "preprocessor_config.json" in names and config and not any(key in config for key in _TEXTS)
    if not names & set(_TOKENIZERS) and not any(n.startswith("tokenizer.model.") for n in names):
        if not is_picture_model:
            yield _missing("tokenizer.json", "no tokenizer file (tokenizer.json or another)")
    elif "vocab.json" in names and not names & {*_TOKENIZERS, "merges.txt"} - {"vocab.json"}:
        yield _missing("merges.txt", "vocab.json is there without its merges.txt")
    if any(key in config for key in _SENSES) and not names & {*_PROCESSORS, "params.json"}:
        yield _missing("preprocessor_config.json", "the model sees or hears, but there is no processor file")
    for module in sorted(_custom_code(listing) - names):
        yield Problem("custom-code-missing", module, f"{module} is missing; auto_map names it", "a file", "nothing")


def _missing(file: str, detail: str) -> Problem:
    return Problem("companion-missing", file, detail, "a file", "nothing")


def _content(listing: Listing, name: str) -> Mapping[str, Any]:
    content = listing.companions.get(name, {}).get("content")
    return content if isinstance(content, Mapping) else {}


def _custom_code(listing: Listing) -> set[str]:
    """The modules of this directory that `auto_map` names ("modeling_x.Class"; "--" means another repository)."""
    modules = set()
    for name in listing.companions:
        auto_map = _content(listing, name).get("auto_map")
        entries = auto_map.values() if isinstance(auto_map, Mapping) else [auto_map] if auto_map else []
        for entry in entries:
            for word in entry if isinstance(entry, list | tuple) else [entry]:
                if isinstance(word, str) and "." in word and "--" not in word:
                    modules.add(word.rsplit(".", 1)[0].replace(".", "/") + ".py")
    return modules


def _problem_of(entry: Mapping[str, Any]) -> Problem | None:
    path, size = str(entry["path"]), int(entry["size"])
    is_cached = path.startswith(".cache")
    is_own_lock = is_cached and path.endswith(".lock")  # hf download leaves its empty lock files behind
    if (path.endswith(_LEFTOVERS) or path.startswith(_TEMPORARY)) and not is_own_lock:
        return Problem("leftover", path, f"an unfinished download left {size} bytes", "nothing", f"{size} bytes")
    if is_cached:
        return None
    if entry.get("is_dangling"):
        return Problem("dangling-symlink", path, "a symlink to a file that is not there", "a file", "nothing")
    if not entry["is_readable"]:
        if entry.get("is_regular") is False:
            return Problem("unreadable", path, "is no regular file (a pipe, a socket or a device)", "a file", "none")
        return Problem("unreadable", path, "may not be read", "read access", "none")
    return _impostor(path, size, entry.get("suspicion"))


def _impostor(path: str, size: int, suspicion: Mapping[str, Any] | None) -> Problem | None:
    """Something else in a file's place, or nothing."""
    if suspicion:
        detail = f"{size} bytes that are not the file"
        digest = suspicion.get("digest")
        expected = f"SHA-256 {digest}, {suspicion.get('size')} bytes" if digest else None
        return Problem(suspicion["kind"], path, detail, expected, f"{size} bytes")
    if size == 0 and path.endswith(_NEEDED) and not path.endswith("__init__.py"):
        return Problem("zero-bytes", path, "the file is empty", "content", "0 bytes")
    return None


def _download_problems(listing: Listing) -> Iterator[Problem]:
    """What the notes of `hf download` say against the files."""
    commits = Counter(note["commit"] for note in listing.download)
    usual = commits.most_common(1)[0][0] if commits else None
    wanted = listing.expect_commit
    times = {entry["path"]: entry.get("mtime") for entry in listing.files}
    for note in listing.download:
        path, commit = str(note["path"]), str(note["commit"])
        if path not in times:
            continue
        if wanted and commit != wanted:
            detail = f"downloaded at commit {commit[:12]}, {wanted[:12]} was asked for"
            yield Problem("wrong-revision", path, detail, wanted, commit)
        elif commit != usual:
            detail = f"downloaded at commit {commit[:12]}, most files at {str(usual)[:12]}"
            yield Problem("mixed-revisions", path, detail, usual, commit)
        noted_at, mtime = _seconds(note["noted_at"]), times[path]
        if noted_at is not None and mtime is not None and mtime - _METADATA_S > noted_at:
            detail = f"written {mtime - noted_at:.0f} s after its download was noted"
            yield Problem("newer-than-metadata", path, detail, f"{noted_at:.0f}", f"{mtime:.0f}")
    if wanted and listing.commit and listing.commit != wanted:
        detail = f"the snapshot is of commit {listing.commit[:12]}, {wanted[:12]} was asked for"
        yield Problem("wrong-revision", listing.path, detail, wanted, listing.commit)


def _expected_problems(listing: Listing) -> Iterator[Problem]:
    """The files against a listing that the operator brought: there at all, and of the right size."""
    sizes = {entry["path"]: int(entry["size"]) for entry in listing.files if entry["is_readable"]}
    for path, row in listing.expect.items():
        if path not in listing.names:
            if path.endswith(_NEEDED):  # a README or a picture may be left out on purpose
                yield Problem("missing-file", path, f"{path} is missing; the listing has it", "a file", "nothing")
        elif row.get("size") is not None and path in sizes and sizes[path] != row["size"]:
            detail = f"{sizes[path]} bytes, the listing says {row['size']}"
            yield Problem("size-mismatch", path, detail, f"{row['size']} bytes", f"{sizes[path]} bytes")


def _seconds(text: Any) -> float | None:
    try:
        return float(text)
    except (TypeError, ValueError):
        return None
