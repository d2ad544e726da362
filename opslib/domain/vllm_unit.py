"""The unit that the kit installs for a vLLM engine."""

from collections.abc import Mapping, Sequence

from opslib.domain.states import Value
from opslib.domain.unit_file import render_exec_start
from opslib.domain.unit_words import quote_word

_MARGIN_S = 60  # between the guard giving up by itself and systemd giving up on it
_SLOW_DISK_BYTES_S = 200e6  # a network file system at its worst
_WARMING_S = 900  # imports, compiling, profiling, capturing graphs, on a cold cache


class GuardSettings(Value):
    """How the GPU guard is run before the engine: by which Python, from where, and what it waits for."""

    python: str
    path: str
    required_free_gib: float
    wait_s: int = 300
    nvidia_smi: str | None = None  # default: found through PATH

    def argv(self, gpus: Sequence[int]) -> tuple[str, ...]:
        """The guard's command line, limited to `gpus`."""
        program = (self.python,) if self.python.startswith("/") else ("/usr/bin/env", self.python)
        indices = ",".join(str(gpu) for gpu in gpus)
        limits = ("--gpus", indices, "--required-free-gib", f"{self.required_free_gib:g}", "--wait-s", str(self.wait_s))
        return (*program, self.path, *limits, *(("--nvidia-smi", self.nvidia_smi) if self.nvidia_smi else ()))


def render_vllm_unit(
    *,
    unit: str,
    vllm: str,
    model_path: str,
    flags: Sequence[str],
    gpus: Sequence[int] = (),
    guard: GuardSettings | None = None,
    environment: Mapping[str, str] | None = None,
    environment_file: str | None = None,
    user: str | None = None,
    notify: Sequence[str] = (),
    model_bytes: int = 0,
) -> str:
    """The text of a unit that serves one model; with no `gpus` (CPU engine) neither guard nor CUDA variables.

    Every option is known to systemd 252. The start-up limit ends a crash loop after ten starts in half an hour.
    `notify` is the command line of a program that runs the engine and tells systemd when it is ready; without it a
    start is over when the engine's program has begun.
    """
    variables = {"PYTHONUNBUFFERED": "1", **_gpu_variables(gpus), **(environment or {})}
    guard_line = guard and gpus and "ExecStartPre=" + " ".join(quote_word(word) for word in guard.argv(gpus))
    wait_s = guard.wait_s if guard and gpus else 0
    start_s = start_timeout_s(wait_s, model_bytes=model_bytes, is_notify=bool(notify))
    lines = [
        "[Unit]",
        f"Description=vLLM engine {unit.removesuffix('.service')}: {model_path.replace('%', '%%')}",
        "After=network-online.target nvidia-persistenced.service",
        "Wants=network-online.target",
        "StartLimitIntervalSec=1800",
        "StartLimitBurst=10",
        "",
        "[Service]",
        *(
            ["Type=notify", "NotifyAccess=main", f"SyslogIdentifier={vllm.rpartition('/')[2]}"]
            if notify
            else ["Type=exec"]
        ),
        *([f"User={user}"] if user else []),
        *(f"Environment={quote_word(f'{name}={value}', is_command=False)}" for name, value in variables.items()),
        *([f"EnvironmentFile={environment_file}"] if environment_file else []),
        *([guard_line] if guard_line else []),
        render_exec_start([*notify, vllm, "serve", model_path, *flags]).rstrip("\n"),
        # When its engine core is killed, vLLM ends with status 0: no failure to systemd, but one to the shim.
        "Restart=on-failure" if notify else "Restart=always",
        "RestartSec=5",
        f"TimeoutStartSec={start_s}",
        "TimeoutStopSec=60",
        "KillMode=control-group",
        "OOMPolicy=kill",  # a worker that the kernel killed takes the others with it: none holds a GPU alone
        "LimitNOFILE=1048576",
        "LimitMEMLOCK=infinity",
        "LogRateLimitIntervalSec=1s",
        "LogRateLimitBurst=1000000",  # 0 would not switch the limit off: systemd takes it as not set
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    ]
    return "\n".join(lines) + "\n"


def start_timeout_s(wait_s: int, *, model_bytes: int = 0, is_notify: bool = False) -> int:
    """TimeoutStartSec in seconds: the guard's wait, and with Type=notify the load of the model from a slow disk.

    With Type=exec the start is over when the program runs (systemd.service(5)), so the load doesn't count.

    >>> start_timeout_s(300), start_timeout_s(300, model_bytes=215 * 10**9, is_notify=True)
    (360, 2335)
    """
    return wait_s + _MARGIN_S + (_WARMING_S + round(model_bytes / _SLOW_DISK_BYTES_S) if is_notify else 0)


def start_timeout_words(wait_s: int, *, model_bytes: int) -> str:
    """What a start under Type=notify is given, and what that is made of.

    >>> start_timeout_words(300, model_bytes=215 * 10**9)
    'a start is given 2335 s: guard 360 s, 215.0 GB of weights at 200 MB/s 1075 s, warming up 900 s; longer if it moves'
    """
    load_s = round(model_bytes / _SLOW_DISK_BYTES_S)
    parts = f"guard {wait_s + _MARGIN_S} s, {model_bytes / 1e9:.1f} GB of weights at 200 MB/s {load_s} s"
    total_s = start_timeout_s(wait_s, model_bytes=model_bytes, is_notify=True)
    return f"a start is given {total_s} s: {parts}, warming up {_WARMING_S} s; longer if it moves"


def render_environment_file(variables: Mapping[str, str]) -> str:
    r"""The text of an EnvironmentFile= (systemd.exec(5)) that gives each variable its value unchanged.

    >>> print(render_environment_file({"HF_TOKEN": 'a"b$c'}), end="")
    HF_TOKEN="a\"b\$c"
    """
    escaped = str.maketrans({character: f"\\{character}" for character in '"\\`$'})
    return "".join(f'{name}="{value.translate(escaped)}"\n' for name, value in variables.items())


def _gpu_variables(gpus: Sequence[int]) -> dict[str, str]:
    """CUDA counts GPUs as nvidia-smi does only in PCI_BUS_ID order."""
    if not gpus:
        return {}
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(str(gpu) for gpu in gpus)}
