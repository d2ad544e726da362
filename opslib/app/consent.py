"""Who says yes to a change: a person by a button, a parameter for a schedule, nobody on the rehearsal host."""

import asyncio
from html import escape

from opslib.app.run import Run
from opslib.app.screen import Live, Screen
from opslib.errors import ConsentMissing
from opslib.views.shown import Shown
from opslib.views.theme import note

CONSENT_BY_PARAMETER = "consented by the parameter consent=given"
CONSENT_ON_REHEARSAL = "the rehearsal host is for practice: no consent needed"
CONSENT_BY_BUTTON = "consented by the operator"


async def ask_consent(run: Run, question: str) -> str | None:
    """How a planned change was consented to, or None where the operator said no; headless without: ConsentMissing."""
    if run.parameters.consent == "given":
        return CONSENT_BY_PARAMETER
    if run.is_headless:
        if run.host.settings.is_rehearsal:
            return CONSENT_ON_REHEARSAL
        raise ConsentMissing(
            f"{question} Nobody is there to ask", host=run.alias, hint="pass -p consent=given, or run it in JupyterLab"
        )
    return await ask_operator(question)


async def ask_operator(question: str) -> str | None:
    """How a person consented by a button, or None where they said no; no parameter answers for them."""
    return CONSENT_BY_BUTTON if await _ask_with_buttons(question) else None


async def _ask_with_buttons(question: str) -> bool:
    """Two buttons under the question; the cell waits, and what stays in the file is the answer as text."""
    from ipywidgets import HTML, Button, HBox, VBox  # noqa: PLC0415 - only where somebody looks

    loop = asyncio.get_running_loop()
    answered: asyncio.Future[bool] = loop.create_future()

    def answer(button: Button) -> None:
        loop.call_soon_threadsafe(_set_once, answered, button is yes)  # JupyterLab may call from another thread

    yes, no = Button(description="Apply", button_style="primary"), Button(description="Do not apply")
    for button in (yes, no):
        button.on_click(answer)
    asked, told = Screen(), f"{question} Nobody has answered."
    widget = VBox([HTML(f"<b>{escape(question)}</b>"), HBox([yes, no])])
    asked.paint(Live(widget, question))
    try:
        is_agreed = await answered
        told = f"{question} {'Yes' if is_agreed else 'No'}, said the operator."
    finally:
        asked.paint(Shown(note(told), told))
        widget.close()
    return is_agreed


def _set_once(answered: "asyncio.Future[bool]", is_agreed: bool) -> None:
    if not answered.done():
        answered.set_result(is_agreed)
