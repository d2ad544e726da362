"""Parameters: one schema per runbook; what is wrong is said in full before any host is contacted."""

import ast
import json
from pathlib import Path

import pytest

from opslib.domain.parameters import RUNBOOKS, defaults_of, schema_of, takes_text, validate_parameters
from opslib.domain.redaction import says_secret
from opslib.errors import BadParameter, UnknownName

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"

# runbook, given, what is said
REFUSED = [
    ("90-deploy", {"prot": 8001}, "prot: unknown parameter of 90-deploy; did you mean port?"),
    ("90-deploy", {"tensor_paralel_size": 4}, "did you mean tensor_parallel_size?"),
    ("90-deploy", {"port": "abc"}, "port: expected a whole number, not 'abc'"),
    ("90-deploy", {"port": "8000"}, "port: expected a whole number, not '8000'"),
    ("90-deploy", {"port": True}, "port: expected a whole number, not True"),
    ("90-deploy", {"port": 8000.0}, "port: expected a whole number, not 8000.0"),
    ("90-deploy", {"port": 0}, "port: expected at least 1, not 0"),
    ("90-deploy", {"port": 65536}, "port: expected at most 65535, not 65536"),
    ("90-deploy", {"host": ""}, "host: expected an alias"),
    ("90-deploy", {"host": "-oProxyCommand=x"}, "host: expected an alias"),
    ("90-deploy", {"unit": "a b"}, "unit: expected a unit name"),
    ("90-deploy", {"unit": "../x"}, "unit: expected a unit name"),
    ("90-deploy", {"model": "a\nb"}, "model: expected a text on one line"),
    ("90-deploy", {"gpus": "0,1"}, "gpus: expected a list, as in [0, 1]"),
    ("90-deploy", {"gpus": [0, "1"]}, "gpus[1]: expected a whole number"),
    ("90-deploy", {"gpus": [0, 0, 1, 2]}, "names a GPU twice"),
    ("90-deploy", {"gpus": [0, 1, 2]}, "4 does not divide the number of gpus (3)"),
    ("90-deploy", {"gpu_memory_utilization": 0}, "gpu_memory_utilization: expected more than 0"),
    ("90-deploy", {"gpu_memory_utilization": 1.01}, "gpu_memory_utilization: expected at most 1"),
    ("90-deploy", {"gpu_memory_utilization": float("nan")}, "gpu_memory_utilization"),
    ("90-deploy", {"engine_version": 0.15}, "engine_version: expected a text (in YAML and Python: in quotes)"),
    ("90-deploy", {"engine_version": "latest"}, 'a version such as "0.15"'),
    ("90-deploy", {"max_restarts": 6}, "max_restarts: expected at most 5"),
    ("90-deploy", {"consent": "yes"}, "consent: expected 'ask' or 'given', not 'yes'"),
    ("90-deploy", {"concurrency_levels": []}, "concurrency_levels: expected at least 1 of them"),
    ("90-deploy", {"concurrency_levels": [0]}, "concurrency_levels[0]: expected at least 1"),
    ("90-deploy", {"concurrency_levels": [1025]}, "concurrency_levels[0]: expected at most 1024"),
    ("90-deploy", {"environment": {"HF_TOKEN": "hunter2"}}, "environment: HF_TOKEN holds a secret"),
    ("90-deploy", {"environment": {"A B": "x"}}, "a variable's name"),
    ("90-deploy", {"environment": {"A": "x\ny"}}, "environment.A: expected a text on one line"),
    ("90-deploy", {"environment": {"A": 1}}, "environment.A: expected a text"),
    ("90-deploy", {"extra_args": ["--port", "1"]}, "extra_args: --port is set by the parameter port"),
    ("90-deploy", {"extra_args": ["--max-num-seqs=4"]}, "is set by the parameter max_num_seqs"),
    ("90-deploy", {"extra_args": ["--api-key", "hunter2"]}, "extra_args: --api-key holds a secret"),
    ("90-deploy", {"extra_args": ["--api-key=hunter2"]}, "extra_args: --api-key holds a secret"),
    ("40-investigate-crash", {"invocation": "yesterday"}, "invocation: expected"),
    ("20-plan-memory", {"consent": "given"}, "consent: unknown parameter of 20-plan-memory"),
]


@pytest.mark.parametrize(("runbook", "given", "sentence"), REFUSED)
def test_wrong_parameter_is_refused_with_a_sentence(runbook, given, sentence):
    """A parameter that is unknown, ill-typed or out of bounds is refused in a line that says what is expected."""
    with pytest.raises(BadParameter) as caught:
        validate_parameters(runbook, given)
    assert sentence in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_all_problems_are_named_at_once():
    """Each problem has one line of its own."""
    with pytest.raises(BadParameter) as caught:
        validate_parameters("30-launch", {"prot": 1, "port": "x", "gpus": [-1], "environment": {"MY_KEY": "x"}})
    lines = str(caught.value).splitlines()
    assert sorted(line.partition(":")[0] for line in lines) == ["environment", "gpus[0]", "port", "prot"]


@pytest.mark.parametrize("runbook", RUNBOOKS)
def test_defaults_are_the_rehearsal_host(runbook):
    """Every runbook can be run without any parameter, on the practice host."""
    parameters = validate_parameters(runbook, {})
    assert {alias.partition(":")[0] for alias in parameters.aliases} <= {"rehearsal"}
    assert parameters.recorded_unit in {"vllm-minimax", "all-units"}
    assert validate_parameters(runbook, defaults_of(runbook)) == parameters


def test_references_to_secrets_are_taken_and_listed():
    """A secret is given by saying where it lies."""
    given = {"environment": {"HF_TOKEN": "env:HF_TOKEN", "A": "1", "S_KEY": "file:/etc/key"}}
    assert validate_parameters("90-deploy", given).references == ("env:HF_TOKEN", "file:/etc/key")


def test_cpu_engine_has_no_gpus():
    """An empty list of GPUs plans for an engine on the CPU."""
    assert validate_parameters("90-deploy", {"gpus": [], "tensor_parallel_size": 1}).gpus == []


def test_served_name_is_the_models_last_part():
    """Clients ask for the model's last path part unless a name is given."""
    assert validate_parameters("50-benchmark", {"model": "/srv/models/tiny/"}).client_model_name == "tiny"
    assert validate_parameters("50-benchmark", {"served_model_name": "m"}).client_model_name == "m"


def test_unknown_runbook_offers_the_nearest():
    """A runbook without a schema is refused with the nearest name."""
    with pytest.raises(UnknownName, match="did you mean 90-deploy"):
        validate_parameters("90-deplyo", {})


def test_text_parameters_are_known():
    """A version on the command line is a text, not a number that loses its last zero."""
    assert takes_text("90-deploy", "engine_version")
    assert takes_text("90-deploy", "served_model_name")
    assert not takes_text("90-deploy", "extra_args")
    assert not takes_text("90-deploy", "no_such")


def test_there_is_a_notebook_for_each_runbook():
    """The notebooks are exactly those of the schema."""
    found = {path.stem for path in NOTEBOOKS.glob("[0-9][0-9]-*.ipynb")}
    assert not found or found == set(RUNBOOKS)


def test_parameters_cell_has_the_schemas_names_and_defaults():
    """A notebook's parameters cell holds literals only: the schema's names with its defaults."""
    for path in sorted(NOTEBOOKS.glob("[0-9][0-9]-*.ipynb")):
        cells = json.loads(path.read_text("utf-8"))["cells"]
        tagged = [cell for cell in cells if "parameters" in cell["metadata"].get("tags", [])]
        assert len(tagged) == 1, path.stem
        body = ast.parse("".join(tagged[0]["source"])).body
        found = {statement.targets[0].id: ast.literal_eval(statement.value) for statement in body}
        assert found == defaults_of(path.stem), path.stem


TOKEN = "hf_" + "a1B2c3D4" * 4
LITERALS = [
    ("90-deploy", {"environment": {"HARMLESS": TOKEN}}),
    ("90-deploy", {"environment": {"DATABASE": "postgresql://me:hunter22@db/x"}}),
    ("90-deploy", {"environment": {"MY_PASSWORD": "hunter22"}}),
    ("90-deploy", {"extra_args": ["--api-key", "hunter22"]}),
    ("90-deploy", {"extra_args": ["--api-key=hunter22"]}),
    ("90-deploy", {"extra_args": [TOKEN]}),
    ("30-launch", {"served_model_name": TOKEN}),
    ("10-verify-download", {"model": f"https://me:hunter22@hub/{TOKEN}"}),
    ("60-review-runs", {"runbook": TOKEN}),
]


@pytest.mark.parametrize(("runbook", "given"), LITERALS)
def test_literal_secret_is_refused_wherever_it_stands(runbook, given):
    """Under a name that says secret, or looking like one under any name: refused, and not repeated in the refusal."""
    with pytest.raises(BadParameter) as caught:
        validate_parameters(runbook, given)
    assert "secret" in str(caught.value)
    assert not [value for value in ("hunter22", TOKEN) if value in str(caught.value)]


@pytest.mark.parametrize("runbook", RUNBOOKS)
def test_no_parameter_asks_for_a_secret(runbook):
    """No runbook has a parameter whose name says that its value is a secret."""
    assert not [name for name in schema_of(runbook).model_fields if says_secret(name)]
