"""Whether an engine's start moves, for the notify shim: news in its lines, or disks, processors and GPUs at work."""

import os
import subprocess
import time

from opslib.onhost.unit_processes import usage_of

BUSY_CORES = 0.05  # as the tracker's: less is a waiting process's housekeeping
READ_BYTES_PER_S = 1 << 20


class Movement:
    """Whether the engine's start moved lately: news in its lines, or disks, processors and GPUs at work."""

    def __init__(self, unit: str, nvidia_smi: str) -> None:
        self._unit, self._nvidia_smi = unit, nvidia_smi
        self._n_news = 0
        self._usage = usage_of(os.getpid(), unit)
        self._gpus = ""
        self.looked_at = self.at = time.monotonic()

    def look(self, n_news: int) -> None:
        """Compare with the last look."""
        now, usage = time.monotonic(), usage_of(os.getpid(), self._unit)
        past_s = max(0.001, now - self.looked_at)
        cores = (usage.cpu_s - self._usage.cpu_s) / past_s
        read = ((usage.read_bytes or 0) - (self._usage.read_bytes or 0)) / past_s
        if n_news > self._n_news or cores > BUSY_CORES or read > READ_BYTES_PER_S or self._gpus_moved():
            self.at = now
        self._n_news, self._usage, self.looked_at = n_news, usage, now

    def _gpus_moved(self) -> bool:
        """Asked only where nothing else moves: one nvidia-smi costs more than all the rest."""
        if not self._nvidia_smi or not os.environ.get("CUDA_VISIBLE_DEVICES"):
            return False
        query = ["--query-gpu=memory.used,utilization.gpu", "--format=csv,noheader,nounits"]
        chosen = ["--id=" + os.environ["CUDA_VISIBLE_DEVICES"]]
        try:
            answer = subprocess.run(
                [self._nvidia_smi, *query, *chosen],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=10,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        before, self._gpus = self._gpus, answer.stdout.decode("utf-8", "replace") if answer.returncode == 0 else ""
        is_busy = any(line.rpartition(",")[2].strip() not in ("", "0") for line in self._gpus.splitlines())
        return bool(self._gpus) and (is_busy or (bool(before) and before != self._gpus))
