"""papermill on this interpreter's own kernel: each save redacted, an end in order on request."""

import json
import logging
import os
import signal
import tempfile
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from papermill import execute_notebook
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import Engine, papermill_engines
from papermill.iorw import papermill_io

from opslib.records.folder import RunFolder
from opslib.rehearsal.leftovers import PREFIX, hold

SCHEME = "opslib-record:"
ENGINE = "opslib"
WAKE_EVERY_S = 1.0
EXIT_S = 20.0  # for what the kernel closes at its exit: connections, a rehearsal host
_open_folders: dict[str, RunFolder] = {}


class Stopped(Exception):  # noqa: N818 - what happened, and on request
    """The run was asked to end before its next cell."""


class KernelControl:
    """Ends the kernel of one run on request: first the cell, after a grace the process."""

    def __init__(self) -> None:
        self.stopped_by = ""
        self.process_id: int | None = None
        self.connection_file = ""
        self._stopped_at = 0.0
        self._woken_at = 0.0

    def stop(self, reason: str) -> None:
        """Interrupt the running cell, and let no other begin; a second call kills the kernel."""
        if self.stopped_by:
            self._signal(signal.SIGKILL)
            return
        self.stopped_by = reason
        self._stopped_at = time.monotonic()
        self._signal(signal.SIGINT)

    def keep_stopping(self, grace_s: float) -> None:
        """To be called now and then: wake a cell that awaits, kill the kernel `grace_s` after it was asked to stop."""
        if not self.stopped_by:
            return
        now = time.monotonic()
        if now - self._stopped_at > grace_s:
            self._signal(signal.SIGKILL)
        elif now - self._woken_at > WAKE_EVERY_S:
            self._woken_at = now
            self._wake()

    def _wake(self) -> None:
        """Send the kernel any message: its SIGINT handler (ipykernel 7.4) waits for the event loop's next turn."""
        if not Path(self.connection_file).is_file():
            return
        client = BlockingKernelClient(connection_file=self.connection_file)
        client.load_connection_file()
        client.shell_channel.start()
        client.kernel_info()
        time.sleep(0.1)  # closing drops what isn't sent yet
        client.stop_channels()

    def _signal(self, number: signal.Signals) -> None:
        """Signal the kernel alone, not its process group: a rehearsal host ends with it in its own way."""
        if self.process_id is not None:
            with suppress(ProcessLookupError):
                os.kill(self.process_id, number)


def execute_runbook(
    notebook: Path,
    parameters: dict[str, Any],
    folder: RunFolder,
    control: KernelControl,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Execute `notebook` into the folder, with more variables for its kernel.

    Raises what papermill raises, the record being saved by then.
    """
    place = f"{SCHEME}{folder.notebook_path}"
    _open_folders[place] = folder
    with tempfile.TemporaryFile() as log:
        try:
            execute_notebook(
                str(notebook),
                place,
                parameters=parameters,
                engine_name=ENGINE,
                kernel_name="python3",
                language="python",
                progress_bar=False,
                control=control,
                start_options={"env": {**_environment(folder), **(environment or {})}, "stdout": log, "stderr": log},
            )
        finally:
            del _open_folders[place]
            _keep_log(log, folder)


def _environment(folder: RunFolder) -> dict[str, str]:
    return {
        **os.environ,
        "OPSLIB_RUN_DIR": str(folder.path),
        "OPSLIB_HEADLESS": "1",
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # else the debugger writes a warning at each start
    }


def _keep_log(log: Any, folder: RunFolder) -> None:
    """What the kernel process itself wrote, where it wrote anything."""
    log.seek(0)
    text = log.read().decode("utf-8", "replace")
    if text.strip():
        folder.write_text("kernel.log", text)


class _OwnKernelSpecs(KernelSpecManager):
    """Knows only the kernel of the running interpreter, whatever kernelspecs are installed."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.kernel_dirs = []


class _OwnKernelManager(AsyncKernelManager):
    """Speaks to its kernel through sockets in a directory that only this user can enter, not over TCP."""

    def __init__(self, **options: Any) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True)
        weakref.finalize(self._directory, os.close, hold(Path(self._directory.name)))
        own = {"transport": "ipc", "connection_file": f"{self._directory.name}/kernel.json"}
        super().__init__(kernel_spec_manager=_OwnKernelSpecs(), **own, **options)


class _Client(PapermillNotebookClient):  # type: ignore[misc]
    """papermill's client that tells the kernel's process id and starts no cell once it was asked to end."""

    def __init__(self, nb_man: Any, *, control: KernelControl, **options: Any) -> None:
        super().__init__(nb_man, kernel_manager_class=_OwnKernelManager, **options)
        self.control = control

    def execute_cell(self, *args: Any, **options: Any) -> Any:
        self.control.process_id = getattr(self.km.provisioner, "pid", None)
        self.control.connection_file = self.km.connection_file
        if self.control.stopped_by:
            raise Stopped(self.control.stopped_by)
        return super().execute_cell(*args, **options)

    def _cleanup_kernel(self) -> None:
        """Let the kernel leave by itself first, so that what it registered to be closed at exit is closed.

        On a shutdown request ipykernel (7.4) signals all processes of its group, a rehearsal host among them, and waits
        for those that it has not reaped until it is killed.
        """
        process = getattr(getattr(self.km, "provisioner", None), "process", None)
        if process is not None and self.kc is not None:
            self.kc.execute("exit()", silent=True, store_history=False)
            deadline = time.monotonic() + EXIT_S
            while process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.02)
        super()._cleanup_kernel()


class _OwnEngine(Engine):  # type: ignore[misc]
    @classmethod
    def execute_managed_notebook(cls, nb_man: Any, kernel_name: str, **options: Any) -> None:
        client = _Client(
            nb_man,
            control=options["control"],
            kernel_name=kernel_name,
            startup_timeout=options.get("start_timeout", 60),
            timeout=None,
        )
        client.execute(**options["start_options"])


def _without_places(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with papermill's note of where it was read and written cut to names: a record may be passed on."""
    noted = notebook["metadata"].get("papermill", {})
    noted |= {name: Path(noted[name]).name for name in ("input_path", "output_path") if noted.get(name)}
    return notebook


class _RecordHandler:
    """Where papermill saves: redacted, by atomic replace."""

    def read(self, place: str) -> str:
        return Path(place.removeprefix(SCHEME)).read_text("utf-8")

    def listdir(self, place: str) -> list[str]:
        return [str(path) for path in Path(place.removeprefix(SCHEME)).iterdir()]

    def write(self, text: str, place: str) -> None:
        folder = _open_folders[place]
        folder.write_notebook(_without_places(json.loads(text)))

    def pretty_path(self, place: str) -> str:
        return place.removeprefix(SCHEME)


logging.getLogger("papermill").setLevel(logging.ERROR)  # names and types were checked; its warnings would only repeat
papermill_engines.register(ENGINE, _OwnEngine)
papermill_io.register(SCHEME, _RecordHandler())
