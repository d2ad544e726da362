"""A unit that systemd doesn't know is said so; silence would be taken for "nothing happened"."""

from contextlib import nullcontext

import pytest

from opslib.cli.main import call
from tests.fakes import FakeHost


@pytest.mark.parametrize("words", [["logs", "a", "vlm"], ["rollback", "a", "vlm", "--list"], ["watch", "a", "vlm"]])
def test_an_unknown_unit_is_refused(words, monkeypatch, capsys):
    """No line and no version are no answer where there is no such unit: exit code 4, and where to look next."""
    host = FakeHost(
        {
            ("env", "TZ=UTC", "systemctl", "show"): "LoadState=not-found\nActiveState=inactive\n",
            ("journalctl",): "",
            ("find",): "",
        }
    )
    for module in ("logs", "rollback"):
        monkeypatch.setattr(f"opslib.cli.{module}.bound", lambda _: nullcontext(host))
    monkeypatch.setattr("opslib.app.unit_watch.open_bound_host", lambda _: host)
    monkeypatch.setattr("opslib.app.unit_watch.check_alias", lambda _: None)
    assert call(words) == 4
    said = capsys.readouterr()
    assert said.out == ""
    assert "systemd knows no unit vlm.service. Next: opslib survey" in said.err


def test_a_journal_without_a_line_is_told(monkeypatch, capsys):
    """The unit is there and said nothing: that is told, and is no fault."""
    host = FakeHost(
        {
            ("env", "TZ=UTC", "systemctl", "show"): "LoadState=loaded\nActiveState=active\n",
            ("journalctl",): "",
            ("id",): "root",
        }
    )
    monkeypatch.setattr("opslib.cli.logs.bound", lambda _: nullcontext(host))
    assert call(["logs", "a", "vllm", "--since", "2h"]) == 0
    assert "no line of vllm since 2h" in capsys.readouterr().err


def test_a_unit_file_that_is_no_text_is_refused(tmp_path, capsys):
    """`lint --file` says in one line that the file can't be read, before a host is opened."""
    file = tmp_path / "v.service"
    file.write_bytes(b"\xff\xfe[Service]")
    assert call(["lint", "rehearsal", "v", "--file", str(file)]) == 4
    assert capsys.readouterr().err == f"opslib: {file}: can't be read: it is not UTF-8 text\n"
