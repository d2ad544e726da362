"""The fault matrix: each way in which a download goes wrong is found at its level under its kind, and names its file."""

import contextlib
import io
import os
import tomllib
from pathlib import Path

import pytest

from opslib.domain.checkpoint import judge_checkpoint, parse_listing
from opslib.domain.checkpoint_kinds import LEVELS, kinds
from opslib.onhost import verify
from tests.checkpoint_damage import damage
from tests.real_checkpoint import write_model_in

CASES = tomllib.loads((Path(__file__).parents[1] / "cases/verify/faults.toml").read_text())["fault"]
SECOND = "model-00002-of-00003.safetensors"


def judged(directory, level, **arguments):
    """The report on a directory, as the host's program and the judgement make it."""
    with contextlib.redirect_stdout(io.StringIO()) as output:
        assert verify.main({"path": str(directory), "level": level, **arguments}) == 0
    return judge_checkpoint(parse_listing(output.getvalue()))


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A state folder of this test's own; directories that others may pass."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for folder in (tmp_path, *tmp_path.parents):
        if os.access(folder, os.W_OK) and "pytest" in str(folder):
            folder.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_each_fault_is_found_at_its_level_and_not_before(case, home):
    """The finding has the kind, the file, the level, an effect and a repair; a lower level doesn't pretend to see it."""
    model = write_model_in(case.get("layout", "local-dir"), home / "m")
    arguments = {"user": case.get("user"), "expect_commit": case.get("expect_commit")}
    if case.get("verified_before"):
        os.utime(model / SECOND, ns=(10**18, 10**18))
        assert judged(model, "digest", **arguments).state == "ok"
    for step in case["steps"]:
        damage(model, step)
    level = case.get("level", "extents")
    for lower in LEVELS[: LEVELS.index("sample" if level == "full-scan" else level)]:
        assert case["kind"] not in {finding.kind for finding in judged(model, lower, **arguments).findings}
    report = judged(model, level, **arguments)
    file = str(model) if case.get("file") == "." else case.get("file", SECOND)
    found = [f for f in report.findings if (f.kind, f.file) == (case["kind"], file)]
    assert len(found) == 1, report.findings
    assert found[0].state == case.get("state", "critical") == kinds()[case["kind"]].state
    assert LEVELS.index(found[0].level) <= LEVELS.index(level)
    assert found[0].effect
    assert found[0].repair
    if case.get("only", True) and level != "digest":
        others = {f.kind for f in report.findings} - {case["kind"], "newer-than-metadata"}
        assert not others


def test_every_kind_of_the_table_has_a_case():
    """No kind is only written down; those without a case here have tests of their own."""
    elsewhere = {"no-directory", "no-weights", "missing-file", "size-mismatch", "offset-gap", "gguf-version", "zero-run",
                 "zero-rows", "constant-run", "no-digest"}  # fmt: skip
    assert kinds().keys() - {case["kind"] for case in CASES} == elsewhere


ODD = 'with space/it\'s a "name"\nü'


def test_odd_paths_are_read_named_and_quoted(home):
    """Spaces, quotes, newlines and other alphabets: the finding names the file, the repair is one shell word."""
    model = write_model_in("plain", home / ODD)
    (model / 'x "y"\n\u00e9.safetensors').write_bytes(b"12345")
    (model / os.fsdecode(b"\xff.safetensors")).write_bytes(b"12345")
    (model / "-rf.incomplete").write_text("")
    found = {(f.file, f.kind): f for f in judged(model, "sample").findings}
    assert ('x "y"\n\u00e9.safetensors', "header-cut") in found
    assert ("\ufffd.safetensors", "header-cut") in found
    assert found["-rf.incomplete", "leftover"].repair.startswith("rm -- '")


def test_ten_thousand_files_are_no_matter(home):
    """A crowded directory takes a second or two, not more memory or a hang."""
    model = write_model_in("plain", home / "m")
    for number in range(10_000):
        (model / f"f{number}.txt").touch()
    report = judged(model, "extents")
    assert (report.state, report.n_files) == ("ok", 10_010)
    assert report.duration_s < 10


def test_symlinked_directories_are_not_entered(home):
    """A loop of directories ends nowhere."""
    model = write_model_in("plain", home / "m")
    (model / "again").symlink_to(model)
    (model / "up").symlink_to("..")
    assert judged(model, "sample").n_files == 10
