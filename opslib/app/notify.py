"""Tells of a run where somebody will see it (apprise: mail, chat, pager, webhook); never a reason to fail."""

import logging
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from opslib.domain.headless import HeadlessOptions
from opslib.domain.notice import Notice, is_due, notice_of, refusal_notice
from opslib.domain.record import RunRecord
from opslib.domain.redaction import redact
from opslib.errors import BadParameter, CouldNotFindOut, reason_of
from opslib.records.folder import RunFolder, safe_name
from opslib.records.secrets import reference_secrets, resolve_reference


def check_places(places: Iterable[str]) -> tuple[str, ...]:
    """The addresses behind references, so that they can be redacted; raises BadParameter where one is of no use."""
    addresses = reference_secrets(places)
    for place, address in zip(places, addresses, strict=True):
        if not _apprise().add(address):
            raise BadParameter(f"notify: {place} holds no address that apprise knows", hint="as in json://host/path")
    return addresses


def notify_end(options: HeadlessOptions, record: RunRecord, folder: RunFolder) -> tuple[str, ...]:
    """Tell of a run that has ended, where it is due; one sentence for each place, said in the record."""
    if not options.notify:
        return ()
    before = _before(record, folder.path)
    if not is_due(options.notify_on, record, before):
        return (f"nobody was notified: notify_on={options.notify_on}",)
    return send(options.notify, notice_of(record, str(folder.path), before), folder.secrets)


def notify_refusal(given: Mapping[str, Any], runbook: str, error: BadParameter | Exception) -> None:
    """Tell of a run that was refused before it began, as far as the places can be read."""
    with suppress(Exception):  # what was given is wrong somewhere: this may be where
        places = HeadlessOptions.model_validate({"notify": given.get("notify") or ()}).notify
        send(places, refusal_notice(runbook, given, redact(str(error)), socket.gethostname()), ())


def send(places: Iterable[str], notice: Notice, secrets: tuple[str, ...]) -> tuple[str, ...]:
    """One sentence for each place: that it was told, or why not; the address itself is in none."""
    said = []
    for place in places:
        problem = _sent(place, notice, secrets)
        said.append(f"could not notify {place}: {problem}" if problem else f"notified {place}: {notice.title}")
    return tuple(said)


def _sent(place: str, notice: Notice, secrets: tuple[str, ...]) -> str:
    """Send one message; what went wrong, "" for nothing."""
    try:
        address = resolve_reference(place)
        sender = _apprise()
        if not sender.add(address):
            return "no address that apprise knows"
        with _Heard() as heard:
            is_sent = sender.notify(
                title=redact(notice.title, secrets), body=redact(notice.body, secrets), notify_type=notice.kind
            )
        return "" if is_sent else redact(heard.last or "it was not taken", (*secrets, address))
    except Exception as error:  # noqa: BLE001 - a message that can't be sent changes nothing about the run
        return reason_of(error).splitlines()[0]


class _Heard(logging.Handler):
    """The last warning that apprise logs: the only place where it says why."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.last = record.getMessage().splitlines()[0]

    def __enter__(self) -> Self:
        logger = logging.getLogger("apprise")
        logger.addHandler(self)
        self._was_propagating, logger.propagate = logger.propagate, False
        return self

    def __exit__(self, *_: object) -> None:
        logger = logging.getLogger("apprise")
        logger.removeHandler(self)
        logger.propagate = self._was_propagating


def _apprise() -> Any:
    from apprise import Apprise  # noqa: PLC0415 - takes a while, and most runs tell nobody

    return Apprise()


def _before(record: RunRecord, path: Path) -> RunRecord | None:
    """The newest earlier run of the same runbook on the same unit that was more than tried; None without any."""
    name = "-".join(filter(None, (safe_name(record.host), safe_name(record.unit), safe_name(record.runbook))))
    found = (other for other in path.parent.glob(f"*Z-{name}*") if other.name < path.name)
    for other in sorted(found, reverse=True):
        with suppress(CouldNotFindOut):
            earlier = RunFolder.open(other).read_record()
            if earlier and earlier.outcome and not earlier.is_dry_run and earlier.runbook == record.runbook:
                return earlier
    return None
