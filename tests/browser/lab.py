"""A real JupyterLab on a loopback port, over a copy of the notebooks, and a page of it in headless Chromium."""

import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from tests.rig.cache import RigUnavailable

ROOT = Path(__file__).parents[2]
CHROMIUM = "/usr/bin/chromium"
START_S = 60
CELL_S = 120  # no cell takes 15 s on an idle machine
SETTINGS = {
    "notebook-extension/tracker": {"windowingMode": "none"},  # every cell is on the page, also far below
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "docmanager-extension/plugin": {"autosave": False},
}
FLAGS = [  # none of Chromium's own connections
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
]


class Lab:
    """A running JupyterLab: its address, its token, and its root directory with `notebooks/` and `runs/`."""

    def __init__(self, root: Path, port: int, token: str) -> None:
        self.root, self.token = root, token
        self.address = f"http://127.0.0.1:{port}"

    def url(self, path: str, workspace: str) -> str:
        return f"{self.address}/lab/workspaces/{workspace}/tree/{path}?token={self.token}&reset"

    def get(self, path: str) -> Any:
        request = urllib.request.Request(f"{self.address}{path}", headers={"Authorization": f"token {self.token}"})
        with urllib.request.urlopen(request, timeout=5) as answer:
            return json.load(answer)

    def kept_record(self, runbook: str) -> Path:
        """The newest record of a runbook, once the server has kept the saved notebook and its page."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            pages = sorted(self.root.glob(f"runs/*-{runbook}/record.html"))
            if pages:
                return pages[-1].parent
            time.sleep(0.1)
        raise AssertionError(f"no page in {sorted(self.root.glob('runs/*'))}")

    def end_kernels(self) -> None:
        for session in self.get("/api/sessions"):
            url = f"{self.address}/api/sessions/{session['id']}"
            request = urllib.request.Request(url, method="DELETE", headers={"Authorization": f"token {self.token}"})
            urllib.request.urlopen(request, timeout=20).close()


@contextmanager
def running_lab(root: Path) -> Iterator[Lab]:
    """JupyterLab as `make lab` starts it, over a copy of the notebooks; raises RigUnavailable where it can't be."""
    if not Path(CHROMIUM).exists():
        raise RigUnavailable("no Chromium on this machine (make system-deps installs it)")
    shutil.copytree(ROOT / "notebooks", root / "notebooks", ignore=shutil.ignore_patterns(".*"))
    (root / "runs").mkdir(exist_ok=True)
    _write_settings(root / "etc/lab-settings")
    lab = Lab(root, _free_port(), secrets.token_hex(16))
    with (root / "lab.log").open("wb") as log:
        server = subprocess.Popen(
            _command(lab), cwd=root, env=_environment(root), stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            _wait_until_up(lab, server, root / "lab.log")
            yield lab
            lab.end_kernels()
        finally:
            server.terminate()
            server.wait(timeout=30)


def _command(lab: Lab) -> list[str]:
    told = subprocess.run(["make", "--dry-run", "lab"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    given = re.search(r"/jupyter lab (.*)$", told, re.MULTILINE)
    assert given, "the Makefile's target lab"
    port = lab.address.rpartition(":")[2]
    own = [f"--ServerApp.port={port}", "--ServerApp.ip=127.0.0.1", f"--IdentityProvider.token={lab.token}"]
    return [sys.executable, "-m", "jupyter", "lab", *given[1].split(), "--no-browser", "--allow-root", *own]


def _environment(root: Path) -> dict[str, str]:
    places = {
        "JUPYTER_CONFIG_DIR": root / "etc",
        "JUPYTER_RUNTIME_DIR": root / "etc/runtime",
        "JUPYTER_DATA_DIR": root / "etc/data",
        "JUPYTERLAB_SETTINGS_DIR": root / "etc/lab-settings",
        "JUPYTERLAB_WORKSPACES_DIR": root / "etc/workspaces",
        "IPYTHONDIR": root / "etc/ipython",
        "OPSLIB_NOTEBOOKS": root / "notebooks",
        "OPSLIB_RUNS": root / "runs",
    }
    here = {name: value for name, value in os.environ.items() if name not in {"OPSLIB_HEADLESS", "OPSLIB_RUN_DIR"}}
    return {**here, **{name: str(path) for name, path in places.items()}, "JUPYTER_PLATFORM_DIRS": "1"}


def _write_settings(place: Path) -> None:
    for name, values in SETTINGS.items():
        path = place / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))


def set_theme(root: Path, theme: str) -> None:
    """Choose JupyterLab's theme for pages that are opened from now on."""
    path = root / "etc/lab-settings/@jupyterlab/apputils-extension/themes.jupyterlab-settings"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"theme": theme}))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_up(lab: Lab, server: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        try:
            lab.get("/api/status")
        except OSError:
            assert server.poll() is None, log.read_text()[-2000:]
            time.sleep(0.1)
        else:
            return
    raise AssertionError(f"JupyterLab did not come up in {START_S} s: {log.read_text()[-2000:]}")


@contextmanager
def chromium() -> Iterator[Browser]:
    """Headless Chromium that talks to this machine only."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


class NotebookPage:
    """One notebook open in JupyterLab, driven as a person drives it."""

    def __init__(self, lab: Lab, page: Page, path: str, *, kernel: bool = True) -> None:
        self.lab, self.page, self.path = lab, page, path
        page.goto(lab.url(path, secrets.token_hex(4)))
        page.locator(".jp-Notebook .jp-Cell").first.wait_for(timeout=60_000)
        if kernel:
            expect(page.locator("#jp-bottom-panel, .jp-StatusBar-Widget, #jp-main-statusbar").first).to_contain_text(
                "| Idle", timeout=60_000
            )

    @property
    def cells(self) -> Locator:
        return self.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Notebook .jp-Cell")

    def cell(self, source: str) -> Locator:
        """The code cell whose source holds this text."""
        return self.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-CodeCell").filter(
            has=self.page.locator(".jp-InputArea", has_text=source)
        )

    def outputs(self, source: str) -> Locator:
        return self.cell(source).locator(".jp-Cell-outputWrapper")

    def start(self, source: str) -> Locator:
        """Select a cell and press Shift+Enter."""
        cell = self.cell(source)
        cell.locator(".jp-InputPrompt").first.click()
        self.page.keyboard.press("Shift+Enter")
        return cell

    def wait(self, source: str, timeout_s: float = CELL_S) -> None:
        prompt = self.cell(source).locator(".jp-InputPrompt").first
        expect(prompt).to_have_text(re.compile(r"\[\d+\]"), timeout=timeout_s * 1000)

    def run(self, source: str, timeout_s: float = CELL_S) -> None:
        self.start(source)
        self.wait(source, timeout_s)

    def button(self, source: str, name: str) -> Locator:
        return self.outputs(source).get_by_role("button", name=name, exact=True)

    def answer(self, source: str, button: str, timeout_s: float = CELL_S) -> None:
        """Run a cell that asks, press a button in its output, and wait for its end."""
        self.start(source)
        expect(self.button(source, button), f"in {self.told()}").to_be_visible(timeout=timeout_s * 1000)
        self.button(source, button).click()
        self.wait(source, timeout_s)

    def told(self) -> str:
        """What all cells show, for the message of a test that fails."""
        return "\n".join(self.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-OutputArea").all_inner_texts())

    def interrupt(self) -> None:
        """Interrupt the kernel by the keys I, I."""
        self.page.keyboard.press("i")
        self.page.keyboard.press("i")

    def field(self, name: str) -> Locator:
        return self.page.locator(f".opslib-field-{name} input, .opslib-field-{name} select")

    def type_in(self, name: str, text: str) -> None:
        self.field(name).fill(text)
        self.field(name).press("Enter")

    def choose(self, name: str, value: str) -> None:
        self.field(name).select_option(value)

    def save(self) -> None:
        self.page.keyboard.press("Escape")
        self.page.keyboard.press("Control+s")
        expect(self.page.locator(".jp-mod-current.jp-mod-dirty, .lm-mod-current.jp-mod-dirty")).to_have_count(0)
        time.sleep(0.5)
