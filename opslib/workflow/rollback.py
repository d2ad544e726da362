"""Bring a unit back to a kept version, or to the last deploy that served: unit, model and environment."""

import hashlib
from collections.abc import Sequence
from datetime import datetime

from opslib.domain.facts.journal import parse_journal
from opslib.domain.facts.systemd import UnitStatus, unit_name
from opslib.domain.host import Host
from opslib.domain.plans import FileChange, Plan, Step
from opslib.domain.rollback import (
    GoodDeploy,
    KeptVersion,
    choose_version,
    list_kept,
    served_command,
    served_version,
    version_at,
)
from opslib.domain.snapshot import Snapshot
from opslib.domain.unit_file import parse_unit_file
from opslib.errors import Refused, UnknownName
from opslib.workflow.facts import gather_unit_status, journal_sudo
from opslib.workflow.install import environment_path, plan_install, unit_path
from opslib.workflow.unit_files import read_text

_INDEX = "model.safetensors.index.json"


def gather_kept(host: Host, path: str) -> tuple[KeptVersion, ...]:
    """The versions of a file that were kept beside it, the newest first."""
    folder, _, name = path.rpartition("/")
    result = host.run(("find", folder, "-maxdepth", "1", "-name", f"{name}.*.bak"))
    return list_kept(path, result.text.splitlines())


def gather_served(host: Host, unit: str) -> tuple[datetime, ...]:
    """When the unit's engine said that it serves, as far as the journal goes back; none where it can't be asked."""
    result = host.run(served_command(unit), sudo=journal_sudo(host), timeout_s=120)
    return tuple(entry.realtime_at for entry in parse_journal(result.text) if entry.realtime_at)


def find_version(host: Host, unit: str, wanted: str) -> GoodDeploy:
    """The deploy that a kept version of the unit belongs to; raises UnknownName, BadParameter."""
    version = choose_version(gather_kept(host, unit_path(host, unit)), wanted)
    assert version.kept_at is not None
    before = version.kept_at.replace(microsecond=max(0, version.kept_at.microsecond - 1))
    return _deploy(host, unit, version, before, f"kept until {version.kept_at:%Y-%m-%d %H:%M:%S} UTC")


def find_last_good(host: Host, unit: str, recorded: Snapshot | None, record: str = "") -> GoodDeploy:
    """The newest deploy that served, from the record of a launch or from the host's kept versions and its journal.

    The version in place doesn't count while the unit fails. Raises UnknownName where no deploy is known to have served.
    """
    status, kept = gather_unit_status(host, unit), gather_kept(host, unit_path(host, unit))
    served_at = gather_served(host, unit)
    if _is_in_trouble(status):
        newest = max((version.kept_at for version in kept if version.kept_at), default=None)
        served_at = tuple(at for at in served_at if newest is not None and at < newest)
        present = read_text(host, unit_path(host, unit))
        recorded = None if recorded and recorded.unit_text == present else recorded
    found = served_version(kept, served_at)
    if recorded and recorded.unit_text and (found is None or recorded.taken_at >= found[1]):
        return _recorded(host, unit, recorded, record)
    if found is None:
        raise UnknownName(
            f"no deploy of {unit_name(unit)} is known to have served",
            host=host.settings.alias,
            hint=f"opslib rollback {host.settings.alias} {unit} --list shows the kept versions; choose one with --to",
        )
    version, moment = found
    known_from = f"the host's journal: it served at {moment:%Y-%m-%d %H:%M:%S} UTC"
    return _deploy(host, unit, version or KeptVersion(path=unit_path(host, unit)), moment, known_from)


def _is_in_trouble(status: UnitStatus) -> bool:
    return status.active_state == "failed" or status.sub_state.startswith("auto-restart") or status.n_restarts > 0


def _deploy(host: Host, unit: str, version: KeptVersion, moment: datetime, known_from: str) -> GoodDeploy:
    text = read_text(host, version.path)
    if text is None:
        raise UnknownName(f"{version.path} is not there", host=host.settings.alias)
    return GoodDeploy(
        unit_text=text,
        known_from=known_from,
        served_at=moment,
        environment_path=_environment_of(host, unit, text, moment),
        model_path=_model_path(text),
    )


def _recorded(host: Host, unit: str, snapshot: Snapshot, record: str) -> GoodDeploy:
    text = snapshot.unit_text
    return GoodDeploy(
        unit_text=text,
        known_from=f"record {record}: it served at {snapshot.taken_at:%Y-%m-%d %H:%M:%S} UTC",
        served_at=snapshot.taken_at,
        environment_path=_environment_of(host, unit, text, snapshot.taken_at),
        model_path=_model_path(text),
        model_digest=snapshot.model_digest,
    )


def _environment_of(host: Host, unit: str, text: str, moment: datetime) -> str:
    path = environment_path(host, unit)
    if path not in text:
        return ""
    version = version_at(gather_kept(host, path), moment)
    return version.path if version else ""


def _model_path(text: str) -> str:
    words = parse_unit_file(text).serve_arguments
    return words[0] if words and words[0].startswith("/") else ""


def plan_rollback(host: Host, unit: str, deploy: GoodDeploy) -> Plan:
    """What has to change so that the unit, and the environment file it names, read as in that deploy.

    Raises Refused, before anything is changed, where the model of then is gone.
    """
    model = deploy.model_path
    if model and not host.run(("test", "-e", model)).is_success:
        raise Refused(f"the model of then is gone: {model}", host=host.settings.alias, hint="bring it back first")
    steps = _environment_steps(host, unit, deploy.environment_path)
    planned = plan_install(host, unit=unit, unit_text=deploy.unit_text)
    title = f"bring {unit_name(unit)} back ({deploy.known_from})"
    return Plan(host=host.settings.alias, title=title, steps=(*steps, *planned.steps))


def model_note(host: Host, deploy: GoodDeploy) -> str:
    """What is said where the model's index is another one than then; "" where it is the same, or nobody knows."""
    if not deploy.model_digest or not deploy.model_path:
        return ""
    content = host.read_file(f"{deploy.model_path}/{_INDEX}") or b""
    is_same = hashlib.sha256(content).hexdigest() == deploy.model_digest
    return "" if is_same else f"the index of {deploy.model_path} is another one than then: the weights changed"


def _environment_steps(host: Host, unit: str, kept_path: str) -> Sequence[Step]:
    """The environment file of then; its diff names the variables and never shows a value."""
    path = environment_path(host, unit)
    content = read_text(host, kept_path) if kept_path else None
    if content is None or content == read_text(host, path):
        return ()
    names = [line.partition("=")[0] for line in content.splitlines() if "=" in line]
    diff = "".join([f"+++ {path} (mode 0600)\n", *(f"+{name}=[not shown]\n" for name in names)])
    change = FileChange(path=path, content=content, mode=0o600, diff=diff)
    return (Step(title=f"bring {path} back ({', '.join(names)})", file=change, undo="see the backup that is named"),)
