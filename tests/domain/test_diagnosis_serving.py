"""An engine that dies while it serves: requests under way are still answered after the line that decides."""

import pytest

from opslib.domain.diagnosis import diagnose
from opslib.domain.journal_text import parse_input

READY = "(APIServer pid=115) INFO:     Application startup complete."
ANSWER = 'INFO:     127.0.0.1:54494 - "POST /v1/completions HTTP/1.1" 200 OK'
DEAD = (
    "(APIServer pid=115) ERROR 11-29 19:03:51 [async_llm.py:906] AsyncLLM output_handler failed.",
    "(APIServer pid=115) ERROR 11-29 19:03:51 [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: See above.",
)
DECIDING = {
    "worker": "(EngineCore pid=7) ERROR 11-29 19:03:51 [multiproc_executor.py:246] "
    "Worker proc VllmWorker-0 died unexpectedly, shutting down executor.",
    "engine-core": "(APIServer pid=115) WARNING 11-29 19:03:51 [core_client.py:817] "
    "[shutdown] MPClient: engine core exited unexpectedly; starting cleanup",
}


@pytest.mark.parametrize("dead", DECIDING)
def test_an_answer_after_the_death_hides_nothing(dead: str) -> None:
    """A completion that is logged after the deciding line is no sign that the engine came back."""
    lines = [READY, ANSWER, DECIDING[dead], ANSWER, *DEAD, "INFO:     Finished server process [115]", ANSWER]
    diagnosis = diagnose(parse_input("\n".join(lines), "text"))
    assert diagnosis.cause == "process/died-silently"
    assert diagnosis.evidence[0].line == 2


@pytest.mark.parametrize("dead", DECIDING)
def test_the_line_alone_ends_no_server(dead: str) -> None:
    """Where a warning of the kind is followed by answers and no failure, the server serves."""
    diagnosis = diagnose(parse_input("\n".join([READY, DECIDING[dead], ANSWER]), "text"))
    assert diagnosis.cause == "none"
