"""Digests: from where they are expected, how files are hashed, and when a receipt holds."""

import hashlib
import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from opslib.onhost import digest_hashers, digest_trial
from opslib.onhost.digest_expected import gather_expected, read_sums
from opslib.onhost.digest_hashers import choose_hasher, hash_file, measure
from opslib.onhost.digest_receipts import Receipts, marks_of, state_folder
from opslib.onhost.verify_pool import run_pool
from tests.checkpoint_damage import damage
from tests.onhost.test_verify_faults import home, judged
from tests.real_checkpoint import git_blob, model_files, write_model_in, write_plain

__all__ = ["home"]
FIRST, SECOND = "model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors"
CONTENT = b"weights" * 100_000


def aged(model):
    """Let files be as old as their receipts need: a change may not hide in the same instant."""
    time.sleep(0.15)
    return model


@pytest.mark.parametrize("is_careful", [True, False])
@pytest.mark.parametrize("name", ["hashlib", "openssl", "sha256sum"])
def test_every_hasher_gives_the_same(tmp_path, name, is_careful):
    """SHA-256 and git's blob id, whoever computes them; names that look like options or have newlines are no matter."""
    if measure(name) is None:
        pytest.skip(f"{name} isn't here")
    path = tmp_path / "-rf \n'x"
    content = CONTENT * 30
    path.write_bytes(content)
    counted = []
    found = hash_file(str(path), name, ["sha256"], counted.append, is_careful=is_careful)
    assert found == {"sha256": hashlib.sha256(content).hexdigest()}
    assert sum(counted) == len(content)
    assert hash_file(str(path), name, ["sha256", "sha1"], counted.append, is_careful=is_careful)["sha1"] == git_blob(
        content
    )


def test_the_fastest_hasher_is_taken(tmp_path, monkeypatch):
    """Measured on the host; another program must be clearly faster, as it tells no progress within a file."""
    rates = {"hashlib": 100.0, "openssl": 110.0, "sha256sum": None}
    monkeypatch.setattr(digest_hashers, "measure", rates.get)
    assert choose_hasher(str(tmp_path), 1 << 40)["name"] == "hashlib"
    rates["openssl"] = 130.0
    chosen = choose_hasher(str(tmp_path), 1 << 40)
    assert (chosen["name"], chosen["measured"]) == ("openssl", {"hashlib": 100, "openssl": 130})
    assert choose_hasher(str(tmp_path), 1000) == {
        "name": "hashlib",
        "n_processes": chosen["n_processes"],
        "measured": {},
    }


def test_the_trial_tells_what_this_host_can(tmp_path, capsys):
    """One line: hashers with their speed, how many at once, and the speed of reading."""
    (tmp_path / "large").write_bytes(CONTENT)
    assert digest_trial.main({"path": str(tmp_path)}) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["measured"]["hashlib"] > 10**7
    assert told["read_bytes_per_s"] > 10**6
    assert told["n_processes"] >= 1


def sha256(name):
    return hashlib.sha256(model_files()[name]).hexdigest()


def sums(model):
    """A list as `sha256sum` writes it."""
    (model / "SHA256SUMS").write_text("".join(f"{sha256(name)}  {name}\n" for name in model_files()))


def manifest(model):
    """A manifest of ours."""
    files = {name: {"sha256": sha256(name), "size": len(content)} for name, content in model_files().items()}
    (model / "MANIFEST").write_text(json.dumps({"files": files}))


def sidecars(model):
    """One `.sha256` file beside each."""
    for name in model_files():
        (model / f"{name}.sha256").write_text(f"{sha256(name)}\n")


def clone(model):
    """A git clone in which git-lfs has put the weights where its pointers stood."""
    git = ["git", "-C", str(model), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    for name, content in model_files().items():
        if name.endswith(".safetensors"):
            pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256(name)}\nsize {len(content)}\n"
            (model / name).write_text(pointer)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "x"], check=True)
    write_plain(model, model_files())


@pytest.mark.parametrize("source", [sums, manifest, sidecars, clone])
def test_digests_are_found_where_they_are_recorded(home, source):
    """Each kind of record proves every file, and finds the one whose bit was turned."""
    model = write_model_in("plain", home / "m")
    source(model)
    report = judged(model, "digest")
    unproven = set(report.unverifiable) - {"SHA256SUMS", "MANIFEST", *(f"{name}.sha256" for name in model_files())}
    assert (report.state, unproven) == ("ok", set())
    damage(model, ["flip", SECOND, 70000])
    assert [(f.kind, f.file) for f in judged(model, "digest").findings] == [("digest-mismatch", SECOND)]


def test_sources_that_disagree_are_all_heard(home):
    """A file that one record proves and another refutes is not the file that was meant."""
    model = write_model_in("local-dir", home / "m")
    (model / "SHA256SUMS").write_text(f"{'0' * 64}  {FIRST}\n")
    findings = judged(model, "digest").findings
    assert [(f.kind, f.file, f.expected) for f in findings] == [("digest-mismatch", FIRST, "0" * 64)]


def test_lists_of_sha256sum_are_read_as_written(tmp_path):
    """Binary marks, upper case and escaped names."""
    text = f"{'A' * 64} *b\n\\{'b' * 64}  two\\nlines\nnonsense\n"
    (tmp_path / "SHA256SUMS").write_text(text)
    assert read_sums(str(tmp_path / "SHA256SUMS"), "SHA256SUMS") == {"b": "A" * 64, "two\nlines": "b" * 64}


def test_etags_of_no_known_form_are_no_digests(tmp_path):
    """A weak or multipart etag says nothing about the bytes."""
    notes = [{"path": "a", "etag": '"' + "0" * 64 + '"'}, {"path": "b", "etag": "W/12"}, {"path": "c", "etag": "ab-5"}]
    assert list(gather_expected(str(tmp_path), [], notes)) == ["a"]


def test_a_verified_file_is_not_hashed_again(home):
    """While size, times and inode hold; `no_receipts` hashes all the same."""
    model = aged(write_model_in("local-dir", home / "m"))
    assert judged(model, "digest").hasher["n_receipts"] == 0
    again = judged(model, "digest")
    assert (again.hasher["n_receipts"], again.state, again.checked_bytes) == (10, "ok", again.checked_bytes)
    assert again.sha256[SECOND] == sha256(SECOND)
    assert judged(model, "digest", no_receipts=True).hasher["n_receipts"] == 0


@pytest.mark.parametrize(
    "change",
    [
        ["flip", SECOND, 70000],  # size and mtime as before: the ctime tells
        ["mode", SECOND, "640"],  # a changed ctime is enough, whatever it was
        ["touch", SECOND],
    ],
)
def test_a_receipt_never_outranks_a_changed_ctime(home, change):
    """Whatever was done to a file, it is hashed again."""
    model = aged(write_model_in("local-dir", home / "m"))
    judged(model, "digest")
    damage(model, change)
    assert judged(model, "digest").hasher["n_receipts"] == 9


def test_receipts_lie_in_the_state_folder_never_beside_the_weights(home):
    """Below state_dir where the login may write, else in its home; nothing appears in the model's directory."""
    model = aged(write_model_in("local-dir", home / "m"))
    before = sorted(path.name for path in model.rglob("*"))
    judged(model, "digest", state_dir=str(home / "var"))
    assert len(list((home / "var/verified").iterdir())) == 1
    (home / "file").write_text("")
    judged(model, "digest", state_dir=str(home / "file"))
    assert len(list((home / "state/opslib/verified").iterdir())) == 1
    assert sorted(path.name for path in model.rglob("*")) == before


def test_no_folder_for_receipts_is_no_fault(home, monkeypatch):
    """A login that may write nowhere verifies all the same, each time anew."""
    (home / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "file"))
    assert state_folder("") is None
    model = aged(write_model_in("local-dir", home / "m"))
    assert judged(model, "digest").state == "ok"
    assert judged(model, "digest").hasher["n_receipts"] == 0


def test_a_file_that_has_just_changed_gets_no_receipt(tmp_path):
    """Within the clock's grain a later change could carry the same time."""
    path = tmp_path / "x"
    path.write_bytes(b"1")
    receipts = Receipts(str(tmp_path), str(tmp_path))
    marks = marks_of(path.stat())
    receipts.keep("x", marks, {"sha256": "0" * 64}, marks[2] / 1e9 + 0.01)
    assert receipts.find("x", marks, ["sha256"]) is None
    receipts.keep("x", marks, {"sha256": "0" * 64}, marks[2] / 1e9 + 5)
    assert Receipts(str(tmp_path), str(tmp_path)).find("x", marks, ["sha256"]) == {"sha256": "0" * 64}
    assert Receipts(str(tmp_path), str(tmp_path)).find("x", marks, ["sha256", "sha1"]) is None


def test_a_receipt_cut_by_an_interrupt_is_passed_over(tmp_path):
    """Lines that are whole count."""
    receipts = Receipts(str(tmp_path), str(tmp_path))
    receipts.keep("x", [1, 2, 3, 4, 5], {"sha256": "a"}, 100.0)
    with Path(receipts.path).open("a") as file:
        file.write('{"path": "y", "mar')
    assert set(Receipts(str(tmp_path), str(tmp_path)).known) == {"x"}


def test_a_worker_that_is_killed_leaves_its_item_unknown():
    """The others go on; the item ends with a problem, and nothing waits for ever."""

    def work(number, tell):
        if number == 3:
            os.kill(os.getpid(), 9)
        tell(twice=2 * number)

    told = list(run_pool(8, 2, work))
    assert {number for number, one in told if "twice" in one} == set(range(8)) - {3}
    assert [number for number, one in told if one.get("problem")] == [3]


def test_a_process_that_ends_over_a_bad_file_costs_nothing_else(home, monkeypatch):
    """Mapped into memory, a bad sector ends the process: what it leaves is read once more with care, and each told."""
    model = write_model_in("local-dir", home / "m")

    def fragile(path, name, kinds, count, *, is_careful):
        if not is_careful:
            os.kill(os.getpid(), 9)
        if path.endswith(SECOND):
            raise OSError("Input/output error")
        return hash_file(path, name, kinds, count)

    monkeypatch.setattr("opslib.onhost.digests.hash_file", fragile)
    report = judged(model, "digest")
    assert [(f.kind, f.file) for f in report.findings] == [("unreadable", SECOND)]
    assert "Input/output error" in report.findings[0].detail
    assert len(report.sha256) == 9


def test_unreadable_files_are_unknown_not_wrong(home, monkeypatch):
    """What can't be hashed is told as such."""
    model = write_model_in("local-dir", home / "m")

    def refuse(*_, **__):
        raise OSError("Input/output error")

    monkeypatch.setattr("opslib.onhost.digests.hash_file", refuse)
    report = judged(model, "digest")
    assert report.state == "unknown"
    assert {f.kind for f in report.findings} == {"unreadable"}
