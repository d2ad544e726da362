"""A record for somebody else: whole with its seal, or under pseudonyms with one of its own."""

import json
import shutil
from pathlib import Path

import pytest

from opslib.cli.main import call
from opslib.domain.states import State
from opslib.records.pdf import find_chromium
from opslib.records.seal import seal_record, verify_record
from tests.conftest import not_here

EXAMPLE = next((Path(__file__).parents[2] / "runs" / "examples").glob("*debian*"))


@pytest.fixture
def record(tmp_path):
    path = tmp_path / "runs" / EXAMPLE.name
    shutil.copytree(EXAMPLE, path)
    seal_record(path)
    return path


def export(record, *options, capsys):
    code = call(["runs", "export", str(record), "--to", str(record.parents[1] / "out"), "--json", *options])
    return code, json.loads(capsys.readouterr().out)


def test_a_copy_keeps_its_seal(record, capsys):
    """Exported as it is, every file and the seal are the same; a second export to the same place is refused."""
    code, told = export(record, capsys=capsys)
    assert code == 0
    copy = Path(told["record"])
    assert {path.read_bytes() for path in copy.rglob("*") if path.is_file()} == {
        path.read_bytes() for path in record.rglob("*") if path.is_file()
    }
    assert verify_record(copy).alterations == ()
    assert export(record, capsys=capsys)[0] == 4


def test_a_copy_under_pseudonyms_names_nobody(record, capsys):
    """Hosts, addresses and users are in no file and not in the folder's name; pictures stay; the copy is sealed anew."""
    code, told = export(record, "--pseudonyms", capsys=capsys)
    assert code == 0
    copy = Path(told["record"])
    facts = json.loads((record / "record.json").read_text())
    names = {facts["host"], facts["controller"], facts["answered"]["hostname"]} - {"root"}
    assert not [name for name in names if name in copy.name.split("-")]
    for path in (path for path in copy.rglob("*") if path.is_file() and path.suffix != ".png"):
        text = path.read_text("utf-8")
        assert not [name for name in names if f'"{name}"' in text], path.name
    copied = json.loads((copy / "record.json").read_text())
    assert copied["host"].startswith("host-")
    assert copied["outcome"]["state"] == facts["outcome"]["state"]
    assert "under pseudonyms" in copied["notes"][-1]
    assert "host-1" in (copy / "record.html").read_text()
    report = verify_record(copy)
    assert (report.alterations, report.state in (State.OK, State.WARNING)) == ((), True)
    assert verify_record(record).alterations == ()


def test_pdf_is_part_of_the_copy(record, capsys):
    """`--pdf` prints the page; the copy's seal covers it, the record itself stays as it was."""
    if find_chromium() is None:
        not_here("no Chromium on this machine (make system-deps installs it)")
    code, told = export(record, "--pdf", capsys=capsys)
    assert code == 0
    assert "record.pdf" in told["files"]
    copy = Path(told["record"])
    assert (copy / "record.pdf").read_bytes().startswith(b"%PDF-1.")
    assert verify_record(copy).alterations == ()
    assert not (record / "record.pdf").exists()


def test_no_browser_is_said(record, capsys, monkeypatch):
    """Without Chromium `--pdf` could not be done, and says what to do."""
    monkeypatch.setenv("PATH", "/nonexistent")
    assert call(["runs", "export", str(record), "--to", str(record.parent / "out"), "--pdf"]) == 3
    assert "no Chromium on this machine" in capsys.readouterr().err


def test_a_copy_lies_beside_the_records_unless_told_otherwise(record, capsys, monkeypatch, tmp_path):
    """Without --to nothing is written where the command happened to be called; the answer says where it lies."""
    here = tmp_path / "elsewhere"
    here.mkdir()
    monkeypatch.chdir(here)
    assert call(["runs", "export", record.name, "--runs-dir", str(record.parent)]) == 0
    assert capsys.readouterr().out.strip() == str(record.parent / "exports" / record.name)
    assert list(here.iterdir()) == []
