"""Redaction at the source: whatever a kernel sends to a screen or a file passes here first."""

from collections.abc import Mapping
from typing import Any

from opslib.domain.redaction import redact_notebook
from opslib.records.folder import RunFolder

# messages that show something, or that hold what will be shown (jupyter_client, messaging)
_SHOWING = {"display_data", "update_display_data", "execute_result", "stream", "error", "execute_reply"}
_WIDGETS = {"comm_open", "comm_msg"}
_folders: list[RunFolder] = []  # of the runs that began in this kernel


def guard_kernel(folder: RunFolder) -> None:
    """Redact from now on what this kernel sends, by what the run of `folder` knows; nothing to do outside a kernel."""
    from IPython import get_ipython  # noqa: PLC0415 - only where somebody looks

    _folders.append(folder)
    shell = get_ipython()
    kernel = getattr(shell, "kernel", None)
    if kernel is None or getattr(kernel.session, "is_guarded", False):
        return
    send = kernel.session.send

    def send_redacted(stream: Any, message: Any, content: Any = None, *rest: Any, **named: Any) -> Any:
        if isinstance(message, Mapping):
            if message["header"]["msg_type"] in _SHOWING | _WIDGETS:
                message = {**message, "content": redacted(message["content"])}
        elif message in _SHOWING | _WIDGETS and content is not None:
            content = redacted(content)
        return send(stream, message, content, *rest, **named)

    object.__setattr__(kernel.session, "send", send_redacted)
    object.__setattr__(kernel.session, "is_guarded", True)


def redacted(content: Mapping[str, Any]) -> dict[str, Any]:
    """A message's content without what any run of this kernel knows to be secret."""
    return redact_notebook(content, known_secrets())


def known_secrets() -> tuple[str, ...]:
    """What the runs of this kernel know to be secret."""
    return tuple(dict.fromkeys(secret for folder in _folders for secret in folder.secrets))
