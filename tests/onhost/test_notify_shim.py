"""The notify shim: what it tells systemd, what it hands on, and with which status it ends."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from opslib.domain.engine_log import parse_log_line
from opslib.domain.facts.journal import parse_journal_entry
from opslib.domain.launch_phases import PhaseTrack, launch_phase, launch_phases, shim_table
from opslib.onhost.notify_shim import FAILED
from opslib.onhost.shim_lines import Phases
from opslib.workflow.shim import shim_text

JOURNAL = Path(__file__).parents[1] / "cases/launch/real-vllm-0.32.jsonl"
CASES = Path(__file__).parents[1] / "cases"
LABELLED = [path for path in sorted((CASES / "launch").glob("*.truth.json")) if '.txt"' in path.read_text()]
SERVER = """
import http.server, json, os, sys, time
print("(APIServer pid=1) INFO 11-29 10:00:00 [utils.py:1] non-default args: {}", flush=True)
for n in range(0, 126, 25):
    bar = "Loading safetensors checkpoint shards: %3d%% Completed | %d/125 [00:0%d<00:45, 1.6it/s]"
    sys.stderr.write("\\r" + bar % (100 * n // 125, n, n % 7))
    time.sleep(float(os.environ.get("PACE_S", "0.02")))
sys.stderr.write("\\n")
HUNG = []
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer({"data": [{"id": "m"}]})
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body.get("model") == "hang" or HUNG:
            HUNG.append(1)
            time.sleep(60)
        is_key = self.headers.get("Authorization") == "Bearer " + os.environ["VLLM_API_KEY"]
        if not is_key:
            self.answer({"error": {"message": "key"}}, 401)
        elif os.environ.get("KIND") == "embedding" and self.path != "/v1/embeddings":
            self.answer({"error": {"message": "The model does not support this API"}}, 404)
        elif os.environ.get("KIND") == "embedding":
            self.answer({"data": [{"index": 0, "embedding": [0.5, -0.5]}]})
        else:
            self.answer({"choices": [{"text": "a"}]})
    def answer(self, document, code=200):
        body = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
assert "NOTIFY_SOCKET" not in os.environ
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[-1])), Handler).serve_forever()
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shim as it is written to a host, and an engine beside it that is called vllm."""
    place = tmp_path_factory.mktemp("shim")
    (place / "vllm").write_text(f"#!{sys.executable}\n{SERVER}")
    (place / "vllm").chmod(0o755)
    (place / "shim.py").write_text(shim_text())
    return place / "shim.py"


class Systemd:
    """A notification socket, and what came through it."""

    def __init__(self, directory: Path) -> None:
        self.path = str(directory / "notify")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.path)
        self.told: list[str] = []

    def wait(self, wanted: str, seconds: float = 20.0) -> None:
        """Until that was told."""
        deadline = time.monotonic() + seconds
        while wanted not in self.told:
            self._socket.settimeout(max(0.01, deadline - time.monotonic()))
            self.told += self._socket.recv(4096).decode().splitlines()

    def forget(self) -> None:
        """What has come so far."""
        self._socket.setblocking(False)
        with suppress(BlockingIOError):
            while self._socket.recv(4096):
                pass
        self.told.clear()

    @property
    def statuses(self) -> list[str]:
        """The STATUS= lines."""
        return [line[7:] for line in self.told if line.startswith("STATUS=")]


@contextmanager
def run_shim(shim: Path, systemd: Systemd, *engine: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """The shim around an engine, ended at the end."""
    argv = [environment.pop("PYTHON", sys.executable), str(shim), "--", *engine]
    variables = {"PATH": os.defpath, "NOTIFY_SOCKET": systemd.path, **environment}
    with subprocess.Popen(argv, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()


def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def oldest_python() -> str:
    """A Python 3.8 of this machine, "" where there is none (vermin judges the code in `make check` anywhere)."""
    found = [shutil.which("python3.8"), *map(str, Path.home().glob(".pyenv/versions/3.8.*/bin/python3.8"))]
    asked = "import sys; sys.exit(sys.version_info[:2] != (3, 8))"
    return next(
        (path for path in found if path and not subprocess.call([path, "-c", asked], stderr=subprocess.DEVNULL)), ""
    )


@pytest.mark.parametrize("python", ["present", "3.8"])
def test_phases_then_ready_after_a_real_answer_and_a_stop_is_clean(shim: Path, tmp_path: Path, python: str) -> None:
    """STATUS= counts the shards, READY=1 comes with the key's answer, SIGTERM ends both, a watchdog is fed."""
    program = sys.executable if python == "present" else oldest_python()
    if not program:
        pytest.skip("no Python 3.8 on this machine")
    systemd = Systemd(tmp_path)
    engine = (str(shim.parent / "vllm"), "serve", "/m", "--host", "127.0.0.1", "--port", str(free_port()))
    given = {"VLLM_API_KEY": "k", "WATCHDOG_USEC": "400000", "PACE_S": "0.3", "PYTHON": program}
    with run_shim(shim, systemd, *engine, **given) as process:
        systemd.wait("READY=1")
        shown = list(systemd.statuses)
        assert any(line.startswith("EXTEND_TIMEOUT_USEC=") for line in systemd.told)
        systemd.wait("WATCHDOG=1")
        process.send_signal(signal.SIGTERM)
        systemd.wait("STOPPING=1")
        output = process.communicate(timeout=20)[0].decode()
    assert process.returncode == 0
    assert "resolving configuration" in shown
    assert [text for text in shown if re.fullmatch(r"loading weights \d+/125", text)]
    assert shown[-1] == "serving"
    assert "\rLoading safetensors checkpoint shards:   0% Completed | 0/125" in output


def test_wrong_key_is_not_ready_and_the_status_says_why(shim: Path, tmp_path: Path) -> None:
    """/health 200 is not enough: where no token comes, the status names the answer that came."""
    systemd = Systemd(tmp_path)
    engine = (str(shim.parent / "vllm"), "serve", "/m", "--host", "127.0.0.1", "--api-key", "x", "--port")
    with run_shim(shim, systemd, *engine, str(free_port()), VLLM_API_KEY="k"):
        systemd.wait("STATUS=loading weights 125/125; /v1/completions answers 401: key")
    assert "READY=1" not in systemd.told


def test_embedding_model_is_ready_after_an_embedding(shim: Path, tmp_path: Path) -> None:
    """An engine that completes nothing is asked for what it can do: its first embedding is its first answer."""
    systemd, port = Systemd(tmp_path), free_port()
    engine = (str(shim.parent / "vllm"), "serve", "/m", "--host", "127.0.0.1", "--port", str(port))
    with run_shim(shim, systemd, *engine, VLLM_API_KEY="k", KIND="embedding"):
        systemd.wait("READY=1")
    assert systemd.statuses[-1] == "serving"


def test_engine_that_hangs_feeds_no_watchdog(shim: Path, tmp_path: Path) -> None:
    """WATCHDOG=1 stands for an answer: an engine that takes requests and answers none starves it, and systemd acts."""
    systemd, port = Systemd(tmp_path), free_port()
    engine = (str(shim.parent / "vllm"), "serve", "/m", "--host", "127.0.0.1", "--port", str(port))
    with run_shim(shim, systemd, *engine, VLLM_API_KEY="k", WATCHDOG_USEC="400000"):
        systemd.wait("WATCHDOG=1")
        request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", b'{"model": "hang"}')
        with pytest.raises(TimeoutError):
            urllib.request.urlopen(request, timeout=0.3)
        time.sleep(0.3)
        systemd.forget()
        with pytest.raises(TimeoutError):
            systemd.wait("WATCHDOG=1", 1.0)


# what else happens to an API server that outlives its engine core: whether a stop is asked for; the status, a line
OUTLIVES = [(False, FAILED, "the engine core has died and the engine goes on without it"), (True, 0, "")]
OUTLIVING = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, lambda *_: (core.kill(), time.sleep(0.8), sys.exit(0)))
core = subprocess.Popen(["VLLM::EngineCore", "60"], executable="/bin/sleep")
time.sleep(0.6)
if sys.argv[1] == "alone":
    core.kill()
time.sleep(60)
"""


@pytest.mark.parametrize(("is_stopped", "status", "line"), OUTLIVES, ids=["by itself", "stopped"])
def test_server_that_outlives_its_core(shim: Path, tmp_path: Path, is_stopped: bool, status: int, line: str) -> None:
    """It serves nobody: it is ended, and that is a failure unless a stop was asked for."""
    hasty = re.sub(r"(LOOK_S|CORE_GRACE_S) = [0-9.]+", r"\1 = 0.2", shim.read_text())
    place = tmp_path / "hasty.py"
    place.write_text(hasty)
    how = "stopped" if is_stopped else "alone"
    with run_shim(place, Systemd(tmp_path), sys.executable, "-c", OUTLIVING, how) as process:
        if is_stopped:
            time.sleep(1.0)
            process.terminate()
        output = process.communicate(timeout=20)[0].decode()
    assert process.returncode == status, output
    assert line in output
    assert ("a failure" in output) is not is_stopped


# what the engine does, the status that systemd sees, whether the shim says that it is a failure
ENDS = [
    ("exit 0", FAILED, True),
    ("exit 3", 3, False),
    ("kill -KILL $$", -signal.SIGKILL, True),
    ("kill -TERM $$", FAILED, True),
]


@pytest.mark.parametrize(("script", "status", "is_said"), ENDS, ids=[case[0] for case in ENDS])
def test_end_of_the_engine(shim: Path, tmp_path: Path, script: str, status: int, is_said: bool) -> None:
    """Its own status is the shim's; an end that is clean to systemd, though nobody asked for it, becomes a failure."""
    with run_shim(shim, Systemd(tmp_path), "/bin/sh", "-c", f"printf 'no newline'; {script}") as process:
        output = process.communicate(timeout=20)[0].decode()
    assert process.returncode == status
    assert output.startswith("no newline")
    assert ("a failure" in output) is is_said


def test_output_comes_unchanged(shim: Path, tmp_path: Path) -> None:
    """Every byte of both streams in its order: long lines, no text at all, half a megabyte."""
    program = (
        "import os\nfor n in range(64):\n os.write(1 + n % 2, bytes([n, 255, 10]) + b'x' * 8000 + b'\\n')\nos._exit(5)"
    )
    with run_shim(shim, Systemd(tmp_path), sys.executable, "-c", program) as process:
        output = process.communicate(timeout=20)[0]
    assert process.returncode == 5
    assert output == b"".join(bytes([n, 255, 10]) + b"x" * 8000 + b"\n" for n in range(64))


def test_program_that_is_not_there(shim: Path, tmp_path: Path) -> None:
    """One line names it."""
    with run_shim(shim, Systemd(tmp_path), "/nowhere/vllm", "serve") as process:
        output = process.communicate(timeout=20)[0].decode()
    assert (process.returncode, output) == (127, "notify-shim: /nowhere/vllm: No such file or directory\n")


def test_phases_are_those_of_the_tracker() -> None:
    """Over the journal of a real launch the shim tells the tracker's phases, in the tracker's order."""
    phases, track, told = Phases(shim_table()), PhaseTrack(), []
    for line in JOURNAL.read_text().splitlines():
        entry = parse_journal_entry(line)
        if entry.identifier == "systemd":
            continue
        phases.feed(entry.message)
        track.feed(parse_log_line(entry.message), entry.realtime_at)
        words = re.sub(r" \d+/\d+$", "", phases.words)
        told += [words] if words not in told[-1:] else []
    tracked = [span.title for span in track.spans]
    titles = [phase.title for phase in launch_phases()]
    serving = [title for title in tracked if titles.index(title) <= titles.index("serving")]
    assert told[-1] == "serving"
    assert [title for title in told if title != "starting"] == [title for title in serving if title != "importing"]


@pytest.mark.parametrize("truth", LABELLED, ids=lambda path: path.name.removesuffix(".truth.json"))
def test_phases_are_those_that_were_labelled(truth: Path) -> None:
    """Over logs of other releases, executors and collectors the shim's phases begin where a reader sees them."""
    labelled = json.loads(truth.read_text())
    phases, told = Phases(shim_table()), []
    for number, line in enumerate((CASES / labelled["journal"]).read_text().splitlines()):
        phases.feed(line)
        words = re.sub(r" \d+/\d+$", "", phases.words)
        told += [(words, number)] if not told or told[-1][0] != words else []
    wanted = [(launch_phase(row["phase"]).title, row["line"]) for row in labelled["phases"] if row["line"] >= 0]
    assert [row for row in told if row[0] != "starting"] == [row for row in wanted if row[0] != "first answer given"]


def test_a_line_that_was_said_before_is_no_news() -> None:
    """Time stamps and process ids apart, a repeated complaint moves nothing; a bar that goes on does."""
    phases = Phases(shim_table())
    for second in range(3):
        phases.feed(f"(EngineCore pid=7{second}) INFO 11-29 10:00:0{second} [shm.py:1] No block found in 60 seconds")
    assert phases.n_news == 1
    phases.feed("Loading safetensors checkpoint shards:   1% Completed | 1/125 [00:01<00:45,  1.6it/s]")
    phases.feed("Loading safetensors checkpoint shards:   2% Completed | 2/125 [00:02<00:44,  1.6it/s]")
    assert phases.n_news == 3
