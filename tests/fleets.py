"""Fleets to roll out over: practice hosts whose engines load fast, with an earlier deploy that serves."""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from opslib.cli.main import call
from opslib.domain.host import HostSettings
from opslib.domain.rollout import HostStep
from opslib.records.rollout import RolloutFolder
from opslib.records.tail import EventTail
from opslib.rehearsal.fleet import RehearsalFleet
from opslib.workflow import lifecycle
from opslib.workflow.install import read_unit_text
from opslib.workflow.unit_found import is_serving
from tests.conftest import opened
from tests.workflow.test_lifecycle_hosts import FLAGS, UNIT, install

LIGHT = {"concurrency_levels": "[1]", "benchmark_repeats": 1, "output_tokens": 4, "requests_per_stream": 1}
SHARD = "model-00042-of-00125.safetensors"
OLD_FLAGS = f"{FLAGS} --max-num-seqs 128"


def light_words() -> list[str]:
    """A benchmark of a few requests, on the command line."""
    return [word for name, value in LIGHT.items() for word in ("-p", f"{name}={value}")]


def serve_old(settings: HostSettings) -> None:
    """An earlier deploy that serves."""
    install(settings, OLD_FLAGS)
    with opened(settings) as host:
        report = lifecycle.start(host, UNIT, tell=lambda _text: None)
        assert report.state == "ok", report


def prepare(fleet: RehearsalFleet, monkeypatch, *, serving=()) -> None:
    """Engines that load fast; the earlier deploy serves on the hosts with these numbers; commands know the inventory."""
    monkeypatch.setenv("OPSLIB_HOSTS", str(fleet.inventory))
    for host in fleet.hosts:  # what `hurry` does, without a connection
        path = host.root / "opt/vllm/share/rehearsal.json"
        known = json.loads(path.read_text())
        path.write_text(json.dumps({**known, "clock_factor": known["clock_factor"] * 10}))
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(serve_old, [fleet.hosts[number - 1].settings for number in serving]))


def unit_texts(settings) -> dict[str, str | None]:
    """The unit as it lies on each host, by alias."""
    texts = {}
    for each in settings:
        if each.is_rehearsal:  # its files are here
            path = Path(each.unit_dir, f"{UNIT}.service")
            texts[each.alias] = path.read_text() if path.exists() else None
            continue
        with opened(each) as host:
            texts[each.alias] = read_unit_text(host, UNIT)
    return texts


def serving(settings) -> dict[str, bool]:
    """Whether the unit serves, by alias."""
    found = {}
    for each in settings:
        with opened(each) as host:
            found[each.alias] = is_serving(host, UNIT)
    return found


def lose_shard(fleet: RehearsalFleet, number: int) -> None:
    """A shard of this host's checkpoint gets lost."""
    _shard(fleet, number).unlink()


def bring_shard(fleet: RehearsalFleet, number: int) -> None:
    """The lost shard is downloaded again."""
    os.link(fleet.root / "checkpoint" / SHARD, _shard(fleet, number))


def _shard(fleet: RehearsalFleet, number: int) -> Path:
    return Path(fleet.hosts[number - 1].settings.models_dir, "minimax-m2-230b-fp8", SHARD)


def rollout(capsys, *words: str) -> dict:
    """One `opslib rollout`, in this process: its JSON document."""
    capsys.readouterr()
    code = call(["rollout", *words, "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["exit_code"] == code, told
    assert "error" not in told, told
    return told


def steps(told: dict) -> dict[str, str]:
    """Where each host stands at the end."""
    return {host["host"]: host["step"] for host in told["hosts"]}


class Command:
    """One `opslib rollout` in a process of its own, watched through its folder."""

    def __init__(self, runs_dir, *words):
        self.runs_dir = runs_dir
        command = [sys.executable, "-m", "opslib.cli", "rollout", *words, "--json"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=os.environ)

    def wait_for(self, alias, section):
        """Come back when the run on this host has begun a section; False where the rollout has ended before."""
        tail, record = None, ""
        while self.process.poll() is None:
            time.sleep(0.1)
            folders = sorted(self.runs_dir.glob("*-rollout-*/state.jsonl"))
            if not folders:
                continue
            progress = RolloutFolder.open(self.runs_dir, str(folders[-1].parent)).state().host(alias)
            if progress.step is not HostStep.RUNNING or not progress.record:
                continue
            if progress.record != record:
                record = progress.record
                tail = EventTail(self.runs_dir / record)
            if any(event.get("section") == section for event in tail.read()):
                return True
        return False

    def end(self):
        """Its JSON document."""
        return json.loads(self.process.communicate(timeout=600)[0])

    def __enter__(self):
        return self

    def __exit__(self, *_how):
        """Whatever has happened, nothing is left running."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(90)
