"""Who says yes to a change: a person by a button, a parameter for a schedule, nobody on the rehearsal host."""

import asyncio

from opslib.app.run import Run
from opslib.app.screen import Screen
from opslib.errors import ConsentMissing
from opslib.views.shown import Shown
from opslib.views.theme import note

CONSENT_BY_PARAMETER = "consented by the parameter consent=given"
CONSENT_ON_REHEARSAL = "the rehearsal host is for practice: no consent needed"
CONSENT_BY_BUTTON = "consented by the operator"


async def ask_consent(run: Run, question: str, *, allowed_by: str = "") -> str | None:
    """How the change was consented to, or None where the operator said no.

    `allowed_by` names a parameter that already allows this change. Headless without any of these raises ConsentMissing.
    """
    if allowed_by:
        return f"allowed by the parameter {allowed_by}"
    if run.parameters.consent == "given":
        return CONSENT_BY_PARAMETER
    if run.is_headless:
        if run.host.settings.is_rehearsal:
            return CONSENT_ON_REHEARSAL
        raise ConsentMissing(
            f"{question} Nobody is there to ask", host=run.alias, hint="pass -p consent=given, or run it in JupyterLab"
        )
    is_agreed = await _ask_with_buttons(question)
    return CONSENT_BY_BUTTON if is_agreed else None


async def _ask_with_buttons(question: str) -> bool:
    """Two buttons under the question; the cell waits, and what stays in the file is the answer as text."""
    from ipywidgets import Button, HBox  # noqa: PLC0415 - only where somebody looks

    answered: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def answer(button: Button) -> None:
        if not answered.done():
            answered.set_result(button is yes)

    yes, no = Button(description="Apply", button_style="primary"), Button(description="Do not apply")
    for button in (yes, no):
        button.on_click(answer)
    asked, buttons = Screen(), HBox([yes, no])
    asked.paint(Shown(note(question), question))
    Screen().paint(buttons)
    try:
        is_agreed = await answered
    finally:
        buttons.close()
    answer_text = f"{question} {'Yes' if is_agreed else 'No'}, said the operator."
    asked.paint(Shown(note(answer_text), answer_text))
    return is_agreed
