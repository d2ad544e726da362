"""The form: what is typed stands in the notebook at once, and a wrong value is told by the schema's sentence."""

import pytest

from opslib.app import form
from opslib.app.form import ParameterForm, parameter_form, typed
from opslib.domain.parameters import RUNBOOKS, defaults_of, validate_parameters

RUNBOOK = "90-deploy"


@pytest.fixture
def filled():
    namespace = {**defaults_of(RUNBOOK), "unrelated": object()}
    return ParameterForm(RUNBOOK, namespace)


@pytest.mark.parametrize("runbook", RUNBOOKS)
def test_defaults_survive_being_typed_again(runbook):
    """Each default, typed into its own field as it is shown there, is the same value again."""
    made = ParameterForm(runbook, defaults_of(runbook))
    for name, value in defaults_of(runbook).items():
        made.type_in(name, typed(value))
    assert made.values == defaults_of(runbook)
    assert made.problems() == {}


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("port", "80000", "expected at most 65535, not 80000"),
        ("port", "eight", "expected a whole number, not 'eight'"),
        ("gpus", "[0, 1", "expected a list, as in [0, 1], not '[0, 1'"),
        ("gpus", "[0, -1]", "expected at least 0, not -1"),
        ("gpus", "[0, 1, 2]", None),  # told beside tensor_parallel_size
        ("environment", "{HF_TOKEN: hf_abcdefgh}", "HF_TOKEN holds a secret"),
        ("consent", "perhaps", "expected 'ask' or 'given', not 'perhaps'"),
    ],
)
def test_wrong_values_are_told_beside_their_field(filled, name, text, sentence):
    """A wrong value stands in the notebook as it was typed, so that `begin_run` refuses it too."""
    filled.type_in(name, text)
    problems = filled.problems()
    assert problems
    if sentence:
        assert problems[name].startswith(sentence)
    else:
        assert "does not divide" in problems["tensor_parallel_size"]


def test_what_is_typed_is_what_a_run_is_given(filled):
    """A changed value is in the namespace at once; an emptied optional field means None."""
    filled.type_in("max_num_seqs", "256")
    filled.type_in("served_model_name", "")
    filled.type_in("apply_remedies", "[]")
    parameters = validate_parameters(RUNBOOK, filled.values)
    assert (parameters.max_num_seqs, parameters.served_model_name, parameters.apply_remedies) == (256, None, [])


def test_settled_form_says_what_was_changed(filled):
    """What stays in the file are the values, the changed ones first, with what they were."""
    filled.type_in("max_num_seqs", "256")
    shown = filled.static()
    assert "max_num_seqs changed in the form" in shown.text
    assert "was None" in shown.text
    assert shown.html.index("max_num_seqs") < shown.html.index("tensor_parallel_size")


def test_headless_shows_no_form(monkeypatch):
    """Headless the parameters cell rules: nothing is shown, nothing is kept open."""
    monkeypatch.setenv("OPSLIB_HEADLESS", "1")
    parameter_form(RUNBOOK, defaults_of(RUNBOOK))
    assert form._shown == {}
