"""A record folder for questions that change nothing: what was found is worth more than the record of it."""

import shutil
from collections.abc import Iterable, Mapping
from datetime import datetime
from errno import EDQUOT, ENOSPC
from pathlib import Path
from typing import Any

from opslib.errors import CouldNotFindOut, Refused
from opslib.records.folder import RECORD_FILE, RunFolder


class LenientFolder(RunFolder):
    """Raises nothing where a file can't be written (a full disk): it notes the loss, for whoever tells the answer."""

    loss = ""  # the first file that could not be written, and why

    @classmethod
    def create(
        cls,
        runs_dir: Path,
        host: str,
        unit: str,
        runbook: str,
        started_at: datetime,
        *,
        secrets: Iterable[str] = (),
    ) -> "LenientFolder":
        """A new folder, or on a full disk one that keeps nothing; raises Refused for a place that is wrong."""
        try:
            made = super().create(runs_dir, host, unit, runbook, started_at, secrets=secrets)
        except Refused as error:
            if getattr(error.__cause__, "errno", None) not in {ENOSPC, EDQUOT}:
                raise
            made = cls(runs_dir.absolute() / "not-kept", secrets=secrets)
            assert isinstance(made, cls)
            made.loss = error.message
        assert isinstance(made, cls)
        return made

    def append_event(self, event: Mapping[str, Any]) -> None:
        """Add one line to the event file, or note that it could not be added."""
        try:
            super().append_event(event)
        except CouldNotFindOut as error:
            self.loss = self.loss or error.message

    def say_loss(self) -> str:
        """That the record could not be kept, where, why, and what to do; "" for one that was kept whole.

        A folder without a record is taken away: nothing would find it.
        """
        if not self.loss:
            return ""
        is_begun = (self.path / RECORD_FILE).is_file()
        if not is_begun:
            shutil.rmtree(self.path, ignore_errors=True)
        left = f"; what there was room for is in {self.path}" if is_begun else ""
        place = self.path.parent
        hint = f"make room (`df -h {place}`), or name another place with --runs-dir or $OPSLIB_RUNS, and ask again"
        return f"the record could not be kept: {self.loss}{left}. Next: {hint}"

    def _write(self, name: str, content: bytes) -> Path:
        try:
            return super()._write(name, content)
        except CouldNotFindOut as error:
            self.loss = self.loss or error.message
            return self.path / name
