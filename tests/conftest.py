"""Machines to test against: this one, a loopback sshd, the rehearsal host, and a real Debian."""

import atexit
import importlib
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest

from opslib.domain.host import Host, HostSettings
from opslib.hosts import open_host

_ROOT = str(Path(__file__).resolve().parents[1])
if _ROOT not in sys.path:  # pytest's importlib mode leaves it out; the tests share modules as tests.*
    sys.path.insert(0, _ROOT)

HOST_KINDS = (
    "local",
    "loopback-sshd",
    "rehearsal",
    pytest.param("realhost", marks=pytest.mark.realhost),
    pytest.param("realhost-ops", marks=pytest.mark.realhost),
)
JUMP = pytest.param("realhost-jump", marks=pytest.mark.realhost)  # the same promises two hops away

COLLECTED = pytest.StashKey[set[Path]]()  # the modules that were looked into, skipped and deselected ones included
_LAST = "test_vectors.py"  # compares what all other tests have sent


def pytest_configure() -> None:
    """Keep every argument vector of the whole session, those of kernels and commands that it starts included."""
    if "OPSLIB_TRANSCRIPT" not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="opslib-transcript-")
        atexit.register(folder.cleanup)  # after what a test's own open runs still ask while this process ends
        os.environ["OPSLIB_TRANSCRIPT"] = str(Path(folder.name) / "vectors.jsonl")


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> None:
    """Note each module that pytest looks into."""
    parent.config.stash.setdefault(COLLECTED, set()).add(module_path)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the comparison of all vectors behind all other tests."""
    items.sort(key=lambda item: item.path.name == _LAST)


def not_here(reason: str) -> NoReturn:
    """Skip visibly, or fail where CI=true says that nothing may be skipped."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def rehearsal() -> Iterator[Any]:
    """The practice host of the default scenario, running; one for each module, so that none finds what another left."""
    server = importlib.import_module("opslib.rehearsal.server")
    with server.start_rehearsal() as running:
        yield running


@pytest.fixture(scope="module")
def rehearsal_host(rehearsal: Any) -> Iterator[Host]:
    """The practice host, opened."""
    with opened(rehearsal.settings) as host:
        yield host


@pytest.fixture(scope="module")
def debian() -> Iterator[Any]:
    """A real Debian with systemd, journald and sshd, booted for each module (0.3 s)."""
    rig = importlib.import_module("tests.rig.debian")
    try:
        manager = rig.debian_host()
        machine = manager.__enter__()
    except rig.RigUnavailable as error:
        not_here(f"no real Debian host: {error}")
    try:
        yield machine
    finally:
        manager.__exit__(None, None, None)


@pytest.fixture(scope="session")
def real_vllm() -> Iterator[Any]:
    """A real Debian with a real vLLM and a tiny model, booted once for the whole run (the first run builds the engine)."""
    rig = importlib.import_module("tests.rig.real_vllm")
    with importlib.import_module("tests.rig.skip").or_skip(rig.real_vllm_host()) as real:
        yield real


@pytest.fixture(scope="module")
def loopback(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostSettings]:
    """Settings of a real sshd on a loopback port."""
    sshd = importlib.import_module("tests.loopback_sshd")
    if sshd.SSHD is None:
        not_here("no sshd on this machine (package openssh-server)")
    with sshd.loopback_sshd(tmp_path_factory.mktemp("sshd")) as settings:
        yield settings


@pytest.fixture(scope="module")
def jump(debian: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostSettings]:
    """Settings that reach the real Debian as `ops` through an sshd on the loopback; both host keys are pinned."""
    sshd = importlib.import_module("tests.loopback_sshd")
    if sshd.SSHD is None:
        not_here("no sshd on this machine (package openssh-server)")
    directory = tmp_path_factory.mktemp("jump")
    with sshd.loopback_sshd(directory) as hop:
        target = debian.ops_settings
        (directory / "id.pub").write_text(Path(f"{target.identity_file}.pub").read_text())
        pins = [Path(settings.known_hosts_file or "").read_text() for settings in (hop, target)]
        (directory / "known_hosts_of_both").write_text("".join(pins))
        changes = {
            "proxy_jump": f"{hop.user}@{hop.address}:{hop.port}",
            "known_hosts_file": str(directory / "known_hosts_of_both"),
        }
        yield target.model_copy(update=changes)


@pytest.fixture(scope="module", params=HOST_KINDS)
def any_settings(request: pytest.FixtureRequest) -> HostSettings:
    """Settings of each kind of machine in turn."""
    match request.param:
        case "local":
            return HostSettings(alias="local", address="local")
        case "loopback-sshd":
            return request.getfixturevalue("loopback")
        case "rehearsal":
            return request.getfixturevalue("rehearsal").settings
        case "realhost":
            return request.getfixturevalue("debian").settings
        case "realhost-jump":
            return request.getfixturevalue("jump")
        case _:
            return request.getfixturevalue("debian").ops_settings


@pytest.fixture(scope="module")
def any_host(any_settings: HostSettings) -> Iterator[Host]:
    """Each kind of machine in turn, opened."""
    with opened(any_settings) as host:
        yield host


@contextmanager
def opened(settings: HostSettings) -> Iterator[Host]:
    """A host that is closed at the end."""
    host = open_host(settings)
    try:
        yield host
    finally:
        host.close()
