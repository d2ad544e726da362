"""docs/parameters.md and the README's file of parameters, held against the schema."""

import re
from pathlib import Path

import pytest
import yaml

from opslib.app.parameter_table import parameter_table
from opslib.domain.parameters import RUNBOOKS, defaults_of, validate_parameters

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs/parameters.md", ROOT / "README.md"]


def test_the_page_holds_the_table():
    """docs/parameters.md shows the schema, all of it."""
    assert parameter_table() in PAGES[0].read_text()


def test_the_table_has_every_parameter_of_every_runbook():
    """Each parameter has a row that names each runbook that takes it."""
    rows = [line.strip("| ").split(" | ") for line in parameter_table().splitlines()[2:]]
    taken = {(row[0].strip("`"), number) for row in rows for number in row[-1].split(", ")}
    assert taken == {(name, runbook[:2]) for runbook in RUNBOOKS for name in defaults_of(runbook)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_shown_file_of_parameters_is_one_that_runs(page):
    """Each YAML file that a page shows is taken by `90-deploy` as it stands."""
    files = re.findall(r"^ *```yaml\n(.*?)^ *```", page.read_text(), re.MULTILINE | re.DOTALL)
    assert files
    for text in files:
        validate_parameters("90-deploy", yaml.safe_load(text))
