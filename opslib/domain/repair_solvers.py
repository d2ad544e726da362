"""One function per cause: its computed way out, from the verdict's lines and the unit's text."""

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches

from opslib.domain import vllm_flags
from opslib.domain.diagnosis import Diagnosis
from opslib.domain.diagnosis_catalogue import Remedy
from opslib.domain.states import Value
from opslib.domain.unit_file import UnitFile, parse_unit_file

_START_LIMIT_S = 1800  # what a large checkpoint on a slow disk may need
_PATH = re.compile(r"(?:'|\"|: )(?P<path>/[^\s'\":]{1,400})")
_UNKNOWN_FLAG = re.compile(r"unrecognized arguments?: (?P<flag>--[\w-]+)(?P<value>(?: (?!--)\S+)*)")
_DERIVED = re.compile(
    r"max_position_embeddings=(?P<limit>\d+)|derived (?:max_model_len|context_length) \((?P<other>\d+)\)"
)
_HEADS = re.compile(r"(?:heads \((?P<n>\d+)\).{0,80}size \(|(?P<m>\d+) is not divisible by )(?P<size>\d+)")
_SHARD = re.compile(r"[\w./-]*?(?P<file>[\w.-]+\.safetensors)")


class RepairFacts(Value):
    """What is known besides the verdict: the unit, who listens, and the lines of the failed start that matter."""

    unit: str
    unit_text: str = ""  # the unit's own file
    unit_path: str = ""
    port: int | None = None
    free_port: int | None = None  # the next one above that nobody listens on
    holder: str = ""  # who listens on `port`, in words
    model_path: str = ""
    cache_path: str = ""  # the compile cache that the engine named


def _unit(facts: RepairFacts) -> UnitFile:
    return parse_unit_file(facts.unit_text)


def _first_path(diagnosis: Diagnosis) -> str:
    found = (match["path"] for line in diagnosis.evidence if (match := _PATH.search(line.text)))
    return next(found, "")


def _said(diagnosis: Diagnosis, pattern: re.Pattern[str]) -> re.Match[str] | None:
    return next((match for line in diagnosis.evidence if (match := pattern.search(line.text))), None)


def _other_port(diagnosis: Diagnosis, facts: RepairFacts) -> Remedy | None:
    del diagnosis
    if not facts.port or not facts.free_port:
        return None
    return Remedy(
        text=f"Let the engine listen on {facts.free_port}, which is free. {facts.holder}".rstrip(),
        flag="--port",
        value=str(facts.free_port),
        command=f"ss -ltnp sport = :{facts.port}",
        cost=f"clients have to ask port {facts.free_port} instead of {facts.port}",
        check=f"/health answers on port {facts.free_port}; what holds {facts.port} is not touched",
    )


def _longer_start(diagnosis: Diagnosis, facts: RepairFacts) -> Remedy | None:
    del diagnosis
    return Remedy(
        text="Give the start more time.",
        setting="TimeoutStartSec",
        value=str(_START_LIMIT_S),
        command=f"systemctl edit --full {facts.unit}",
        cost="a start that hangs is noticed later",
        check="the unit reaches active before the limit",
    )


def _make_directory(diagnosis: Diagnosis, facts: RepairFacts) -> Remedy | None:
    unit = _unit(facts)
    path = unit.value("Service", "WorkingDirectory") or _first_path(diagnosis)
    if not path.startswith("/"):
        return None
    owner = unit.value("Service", "User") or "root"
    return Remedy(
        text=f"Create the working directory {path}.",
        command=f"sudo install --directory --owner={owner} --mode=0755 {path}",
        cost="none",
        check=f"test -d {path}",
    )


def _make_user(diagnosis: Diagnosis, facts: RepairFacts) -> Remedy | None:
    del diagnosis
    user = _unit(facts).value("Service", "User")
    if not user:
        return None
    return Remedy(
        text=f"Make the account {user} that the unit's User= names.",
        command=f"sudo useradd --system --create-home --shell /usr/sbin/nologin {user}",
        cost="a new system account",
        check=f"id {user}",
    )


def _find_program(diagnosis: Diagnosis, facts: RepairFacts) -> Remedy | None:
    del diagnosis
    argv = _unit(facts).engine_argv
    if not argv:
        return None
    return Remedy(
        text=f"Mend the program that ExecStart= names: {argv[0]}.",
        command=f"ls -lL {argv[0]}; file -L {argv[0]}; command -v {argv[0].rsplit('/', 1)[-1]}",
        cost="none",
        check=f"test -x {argv[0]}",
    )


def _drop_or_rename_flag(diagnosis: Diagnosis, facts: RepairFacts) -> Remedy | None:
    found = _said(diagnosis, _UNKNOWN_FLAG)
    if found is None or found["flag"] not in facts.unit_text:
        return None
    flag = found["flag"]
    close = get_close_matches(flag, list(vllm_flags.flag_table()), n=1, cutoff=0.75)
    hint = f" The nearest one that this kit knows is {close[0]}." if close else ""
    return Remedy(
        text=f"The engine doesn't know {flag}: take it out.{hint}",
        flag=flag,
        value="-",
        cost="what the flag meant no longer holds",
        check="the start gets past reading its options",
    )


def _shorter_context(diagnosis: Diagnosis, facts: RepairFacts) -> Remedy | None:
    del facts
    found = _said(diagnosis, _DERIVED)
    if found is None:
        return None
    limit = found["limit"] or found["other"]
    return Remedy(
        text=f"The model knows {limit} positions: ask for no more.",
        flag="--max-model-len",
        value=limit,
        cost="shorter requests",
        check="the start gets past its configuration",
    )


def _smaller_parallel_size(diagnosis: Diagnosis, facts: RepairFacts) -> Remedy | None:
    del facts
    found = _said(diagnosis, _HEADS)
    if found is None:
        return None
    heads, size = int(found["n"] or found["m"]), int(found["size"])
    value = next((n for n in range(size - 1, 0, -1) if heads % n == 0), None)
    if value is None:
        return None
    return Remedy(
        text=f"{heads} divides by {value}, not by {size}.",
        flag="--tensor-parallel-size",
        value=str(value),
        cost=f"{size / value:.1f} times the weights on each GPU: plan the memory again",
        check="plan-memory says that it fits, and the start gets past its configuration",
    )


def _drop_quantization(diagnosis: Diagnosis, facts: RepairFacts) -> Remedy | None:
    del diagnosis
    if "--quantization" not in facts.unit_text:
        return None
    return Remedy(
        text="Leave the quantization to the checkpoint's own configuration.",
        flag="--quantization",
        value="-",
        cost="none",
        check="the start gets past its configuration",
    )


def _clear_cache(diagnosis: Diagnosis, facts: RepairFacts) -> Remedy | None:
    del diagnosis
    if not facts.cache_path:
        return None
    return Remedy(
        text=f"Put the compile cache {facts.cache_path} aside; the next start makes a new one.",
        command=f"sudo mv --no-target-directory {facts.cache_path} {facts.cache_path}.old",
        cost="the next start compiles again, some minutes",
        check="the launch passes the compile phase",
    )


def _fetch_file(diagnosis: Diagnosis, facts: RepairFacts) -> Remedy | None:
    found = _said(diagnosis, _SHARD)
    if found is None or not facts.model_path:
        return None
    return Remedy(
        text=f"Fetch {found['file']} again.",
        command=f"hf download REPOSITORY {found['file']} --local-dir {facts.model_path}",
        cost="one file is loaded anew",
        check=f"opslib run 10-verify-download -p model={facts.model_path}",
    )


def _give_path(diagnosis: Diagnosis, facts: RepairFacts) -> Remedy | None:
    path, user = _first_path(diagnosis), _unit(facts).value("Service", "User") or ""
    if not path or not user:
        return None
    return Remedy(
        text=f"Let {user} use {path}.",
        command=f"sudo setfacl --modify u:{user}:rwX {path}",
        cost=f"{user} may write there",
        check=f"sudo -u {user} test -r {path}",
    )


def _forget_limit(diagnosis: Diagnosis, facts: RepairFacts) -> Remedy | None:
    del diagnosis
    return Remedy(
        text="When the cause of the failed starts is mended, let systemd forget them.",
        command=f"sudo systemctl reset-failed {facts.unit} && sudo systemctl start {facts.unit}",
        cost="none",
        check=f"systemctl is-active {facts.unit}",
    )


def _raise_limit(diagnosis: Diagnosis, facts: RepairFacts) -> Remedy | None:
    del diagnosis
    limit = _unit(facts).value("Service", "MemoryMax")
    if not limit or limit == "infinity":
        return None
    return Remedy(
        text=f"The unit may use {limit} of main memory (MemoryMax=): lift that.",
        setting="MemoryMax",
        value="infinity",
        cost="the engine may crowd out others",
        check="no oom-kill in the kernel's log during the next start",
    )


SOLVERS: Mapping[str, Callable[[Diagnosis, RepairFacts], Remedy | None]] = {
    "configuration/port-in-use": _other_port,
    "configuration/bad-argument": _drop_or_rename_flag,
    "systemd/start-timeout": _longer_start,
    "systemd/chdir-failed": _make_directory,
    "systemd/user-failed": _make_user,
    "systemd/exec-failed": _find_program,
    "systemd/start-limit": _forget_limit,
    "host-memory/oom-killed": _raise_limit,
    "model/max-model-len-above-limit": _shorter_context,
    "model/parallel-size-not-divisible": _smaller_parallel_size,
    "model/quantization-mismatch": _drop_quantization,
    "gpu-code/compile-cache": _clear_cache,
    "checkpoint/missing-file": _fetch_file,
    "checkpoint/corrupt": _fetch_file,
    "environment/permission-denied": _give_path,
}
