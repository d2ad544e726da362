"""Secrets that only the host knows: read before anything is shown, so that no journal line or diff gives them away."""

from contextlib import suppress

from opslib.app.run import Run
from opslib.domain.redaction import file_secrets
from opslib.errors import OpslibError
from opslib.workflow.install import environment_path, read_unit_text


def learn_host_secrets(run: Run) -> None:
    """Make known what the unit's file and its environment file say is secret; what can't be read teaches nothing."""
    unit = getattr(run.parameters, "unit", "")
    if not unit or len(run.parameters.aliases) != 1:
        return
    with suppress(OpslibError):
        text = read_unit_text(run.host, unit) or ""
        run.folder.learn_secrets(text)
        path = environment_path(run.host, unit)
        if path in text:
            content = run.host.read_file(path, sudo=run.host.settings.has_sudo) or b""
            run.folder.add_secrets(file_secrets(content.decode("utf-8", "replace")))
