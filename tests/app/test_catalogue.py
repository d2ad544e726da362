"""The catalogue of runbooks: found by name, number or words, from any directory."""

import json

import pytest

from opslib.app.catalogue import default_runs_dir, effect_of, find_runbook, list_runbooks, notebooks_dir
from opslib.errors import UnknownName


@pytest.fixture
def notebooks(tmp_path, monkeypatch):
    for name, metadata in {"10-verify-download": {"opslib": {"effect": "read"}}, "90-deploy": {}}.items():
        (tmp_path / f"{name}.ipynb").write_text(json.dumps({"metadata": metadata}))
    (tmp_path / "notes.ipynb").touch()
    monkeypatch.setenv("OPSLIB_NOTEBOOKS", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    "name", ["90-deploy", "deploy", "90", "Deploy", "90-deploy.ipynb", "notebooks/90-deploy.ipynb"]
)
def test_found_by_name_number_or_words(notebooks, name):
    """A runbook is found by all the ways in which a person names it."""
    assert find_runbook(name) == ("90-deploy", notebooks / "90-deploy.ipynb")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("90-deplyo", "did you mean 90-deploy"),
        ("verify-downlod", "did you mean 10-verify-download|did you mean verify-download"),
        ("zzz", "known: "),
        ("nosuch", r"unknown runbook 'nosuch'; known: .*30-launch"),
        ("50-benchmark", "the runbook 50-benchmark has no notebook in"),
    ],
)
def test_unknown_name_offers_the_nearest(notebooks, name, sentence):
    """An unknown runbook is refused with the nearest name."""
    with pytest.raises(UnknownName, match=sentence):
        find_runbook(name)


def test_only_numbered_notebooks_are_runbooks(notebooks):
    """A notebook without a number is somebody's notes."""
    assert list(list_runbooks()) == ["10-verify-download", "90-deploy"]


def test_effect_is_write_unless_said(notebooks):
    """A runbook that doesn't say that it only reads is taken to change things."""
    assert effect_of(notebooks / "10-verify-download.ipynb") == "read"
    assert effect_of(notebooks / "90-deploy.ipynb") == "write"


def test_checkout_is_found_from_anywhere(tmp_path, monkeypatch):
    """Runbooks and records of a checkout are found whatever the shell's directory is."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPSLIB_NOTEBOOKS", raising=False)
    monkeypatch.delenv("OPSLIB_RUNS", raising=False)
    assert notebooks_dir().parent == default_runs_dir().parent
    assert (notebooks_dir().parent / "pyproject.toml").is_file()
