"""How a unit stands is noted by digests, and brought back from the versions that its host has kept; on both kinds of host."""

import pytest

from opslib.errors import Refused
from opslib.workflow.install import apply_plan, plan_install, read_unit_text, unit_path
from opslib.workflow.launch import start_unit, stop_unit
from opslib.workflow.unit_found import gather_found, is_serving, restore_found
from tests.conftest import opened

UNIT = "plain"
KINDS = ["rehearsal", pytest.param("realhost", marks=pytest.mark.realhost)]


@pytest.fixture(params=KINDS)
def host(request):
    """A host on which no such unit lies."""
    if request.param == "rehearsal":
        settings = request.getfixturevalue("rehearsal").settings
    else:
        settings = request.getfixturevalue("debian").ops_settings
    with opened(settings) as host:
        yield host


def deploy(host, word, *, is_up=True):
    """A unit that sleeps, described by a word."""
    text = f"[Unit]\nDescription={word}\n[Service]\nExecStart=/bin/sleep 1000\n"
    assert apply_plan(host, plan_install(host, unit=UNIT, unit_text=text)).state == "ok"
    start_unit(host, UNIT) if is_up else stop_unit(host, UNIT)
    return text


def test_a_unit_is_brought_back(host):
    """From not being there, over two versions and a stop, each state that was found is had again, and asked."""
    nothing = gather_found(host, UNIT)
    assert (nothing.words, set(nothing.files.values())) == ("is not installed", {None})
    first = deploy(host, "first")
    up = gather_found(host, UNIT)
    assert is_serving(host, UNIT)
    deploy(host, "second")
    stop_unit(host, UNIT)
    down = gather_found(host, UNIT)
    assert (down.is_up, down.files == up.files) == (False, False)

    assert restore_found(host, UNIT, up) == "1 files as before; plain is started again with what it had"
    again = gather_found(host, UNIT)
    assert (again.files, again.is_up, read_unit_text(host, UNIT)) == (up.files, True, first)
    assert restore_found(host, UNIT, again) == "no file had changed"
    assert gather_found(host, UNIT).invocation_id == again.invocation_id, "what is as it was is left alone"

    assert restore_found(host, UNIT, down) == "1 files as before; plain is stopped, as it was found"
    assert gather_found(host, UNIT).files == down.files
    strange = up.model_copy(update={"files": {**up.files, unit_path(host, UNIT): "0" * 64}})
    with pytest.raises(Refused, match=r"no kept version of .*plain\.service is the one that was found there"):
        restore_found(host, UNIT, strange)
    assert gather_found(host, UNIT).files == down.files, "refused before anything was changed"

    restore_found(host, UNIT, nothing)
    assert gather_found(host, UNIT).files == nothing.files
