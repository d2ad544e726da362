"""The same verification over SSH: on the rehearsal host, a loopback sshd and a real Debian, as root and as an operator."""

import shutil
import time

import pytest

from opslib.domain.digests import parse_expectation
from opslib.errors import CouldNotFindOut, HostUnreachable
from opslib.workflow.verify import measure_hashing, verify_checkpoint
from tests.checkpoint_damage import damage
from tests.cli.test_verify import large_model
from tests.conftest import opened
from tests.hosts.test_conformance import break_connection
from tests.real_checkpoint import write_model_in

HOSTS = (
    "loopback",
    "rehearsal",
    pytest.param("realhost", marks=pytest.mark.realhost),
    pytest.param("realhost-ops", marks=pytest.mark.realhost),
)
SECOND = "model-00002-of-00003.safetensors"
N_LARGE = 66


class Machine:
    """A host, and a folder for models on it that can be written from here."""

    def __init__(self, host, here, there):
        self.host = host
        self.here = here
        self.there = there

    def model(self, layout, name):
        write_model_in(layout, self.here / name)
        return self.there + f"/{name}"


@pytest.fixture(scope="module", params=HOSTS)
def machine(request, tmp_path_factory):
    """Each kind of host in turn."""
    if request.param.startswith("realhost"):
        debian = request.getfixturevalue("debian")
        settings = debian.settings if request.param == "realhost" else debian.ops_settings
        there = f"/srv/verify-{request.param}"
        here = debian.local_path(there)
        here.mkdir(parents=True)
    else:
        given = request.getfixturevalue(request.param)
        here = tmp_path_factory.mktemp(request.param)
        there, settings = str(here), getattr(given, "settings", given)
        settings = settings.model_copy(update={"state_dir": str(here / "state")})
    with opened(settings) as host:
        yield Machine(host, here, there)
    shutil.rmtree(here)


def test_every_level_over_the_link(machine):
    """Sound at each level; damaged, found with its kind; unchanged files are known by receipts the second time."""
    path = machine.model("local-dir", "a b's")
    time.sleep(0.15)
    for level in ("extents", "sample", "full-scan", "digest"):
        told = []
        report = verify_checkpoint(machine.host, path, level=level, on_progress=told.append)
        assert (report.state, report.level, report.layout) == ("ok", level, "hf-local-dir")
        assert {event["stage"] for event in told} >= {"headers"}
    damage(machine.here / "a b's", ["flip", SECOND, 70000])
    report = verify_checkpoint(machine.host, path, level="digest")
    assert [(f.kind, f.file) for f in report.findings] == [("digest-mismatch", SECOND)]
    assert report.hasher["n_receipts"] == 9


def test_a_listing_travels_along(machine):
    """What an operator brings is compared on the host."""
    path = machine.model("plain", "listed")
    row = {"type": "file", "path": SECOND, "size": 5, "lfs": {"oid": "0" * 64}}
    expect = parse_expectation(f"[{row}]".replace("'", '"'), "listing.json")
    report = verify_checkpoint(machine.host, path, level="digest", expect=expect)
    assert {f.kind for f in report.findings} >= {"size-mismatch", "digest-mismatch"}


def test_the_host_tells_how_fast_it_hashes(machine):
    """Measured there."""
    path = machine.model("plain", "speed")
    speed = measure_hashing(machine.host, path)
    assert speed.name in speed.measured
    assert speed.duration_s(10**9) > 0


def test_what_the_login_may_not_read_is_not_known(machine):
    """A directory without access for the login is no verdict; root may read everything."""
    path = machine.model("plain", "closed")
    (machine.here / "closed").chmod(0o700)
    if machine.host.settings.user == "ops" and not machine.host.settings.is_rehearsal:
        with pytest.raises(CouldNotFindOut, match="may not be read"):
            verify_checkpoint(machine.host, path)
    else:
        assert verify_checkpoint(machine.host, path).state == "ok"


@pytest.fixture(scope="module")
def large(machine):
    """A model whose hashing takes a moment."""
    model = large_model(machine.here / "large")
    for file in model.rglob("*"):
        file.chmod(0o755 if file.is_dir() else 0o644)
    time.sleep(0.15)
    return machine.there + "/large"


def test_a_lost_link_is_regained_and_nothing_is_hashed_twice(machine, large):
    """Cut while hashing: connected again, begun again, and what was finished is known by its receipts."""
    told = []

    def cut_once(event):
        told.append(event)
        if event["stage"] == "digest" and not any(one["stage"] == "reconnect" for one in told):
            break_connection(machine.host)

    report = verify_checkpoint(machine.host, large, level="digest", on_progress=cut_once, reconnects_s=(0.2, 1, 2))
    assert report.state == "ok"
    stages = [event["stage"] for event in told]
    assert stages.index("digest") < stages.index("reconnect")
    before = [event for event in told[: stages.index("reconnect")] if event["stage"] == "digest"]
    assert before[-1]["files"] - 2 <= report.hasher["n_receipts"] <= N_LARGE


def test_a_link_that_stays_lost_says_what_was_verified(machine, large):
    """Not known is not failed: how far it came, and that going on costs only the rest."""

    def cut(event):
        if event["stage"] == "digest":
            break_connection(machine.host)

    with pytest.raises(HostUnreachable, match=r"verified so far at digest: \d+ of 66 files") as caught:
        verify_checkpoint(machine.host, large, level="digest", is_receipt_used=False, on_progress=cut, reconnects_s=())
    assert "receipts" in caught.value.hint


@pytest.mark.realhost
def test_receipts_of_a_login_without_rights_lie_in_its_home(debian):
    """/var/lib/opslib is root's: the operator's receipts are kept below ~/.local/state."""
    model = debian.local_path("/srv/verify-home")
    write_model_in("local-dir", model)
    time.sleep(0.15)
    with opened(debian.ops_settings) as host:
        verify_checkpoint(host, "/srv/verify-home", level="digest")
        assert verify_checkpoint(host, "/srv/verify-home", level="digest").hasher["n_receipts"] == 10
        kept = host.run(["find", "/home/ops/.local/state/opslib/verified", "-name", "verify-home-*"]).text
    shutil.rmtree(model)
    assert kept.count("\n") == 1
