"""Who answers."""

import pytest

from opslib.domain.facts.identity import identity_program, parse_identity
from opslib.errors import UnexpectedAnswer
from opslib.onhost import identity


def test_the_program_and_the_reader_agree(capsys):
    """What the on-host program prints is what the reader takes, time zone included."""
    name, arguments = identity_program()
    assert name == "identity"
    assert identity.main(arguments) == 0
    answer = parse_identity(capsys.readouterr().out)
    assert answer.hostname
    assert answer.asked_at.tzinfo is not None


@pytest.mark.parametrize("text", ["", "bash: python3: command not found", "{}", "[]"])
def test_anything_else_is_an_unexpected_answer(text):
    """An identity is never half known."""
    with pytest.raises(UnexpectedAnswer):
        parse_identity(text)
