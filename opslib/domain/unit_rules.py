"""What each rule on an engine's unit looks for: a function that quotes what it found, never a secret.

Sources: systemd.service(5), systemd.exec(5), systemd.unit(5), systemd.kill(5) of systemd 252; vLLM 0.32, whose API
server ends with status 0 when its engine core has died.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise

from opslib.domain.container import container_of
from opslib.domain.redaction import says_secret
from opslib.domain.time_span import parse_time_span
from opslib.domain.unit_file import UnitFile
from opslib.domain.unit_flags import group_words
from opslib.domain.unit_words import split_words
from opslib.domain.vllm_flags import flag_table, is_flag, parse_serve_arguments, read_flag_name

_SHELL = {"&&", "||", "|", ">", ">>", "<", "2>&1", "&"}
_START_DEFAULT_S = 90.0  # DefaultTimeoutStartSec
_LOOP_S = 600.0  # a large model needs minutes to crash: a shorter interval never sees the burst
_MIN_NOFILE = 65536
_ENOUGH_LINES = 100_000  # of one interval: a worker prints its traceback at once
_VISIBLE = "CUDA_VISIBLE_DEVICES"

Finder = Callable[[UnitFile], Iterator[str]]


def _equals(key: str, *bad: str, section: str = "Service") -> Callable[[UnitFile], Iterator[str]]:
    """A key whose effective value is one of `bad`, in any case."""

    def find(unit: UnitFile) -> Iterator[str]:
        value = unit.value(section, key)
        if value is not None and value.lower() in bad:
            yield f"{key}={value}"

    return find


def _quoting(unit: UnitFile) -> Iterator[str]:
    for key in ("ExecStart", "ExecStartPre", "Environment"):
        for value in unit.values("Service", key):
            split_words(value, is_command=key != "Environment")
    return iter(())


def _no_exec_start(unit: UnitFile) -> Iterator[str]:
    if unit.value("Service", "ExecStart") is None:
        yield "[Service] without ExecStart="


def _not_restarted(unit: UnitFile) -> Iterator[str]:
    value = unit.value("Service", "Restart") or "no"
    if value != "always" and (unit.value("Service", "Type") or "simple") != "notify":
        yield f"Restart={value}"


def _endless_loop(unit: UnitFile) -> Iterator[str]:
    interval = unit.value("Unit", "StartLimitIntervalSec") or unit.value("Unit", "StartLimitInterval") or "10"
    if (unit.value("Service", "Restart") or "no") == "no":
        return
    seconds = parse_time_span(interval)
    if seconds is not None and seconds < _LOOP_S:
        yield f"StartLimitIntervalSec={interval}"


def _limit_in_service(unit: UnitFile) -> Iterator[str]:
    for entry in unit.entries:
        if entry.section == "Service" and entry.key in {"StartLimitIntervalSec", "StartLimitBurst", "StartLimitAction"}:
            yield f"{entry.key}={entry.value} in [Service]"


def _guard_words(unit: UnitFile) -> dict[str, str]:
    for value in unit.values("Service", "ExecStartPre"):
        words = [word.text for word in split_words(value)]
        if any(word.endswith("gpu_guard.py") for word in words):
            return {word: following for word, following in pairwise(words) if word.startswith("--")}
    return {}


def _start_timeout_s(unit: UnitFile) -> float | None:
    return parse_time_span(unit.value("Service", "TimeoutStartSec") or str(_START_DEFAULT_S))


def _guard_outlives_start(unit: UnitFile) -> Iterator[str]:
    wait, limit = _guard_words(unit).get("--wait-s", ""), _start_timeout_s(unit)
    if wait.isdecimal() and limit is not None and int(wait) >= limit:
        yield f"the guard waits {wait} s, TimeoutStartSec={limit:.0f}"


def _notify_too_short(unit: UnitFile) -> Iterator[str]:
    limit = _start_timeout_s(unit)
    if unit.value("Service", "Type") == "notify" and limit is not None and limit <= _START_DEFAULT_S:
        yield f"TimeoutStartSec={limit:.0f}"


def _few_files(unit: UnitFile) -> Iterator[str]:
    value = (unit.value("Service", "LimitNOFILE") or "1024").partition(":")[0]
    if value.isdecimal() and int(value) < _MIN_NOFILE:
        yield f"LimitNOFILE={value}" if unit.value("Service", "LimitNOFILE") else "no LimitNOFILE="


def _secret_in_argv(unit: UnitFile) -> Iterator[str]:
    lines = [
        [word.text for word in line] for line in group_words(split_words(unit.value("Service", "ExecStart") or ""))
    ]
    for first, *values in lines:
        name, _, inline = first.partition("=")
        value = inline or " ".join(values)
        if name.startswith("--") and says_secret(name) and value and not value.startswith("$"):
            yield f"{name} [not shown]"


def _secret_in_environment(unit: UnitFile) -> Iterator[str]:
    for name, value in unit.environment.items():
        if says_secret(name) and value and not value.startswith("/"):
            yield f"Environment={name}=[not shown]"


def _shell_words(unit: UnitFile) -> Iterator[str]:
    for key in ("ExecStart", "ExecStartPre", "ExecStop"):
        for value in unit.values("Service", key):
            words = split_words(value)
            if not any(word.text in {"-c", "-lc"} for word in words):
                yield from (f"{key}: {word.raw}" for word in words if word.raw in _SHELL or word.raw.startswith("~/"))


def _broken_continuation(unit: UnitFile) -> Iterator[str]:
    for entry in unit.entries:
        yield from (line.rstrip("\n")[:80] for line in entry.raw.splitlines() if re.search(r"\\[ \t]+$", line))


def _comment_in_value(unit: UnitFile) -> Iterator[str]:
    for entry in unit.entries:
        if (
            entry.section == "Service"
            and entry.key
            and not entry.key.startswith("Exec")
            and re.search(r"\s#", entry.value)
        ):
            yield f"{entry.key}={entry.value}"[:100] if not says_secret(entry.value) else f"{entry.key}=…"


def _no_assignment(unit: UnitFile) -> Iterator[str]:
    for value in unit.values("Service", "Environment"):
        for word in split_words(value, is_command=False):
            if not re.match(r"[A-Za-z_]\w*=", word.text):
                yield f"Environment: {word.text.partition('=')[0][:40]!r} is no NAME=VALUE"


def _dropped_lines(unit: UnitFile) -> Iterator[str]:
    """Only a large burst helps: 0 is handed on as "not set" (src/core/unit.c, `unit_export_log_ratelimit_burst`)."""
    value = unit.value("Service", "LogRateLimitBurst") or ""
    if not value.isdecimal() or int(value) < _ENOUGH_LINES:
        yield f"LogRateLimitBurst={value}" if value else "no LogRateLimitBurst="


def _hidden_output(unit: UnitFile) -> Iterator[str]:
    for key in ("StandardOutput", "StandardError"):
        value = unit.value("Service", key) or ""
        if value and not re.match(r"journal|inherit|kmsg", value):
            yield f"{key}={value}"


def _cuda_order(unit: UnitFile) -> Iterator[str]:
    shown = unit.environment.get(_VISIBLE, "")
    if shown and shown[0].isdecimal() and unit.environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        yield f"{_VISIBLE}={shown} without CUDA_DEVICE_ORDER=PCI_BUS_ID"


def _too_few_gpus(unit: UnitFile) -> Iterator[str]:
    shown = [gpu for gpu in unit.environment.get(_VISIBLE, "").split(",") if gpu.strip()]
    flags = parse_serve_arguments(unit.serve_arguments)
    wanted = flags.tensor_parallel_size * flags.pipeline_parallel_size * flags.data_parallel_size
    if shown and unit.serve_arguments and wanted > len(shown):
        yield f"{wanted} GPUs wanted by the flags, {_VISIBLE}={','.join(shown)}"


def _other_gpus(unit: UnitFile) -> Iterator[str]:
    guarded, shown = _guard_words(unit).get("--gpus", ""), unit.environment.get(_VISIBLE, "")
    if guarded and shown and set(guarded.split(",")) != set(shown.split(",")):
        yield f"the guard watches {guarded}, {_VISIBLE}={shown}"


def _no_guard(unit: UnitFile) -> Iterator[str]:
    has_gpus = _VISIBLE in unit.environment
    if has_gpus and not unit.values("Service", "ExecStartPre") and unit.value("Service", "Restart") not in {None, "no"}:
        yield "no ExecStartPre="


def _ignored_failure(unit: UnitFile) -> Iterator[str]:
    for value in unit.values("Service", "ExecStart"):
        if re.match(r"[@:+!|]*-", value):
            yield f"ExecStart={value[:40]}"


def _flag_twice(unit: UnitFile) -> Iterator[str]:
    seen: set[str] = set()
    for word in unit.serve_arguments:
        flag = read_flag_name(word) if is_flag(word) else None
        if flag is None or flag_table()[flag.name].many or flag_table()[flag.name].kind == "json":
            continue
        if flag.name in seen:
            yield flag.name
        seen.add(flag.name)


def _bad_flag(unit: UnitFile) -> Iterator[str]:
    if unit.serve_arguments:
        yield from (finding.summary for finding in parse_serve_arguments(unit.serve_arguments).findings)


def _detached(unit: UnitFile) -> Iterator[str]:
    container = container_of(unit.engine_argv)
    if container and container.is_detached:
        yield f"{container.words} is run with --detach"


FINDERS: Mapping[str, Finder] = {
    "quoting": _quoting,
    "no-exec-start": _no_exec_start,
    "broken-continuation": _broken_continuation,
    "secret-in-argv": _secret_in_argv,
    "secret-in-environment": _secret_in_environment,
    "shell-syntax": _shell_words,
    "too-few-gpus": _too_few_gpus,
    "guard-outlives-start": _guard_outlives_start,
    "bad-flag": _bad_flag,
    "remain-after-exit": _equals("RemainAfterExit", "yes", "true", "1", "on"),
    "kill-mode": _equals("KillMode", "process", "none"),
    "send-sigkill": _equals("SendSIGKILL", "no", "false", "0", "off"),
    "container-detached": _detached,
    "ignored-failure": _ignored_failure,
    "wrong-type": _equals("Type", "forking", "oneshot", "idle"),
    "oom-policy": _equals("OOMPolicy", "continue"),
    "no-restart": _not_restarted,
    "endless-loop": _endless_loop,
    "limit-in-service": _limit_in_service,
    "notify-too-short": _notify_too_short,
    "few-files": _few_files,
    "comment-in-value": _comment_in_value,
    "no-assignment": _no_assignment,
    "dropped-lines": _dropped_lines,
    "hidden-output": _hidden_output,
    "cuda-order": _cuda_order,
    "guard-other-gpus": _other_gpus,
    "no-guard": _no_guard,
    "flag-twice": _flag_twice,
}
