"""The shape of the house: floors, notebook style, test docstrings, and what must not stand in the tree."""

import ast
import os
import re
import subprocess
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
MAX_CELL_LINES = 10


def code_cells(path):
    notebook = nbformat.read(path, as_version=4)
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_floors_hold():
    """Imports go down the floors only, and the domain imports nothing that does I/O."""
    from importlinter.cli import lint_imports

    assert lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True) == 0


def test_there_are_notebooks():
    """The README names every runbook (the index is none), so that the checks below cannot pass on nothing."""
    named = set(re.findall(r"`(\d\d-[a-z-]+)`", (ROOT / "README.md").read_text()))
    assert named == {path.stem for path in NOTEBOOKS} - {"index"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_prose_and_short_cells(path):
    """The title is a question, the effect is said in prose and metadata, prose precedes every short cell."""
    notebook = nbformat.read(path, as_version=4)
    title, effect = notebook.cells[0].source.splitlines()[0], notebook.metadata["opslib"]["effect"]
    assert title.startswith("# ")
    assert title.endswith("?")
    first_line = notebook.cells[0].source.splitlines()[2]
    assert first_line.startswith("**Changes nothing" if effect == "read" else "**")
    assert effect in {"read", "write"}
    for before, cell in zip(notebook.cells, notebook.cells[1:], strict=False):
        if cell.cell_type == "code":
            assert before.cell_type == "markdown", cell.source
            lines = re.sub(r"import \([^)]*\)", "import …", cell.source).splitlines()  # a list of names is one line
            assert len(lines) <= MAX_CELL_LINES or "parameters" in cell.metadata.get("tags", []), cell.source


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_cells_hold_no_logic(path):
    """A def, class, loop, branch, try or shell escape in a cell is a missing function."""
    banned = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.For, ast.While, ast.If, ast.Try, ast.With)
    for cell in code_cells(path):
        assert not cell.source.lstrip().startswith(("!", "%")), cell.source
        tree = compile(cell.source, str(path), "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        assert not [node for node in ast.walk(tree) if isinstance(node, banned)], cell.source


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_a_clean_copybook(path):
    """Outputs stand only in cells that nbval compares; execution counts and widget state are not kept."""
    for cell in code_cells(path):
        assert not cell.outputs or "NBVAL_CHECK_OUTPUT" in cell.source, cell.source
        assert cell.execution_count == (1 if cell.outputs else None)
    assert "widgets" not in nbformat.read(path, as_version=4).metadata


@pytest.mark.parametrize("path", TESTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_test_states_its_rule(path):
    """Every test function has a docstring, which states the rule that it holds."""
    tree = ast.parse(path.read_text())
    owners = [tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))]
    members = [node for owner in owners for node in owner.body]
    functions = [node for node in members if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    silent = [f.name for f in functions if f.name.startswith("test_") and not ast.get_docstring(f)]
    assert silent == []


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-fleet.lock"])
def test_lock_has_hashes_and_no_addresses(name):
    """A lock pins every package by hash and names no download address."""
    lock = (ROOT / name).read_text()
    pins = re.findall(r"^[a-z0-9][^\n]*==[^\n]*\\\n\s+--hash=sha256:", lock, re.MULTILINE)
    assert len(pins) == len(re.findall(r"^[a-z0-9][\w.-]*==", lock, re.MULTILINE))
    assert "://" not in lock


def test_readme_links_lead_somewhere():
    """Every relative link of the README and CONTRIBUTING names something that exists."""
    for name in ("README.md", "CONTRIBUTING.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / name).read_text()):
            assert (ROOT / target).exists(), f"{name}: {target}"


def test_tracked_files_name_no_home_of_a_machine():
    """No committed file carries an absolute path of the machine it was made on."""
    pattern = re.escape(str(ROOT)) + r"\b"
    found = subprocess.run(
        ["git", "-C", str(ROOT), "grep", "-lE", pattern, "--", "."], capture_output=True, text=True, check=False
    )
    assert found.stdout == ""


def test_the_terminal_has_one_door():
    """The command line prints through opslib/cli/showing.py (or the story's console), which shows control characters."""
    doors = [path for path in (ROOT / "opslib" / "cli").glob("*.py") if path.name != "showing.py"]
    direct = [path.name for path in doors if re.search(r"(?<![.\w])print\(|click\.s?echo\(", path.read_text())]
    assert direct == []


def test_lab_opens_on_the_index_for_whoever_asks():
    """`make lab` opens the index, shows no news pop-up, lets root in where root it is, and hands ARGS on."""
    command = subprocess.run(
        ["make", "-n", "lab", "ARGS=--port=8889"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    words = next(line for line in command.stdout.splitlines() if "jupyter lab" in line).split()
    assert {"--LabApp.default_url=/lab/tree/notebooks/index.ipynb", "--LabApp.news_url=None", "--port=8889"} <= set(
        words
    )
    assert ("--allow-root" in words) == (os.getuid() == 0)


def test_json_that_others_wrote_may_be_nested_too_deep():
    """Whoever reads JSON and catches ValueError catches RecursionError too, which brackets by the thousand raise."""
    careless = []
    for path in sorted((ROOT / "opslib").rglob("*.py")):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "json.load" in text else ():
            if not isinstance(node, ast.Try | ast.With):
                continue
            body = "\n".join(map(ast.unparse, node.body))
            caught = " ".join(
                ast.unparse(each) for each in (node.items if isinstance(node, ast.With) else node.handlers)
            )
            is_asked = "except" in caught or "suppress" in caught
            if is_asked and re.search(r"\bjson\.loads?\(", body) and re.search("ValueError|JSONDecode", caught):
                careless += [] if "RecursionError" in caught else [f"{path.relative_to(ROOT)}:{node.lineno}"]
    assert careless == []
