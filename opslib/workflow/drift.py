"""Ask a host what it is compared by, in one round trip; two where sudo is refused."""

from collections.abc import Mapping, Sequence

from opslib.domain.drift_facts import HostFacts, facts_of
from opslib.domain.drift_reading import drift_program, parse_drift
from opslib.domain.host import CommandResult, Host
from opslib.errors import PrivilegeRefused, UnexpectedAnswer

_TIMEOUT_S = 40.0


def ask_facts(host: Host, units: Sequence[str] = (), *, salt: str, own: Mapping[str, str]) -> HostFacts:
    """What `host` is compared by; without `units` its engines are looked for.

    `salt` is the same for all hosts of a comparison; `own` are the host's own places, with the word for each. Raises
    what keeps the host from being asked.
    """
    name, arguments = drift_program(host.settings, units, salt=salt, own=own)
    result = _run(host, name, arguments)
    if not result.is_success:
        message = f"the look ended with status {result.exit_status}: {result.error_text[-300:]}"
        raise UnexpectedAnswer(message, host=host.settings.alias)
    return facts_of(host.settings.alias, parse_drift(result.text))


def _run(host: Host, name: str, arguments: Mapping[str, object]) -> CommandResult:
    try:  # no sudoers list names a program
        return host.run_program(name, arguments, sudo=host.settings.sudo is True, timeout_s=_TIMEOUT_S)
    except PrivilegeRefused as refused:
        if not refused.message.startswith("sudo"):  # the login itself
            raise
        return host.run_program(name, arguments, timeout_s=_TIMEOUT_S)
