"""Take a snapshot of what a unit's start depends on, in few round trips; what can't be had stays empty."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime

from opslib.domain.facts.gpu import held_by_index
from opslib.domain.facts.processes import descends_from, parse_process_parents, process_parents_command
from opslib.domain.host import Host
from opslib.domain.snapshot import Snapshot
from opslib.domain.survey import HostSurvey
from opslib.domain.unit_file import parse_unit_file
from opslib.errors import OpslibError
from opslib.workflow.facts import gather_gpu_processes, gather_gpus, gather_unit_status
from opslib.workflow.install import read_unit_text
from opslib.workflow.survey import survey_host, utc_now

_INDEX = "model.safetensors.index.json"
_COMMIT = ".cache/huggingface/download/config.json.metadata"


def take_snapshot(
    host: Host,
    unit: str,
    *,
    survey: HostSurvey | None = None,
    has_gpus: bool = True,
    clock: Callable[[], datetime] = utc_now,
) -> Snapshot:
    """What the unit runs with now, read from the host; never raises but for a host that is gone."""
    survey = survey or survey_host(host, (unit,))
    text = ""
    with suppress(OpslibError):
        text = read_unit_text(host, unit) or ""
    argv, names = _unit_words(text)
    commit, digest = _model(host, argv)
    seen = next(iter(survey.units), None)
    return Snapshot(
        taken_at=clock(),
        unit_text=text,
        argv=argv,
        environment_names=names,
        engine_version=(seen.engine_version if seen else "") or survey.engine_version,
        driver_version=survey.driver_version,
        kernel=survey.identity.kernel if survey.identity else "",
        python_version=survey.identity.python_version if survey.identity else "",
        model_commit=commit,
        model_digest=digest,
        held_by_others_bytes=_held_by_others(host, unit) if has_gpus else {},
    )


def _unit_words(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    with suppress(OpslibError, ValueError):
        unit = parse_unit_file(text)
        return unit.engine_argv, tuple(sorted(unit.environment))
    return (), ()


def _model(host: Host, argv: Sequence[str]) -> tuple[str, str]:
    """Commit and digest of the checkpoint that the unit names by a path."""
    after = argv[argv.index("serve") + 1 :] if "serve" in argv else ()
    path = after[0] if after and after[0].startswith("/") else ""
    if not path:
        return "", ""
    commit, digest = _read(host, f"{path}/{_COMMIT}"), _read(host, f"{path}/{_INDEX}")
    first = commit.decode("utf-8", "replace").split()
    return first[0] if first else "", hashlib.sha256(digest).hexdigest() if digest else ""


def _read(host: Host, path: str) -> bytes:
    with suppress(OpslibError):
        return host.read_file(path) or b""
    return b""


def _held_by_others(host: Host, unit: str) -> Mapping[str, int]:
    """GPU memory by index of processes that the unit's main process did not start."""
    with suppress(OpslibError):
        gpus, processes = gather_gpus(host), gather_gpu_processes(host)
        parents = parse_process_parents(host.run(process_parents_command()).text)
        main_pid = gather_unit_status(host, unit).main_pid or -1
        others = [process for process in processes if not descends_from(process.pid, main_pid, parents)]
        return {str(index): size for index, size in held_by_index(gpus, others).items()}
    return {}
