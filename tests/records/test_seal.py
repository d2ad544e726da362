"""Seals: what was altered since is named, who sealed is said, and moving a record is no alteration."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import nbformat
import pytest

from opslib.cli.runs_verify import verify_command
from opslib.domain.states import State
from opslib.records.seal import seal_record, verify_record
from opslib.records.signing import signing_key


def make_key(path, *, passphrase=""):
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", path.name, "-f", str(path)], check=True
    )
    return path


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    place = tmp_path_factory.mktemp("keys")
    return {
        "alice": make_key(place / "alice"),
        "mallory": make_key(place / "mallory"),
        "locked": make_key(place / "locked", passphrase="geheim"),
    }


@pytest.fixture
def signers(tmp_path, keys):
    path = tmp_path / "allowed_signers"
    path.write_text(f"alice@example.org {(keys['alice'].parent / 'alice.pub').read_text()}")
    return path


@pytest.fixture(autouse=True)
def _no_other_key(tmp_path, monkeypatch):
    for name in ("SSH_AUTH_SOCK", "OPSLIB_SIGNING_KEY", "OPSLIB_ALLOWED_SIGNERS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def record(tmp_path):
    """A record of four cells and six files, not yet sealed."""
    path = tmp_path / "runs" / "20261129T181503Z-h-u-90-deploy"
    (path / "evidence" / "start").mkdir(parents=True)
    new = nbformat.v4
    cells = [new.new_markdown_cell("# Is it up?\nChanges nothing.", id="a")]
    for number, source in enumerate(("run = begin_run()", "install(run)", "await launch(run)"), start=1):
        output = new.new_output("display_data", {"text/plain": f"answer {number}"})
        noted = {"papermill": {"start_time": f"2026-11-29T18:15:0{number}", "duration": 0.5}}
        cells.append(
            new.new_code_cell(source, id=f"c{number}", execution_count=number, outputs=[output], metadata=noted)
        )
    nbformat.write(new.new_notebook(cells=cells), path / "notebook.ipynb")
    (path / "record.json").write_text('{"status": "finished"}\n')
    (path / "record.html").write_text("<p>it is so</p>\n")
    (path / "evidence/start/journal.jsonl").write_text("{}\n")
    (path / "evidence/start/kernel.txt").write_text("oom\n")
    (path / "figure.png").write_bytes(b"\x89PNG\x00\xff")
    return path


@pytest.fixture
def sealed(record, keys, monkeypatch):
    monkeypatch.setenv("OPSLIB_SIGNING_KEY", str(keys["alice"]))
    seal_record(record)
    return record


def edit(path, change):
    notebook = json.loads((path / "notebook.ipynb").read_text())
    change(notebook["cells"])
    (path / "notebook.ipynb").write_text(json.dumps(notebook, indent=1))


def swap(path, one, other):
    first, second = (path / one).read_bytes(), (path / other).read_bytes()
    (path / one).write_bytes(second)
    (path / other).write_bytes(first)


def run_again(cells):
    cells[3]["execution_count"] = 9
    cells[3]["metadata"]["papermill"]["start_time"] = "2026-11-30T00:00:00"
    cells[3]["outputs"][0]["data"]["text/plain"] = "ready"


def write(path, name, text):
    (path / name).write_text(text)


# what somebody does -> what is said of it, all of it
TAMPERING = {
    "one byte of a file": (
        lambda path: write(path, "record.html", "<p>it is no</p>\n"),
        {("changed", "record.html", "")},
    ),
    "one byte of an output": (
        lambda path: edit(path, lambda cells: cells[2]["outputs"][0]["data"].update({"text/plain": "answer 3"})),
        {("changed", "cell 3 (install(run))", "outputs")},
    ),
    "one byte of a source": (
        lambda path: edit(path, lambda cells: cells[2].update(source="install(rum)")),
        {("changed", "cell 3 (install(run))", "source")},
    ),
    "a time": (
        lambda path: edit(path, lambda cells: cells[2]["metadata"]["papermill"].update(duration=0.25)),
        {("changed", "cell 3 (install(run))", "times (it was run again)")},
    ),
    "a cell run again": (
        lambda path: edit(path, run_again),
        {("changed", "cell 4 (await launch(run))", "outputs, times (it was run again)")},
    ),
    "a cell dropped": (
        lambda path: edit(path, lambda cells: cells.pop(2)),
        {("dropped", "cell 3 (install(run))", "")},
    ),
    "a cell added": (
        lambda path: edit(path, lambda cells: cells.insert(2, nbformat.v4.new_code_cell("rm(run)", id="x"))),
        {("added", "cell 3 (rm(run))", "")},
    ),
    "a cell pasted twice": (
        lambda path: edit(path, lambda cells: cells.append(dict(cells[2]))),
        {("added", "cell 5 (install(run))", "")},
    ),
    "cells reordered": (
        lambda path: edit(path, lambda cells: cells.insert(1, cells.pop())),
        {("reordered", "cell 4 (await launch(run))", "now cell 2")},
    ),
    "the notebook's metadata": (
        lambda path: write(
            path,
            "notebook.ipynb",
            (path / "notebook.ipynb").read_text().replace('"metadata": {}', '"metadata": {"a": 1}'),
        ),
        None,
    ),
    "the notebook made unreadable": (
        lambda path: write(path, "notebook.ipynb", "{"),
        {("changed", "notebook.ipynb", "it can't be read")},
    ),
    "the notebook made another document": (
        lambda path: write(path, "notebook.ipynb", '{"cells": [1, null]}'),
        {("changed", "notebook.ipynb", "it can't be read")},
    ),
    "the notebook made too deep to read": (
        lambda path: write(path, "notebook.ipynb", '{"cells":' + "[" * 50_000),
        {("changed", "notebook.ipynb", "it can't be read")},
    ),
    "the notebook made a FIFO": (
        lambda path: ((path / "notebook.ipynb").unlink(), os.mkfifo(path / "notebook.ipynb")),
        {("changed", "notebook.ipynb", "it can't be read")},
    ),
    "a link added": (
        lambda path: (path / "evidence/link").symlink_to("/etc/hostname"),
        {("added", "evidence/link", "")},
    ),
    "a file whose name is no UTF-8 added": (
        lambda path: Path(os.fsdecode(bytes(path) + b"/\xff")).write_text(""),
        {("added", "\\xff", "")},
    ),
    "a file dropped": (
        lambda path: (path / "evidence/start/kernel.txt").unlink(),
        {("dropped", "evidence/start/kernel.txt", "")},
    ),
    "a file added": (
        lambda path: write(path, "evidence/start/alibi.txt", "it was you"),
        {("added", "evidence/start/alibi.txt", "")},
    ),
    "two files swapped": (
        lambda path: swap(path, "evidence/start/kernel.txt", "record.html"),
        {
            ("changed", "evidence/start/kernel.txt", "it holds what was record.html"),
            ("changed", "record.html", "it holds what was evidence/start/kernel.txt"),
        },
    ),
    "a file become a link": (
        lambda path: ((path / "figure.png").unlink(), (path / "figure.png").symlink_to("record.html")),
        {("changed", "figure.png", "")},
    ),
}


@pytest.mark.parametrize("name", TAMPERING)
def test_every_alteration_is_named(sealed, signers, name):
    """Whatever is changed, dropped, added, run again, reordered or swapped is named, and nothing else is."""
    tamper, expected = TAMPERING[name]
    tamper(sealed)
    report = verify_record(sealed, allowed_signers=signers)
    assert report.state is State.CRITICAL
    found = {(one.what, one.where, one.detail) for one in report.alterations}
    assert found == expected if expected is not None else found
    assert "signed by alice@example.org" in report.summary  # the seal itself is still hers


def test_sealed_record_is_as_it_was_wherever_it_lies(sealed, signers, tmp_path):
    """Untouched it is ok and says by whom; moved whole, under another name, it still is."""
    for place in (sealed, tmp_path / "elsewhere" / "renamed"):
        if place != sealed:
            shutil.copytree(sealed, place)
        report = verify_record(place, allowed_signers=signers)
        assert (report.state, report.alterations) == (State.OK, ())
        assert report.signature.principals == ("alice@example.org",)
        assert "4 cells and 6 files as they were sealed" in report.summary


def test_every_single_byte_counts(record):
    """One flipped bit anywhere in any file of the record, its seal included, is noticed (without any signature)."""
    seal_record(record)
    assert verify_record(record).alterations == ()
    for file in [path for path in record.rglob("*") if path.is_file()]:
        content = file.read_bytes()
        for at in range(0, len(content), max(1, len(content) // 12)):
            file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
            report = verify_record(record)
            assert report.alterations, (file.name, at, report.summary)
        file.write_bytes(content)


def test_edited_manifest_is_caught_by_its_chain_and_by_its_signature(sealed, signers):
    """An entry edited in seal.json doesn't follow from those before it, and the signature is no longer its own."""
    path = sealed / "seal.json"
    seal = json.loads(path.read_text())
    seal["files"][1]["size_bytes"] += 1
    path.write_text(json.dumps(seal))
    report = verify_record(sealed, allowed_signers=signers)
    assert report.state is State.CRITICAL
    assert {(one.where, one.detail) for one in report.alterations} == {
        ("seal.json", f"its entry of {seal['files'][1]['path']}")
    }
    assert "signature is not of this seal" in report.summary


def test_sealed_anew_by_another_key(sealed, keys, signers, monkeypatch):
    """Who alters a record and seals it with a key of their own is not one of the allowed signers."""
    edit(sealed, run_again)
    monkeypatch.setenv("OPSLIB_SIGNING_KEY", str(keys["mallory"]))
    seal_record(sealed)
    report = verify_record(sealed, allowed_signers=signers)
    assert (report.state, report.alterations) == (State.CRITICAL, ())
    assert f"which {signers} does not allow" in report.summary
    assert report.signature.fingerprint == signing_key().fingerprint


def test_signature_put_in_place_of_another(sealed, keys, signers):
    """A signature by another key over the same seal is told from the one that the seal names."""
    content = (sealed / "seal.json").read_bytes()
    argv = ["ssh-keygen", "-Y", "sign", "-n", "opslib", "-f", str(keys["mallory"])]
    (sealed / "seal.json.sig").write_bytes(subprocess.run(argv, input=content, capture_output=True, check=True).stdout)
    report = verify_record(sealed, allowed_signers=signers)
    assert report.state is State.CRITICAL
    assert "signed by another key" in report.summary


def test_dropped_signature_is_missed(sealed):
    """A seal that names a key and has no signature is not just unsigned."""
    (sealed / "seal.json.sig").unlink()
    report = verify_record(sealed)
    assert (report.state, "is missing" in report.summary) == (State.CRITICAL, True)


def test_no_signature_where_one_is_asked_for(record, signers, monkeypatch):
    """Where a file says who signs, a record that is sealed anew without a signature is no better than a forged one."""
    monkeypatch.setenv("OPSLIB_SIGNING_KEY", "none")
    seal_record(record)
    report = verify_record(record, allowed_signers=signers)
    assert report.state is State.CRITICAL
    assert f"not signed, as {signers} asks for: anybody may have sealed it anew" in report.summary
    assert verify_record(record).state is State.WARNING


def test_signature_without_allowed_signers(sealed, monkeypatch):
    """Without a list of signers the own key is known, and of any other only the fingerprint is said."""
    own = verify_record(sealed)
    assert (own.state, "this login's own key SHA256:" in own.summary) == (State.OK, True)
    monkeypatch.delenv("OPSLIB_SIGNING_KEY")
    other = verify_record(sealed)
    assert (other.state, "no allowed signers file says whose key" in other.summary) == (State.WARNING, True)


@pytest.mark.parametrize(
    ("key", "why"),
    [
        (None, "no SSH key in ~/.ssh and none in an agent"),
        ("none", "signing is switched off"),
        ("/no/such/key", "no key in /no/such/key"),
        ("locked", "ssh-keygen could not sign with SHA256:"),
    ],
)
def test_unsigned_is_said(record, keys, monkeypatch, key, why):
    """Where nobody could sign, a passphrase being asked of nobody, the seal says why, and so does whoever verifies."""
    if key:
        monkeypatch.setenv("OPSLIB_SIGNING_KEY", str(keys.get(key, key)))
    seal = seal_record(record)
    assert (seal.signed_with, why in seal.why_unsigned) == ("", True), seal.why_unsigned
    report = verify_record(record)
    assert report.state is State.WARNING
    assert f"unsigned: {why}" in report.summary


def test_an_agent_signs(record, keys, tmp_path, monkeypatch):
    """A key that only an agent holds signs as well."""
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(tmp_path / "agent")], stdout=subprocess.PIPE)
    try:
        agent.stdout.readline()
        monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
        subprocess.run(["ssh-add", "-q", str(keys["alice"])], check=True, capture_output=True)
        assert seal_record(record).why_unsigned == ""
        assert "own key" in verify_record(record).summary
    finally:
        agent.terminate()
        agent.communicate()


def test_not_sealed_is_unknown(record):
    """A record without a seal is neither good nor bad."""
    report = verify_record(record)
    assert (report.state, report.alterations) == (State.UNKNOWN, ())


def verify(*arguments, capsys):
    code = verify_command.main([str(one) for one in arguments], standalone_mode=False)
    return code, capsys.readouterr().out


def test_verify_command_says_it_in_lines_and_as_json(sealed, signers, capsys):
    """`opslib runs verify`: the verdict, one line for each alteration, and the exit code of the worst record."""
    code, out = verify(sealed, "--allowed-signers", signers, capsys=capsys)
    assert (code, out.splitlines()[0].startswith("✓ ok")) == (0, True)
    edit(sealed, lambda cells: cells.pop(2))
    code, out = verify(sealed, "--allowed-signers", signers, capsys=capsys)
    assert (code, out.splitlines()[1].split()) == (2, ["dropped", "cell", "3", "(install(run))"])
    code, out = verify(sealed, "--json", capsys=capsys)
    assert json.loads(out)["records"][0]["alterations"][0]["what"] == "dropped"
    assert os.fspath(sealed.parent) not in out
