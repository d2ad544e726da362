"""What one host is compared by: facts in areas, each a value, not known, or nothing that applies."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from opslib.domain.drift_reading import DriftReading, DriftUnit, ModelReading, ProcessReading
from opslib.domain.facts.gpu import parse_gpu_memory
from opslib.domain.states import Value
from opslib.domain.unit_words import group_by_flag
from opslib.domain.vllm_flags import read_flag_name
from opslib.errors import UnexpectedAnswer

_GIB = 2**30
# of /proc/PID/limits; processes and signals follow from the size of the machine's memory
LIMITS = {
    "open files": "NOFILE",
    "locked memory": "MEMLOCK",
    "core file size": "CORE",
    "stack size": "STACK",
    "address space": "AS",
    "cpu time": "CPU",
    "file size": "FSIZE",
}
# what systemd, sshd or a practice host give each process of its own
_GIVEN = frozenset(
    {
        *("INVOCATION_ID", "JOURNAL_STREAM", "SYSTEMD_EXEC_PID", "MAINPID", "MANAGERPID", "NOTIFY_SOCKET"),
        *("WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "CREDENTIALS_DIRECTORY"),
        *("MEMORY_PRESSURE_WATCH", "MEMORY_PRESSURE_WRITE", "HOSTNAME", "PWD", "OLDPWD", "SHLVL", "_"),
        *("OPSLIB_LOOPBACK", "OPSLIB_CGROUP"),
    }
)


class Area(Value):
    """Facts of one kind about one host: values by name; what could not be read, by name or as a whole.

    `is_present` is False where the area does not apply, as the limits of a process that does not run.
    """

    values: Mapping[str, str] = {}
    unread: Mapping[str, str] = {}  # name -> why
    problem: str = ""  # why nothing of it is known
    is_present: bool = True


Key = tuple[str, str]  # unit ("" for the host itself), area


class HostFacts(Value):
    """All facts of one host; where it could not be asked, why."""

    host: str
    problem: str = ""
    areas: Mapping[Key, Area] = {}
    units: tuple[str, ...] = ()


def facts_of(host: str, reading: DriftReading) -> HostFacts:
    """What a host's reading comes to as facts."""
    areas: dict[Key, Area] = {("", "host"): _host_area(reading)}
    units = tuple(unit for unit in reading.units if unit.load_state not in {"not-found", ""} or unit.problem)
    for unit in units:
        areas |= {(_name(unit), area): facts for area, facts in _unit_areas(unit)}
    areas["", "units"] = Area(
        values={_name(unit): "installed" for unit in units}, problem=" ".join(reading.units_problem.split())
    )
    return HostFacts(host=host, areas=areas, units=tuple(_name(unit) for unit in units))


def _name(unit: DriftUnit) -> str:
    return unit.id.removesuffix(".service")


def _host_area(reading: DriftReading) -> Area:
    values = {"kernel": reading.identity.kernel, "Python": reading.identity.python_version}
    unread: dict[str, str] = {}
    engine = reading.engine
    values["vLLM"] = engine.version if engine else ""
    values["engine's Python"] = engine.python if engine else ""
    why = engine.problem if engine else "the engine's directory does not answer"
    unread |= {name: why or "not known" for name in ("vLLM", "engine's Python") if not values[name]}
    gpus = _gpus(reading)
    values |= gpus.values
    unread |= gpus.unread
    return Area(values={name: value for name, value in values.items() if value}, unread=unread)


def _gpus(reading: DriftReading) -> Area:
    answer = reading.gpus
    if answer is not None and (answer.problem == "missing" or answer.exit_status == 127):
        return Area(values={"GPUs": "none: there is no nvidia-smi", "driver": "none"})
    said = " ".join((answer.error or answer.text).split())[:120] if answer else "nvidia-smi never came back"
    if answer is None or answer.problem or answer.exit_status != 0:
        return Area(unread=dict.fromkeys(("GPUs", "driver"), said))
    try:
        gpus = parse_gpu_memory(answer.text)
    except UnexpectedAnswer as error:
        return Area(unread=dict.fromkeys(("GPUs", "driver"), error.message))
    kinds = Counter(f"{gpu.name} {gpu.memory_total_bytes / _GIB:.1f} GiB" for gpu in gpus)
    words = ", ".join(f"{n} x {kind}" for kind, n in sorted(kinds.items())) or "none"
    return Area(values={"GPUs": words, "driver": ", ".join(sorted({gpu.driver_version for gpu in gpus})) or "none"})


def _unit_areas(unit: DriftUnit) -> Iterator[tuple[str, Area]]:
    process = unit.process
    yield "state", Area(values={"active_state": unit.active_state} if not unit.problem else {}, problem=unit.problem)
    yield "settings", Area(values=_settings(unit.settings), problem=unit.problem)
    yield "unit's flags", Area(values=flags_of(unit.argv), problem=unit.problem)
    yield "flags", Area(values=flags_of(process.argv) if process else {}, is_present=process is not None)
    yield "unit's variables", Area(values=unit.environment, problem=unit.problem or unit.environment_problem)
    yield "variables", _variables(process, unit.environment)
    yield "limits", _limits(process)
    yield "model", _model(unit.model)


def _settings(rows: Iterable[tuple[str, str, str]]) -> dict[str, str]:
    """Values by [section] key; a key that is given more than once has all of them, in their order."""
    found: dict[str, list[str]] = {}
    for section, key, value in rows:
        found.setdefault(f"[{section}] {key}", []).append(value)
    return {name: "; ".join(values) for name, values in found.items()}


def flags_of(argv: Sequence[str]) -> dict[str, str]:
    """An engine's flags under their canonical names; its program and its model as "program" and "model path".

    An interpreter before the program is left out.

    >>> flags_of(["/v/bin/python", "/v/bin/vllm", "serve", "/m", "--max_num_seqs=256", "--enforce-eager"])
    {'program': '/v/bin/vllm serve', 'model path': '/m', '--max-num-seqs': '256', '--enforce-eager': 'set'}
    """
    lines = group_by_flag(_without_interpreter(argv))
    at = next((index for index, line in enumerate(lines) if line and line[0].startswith("-")), len(lines))
    plain = [word for line in lines[:at] for word in line]
    found: dict[str, str] = {}
    if "serve" in plain:
        cut = plain.index("serve") + 1
        found = {"program": " ".join(plain[:cut])} | ({"model path": " ".join(plain[cut:])} if plain[cut:] else {})
    elif plain:
        found = {"program": " ".join(plain)}
    for line in lines[at:]:
        flag = read_flag_name(line[0])
        head, equals, inline = line[0].partition("=")
        name = (f"--no-{flag.name[2:]}" if flag.is_negated else flag.name) if flag else head
        found[name] = " ".join([inline] if equals else line[1:]) or "set"
    return found


def _without_interpreter(argv: Sequence[str]) -> list[str]:
    """The command line from the program on, as a script's first line made it longer."""
    words = list(argv)
    while len(words) > 1 and words[0].rpartition("/")[2].startswith(("python", "env")):
        words = words[1:]
        while len(words) > 1 and words[0].startswith("-") and words[0] != "-m":
            words = words[1:]
    return words[1:] if words[:1] == ["-m"] else words


def _variables(process: ProcessReading | None, declared: Mapping[str, str]) -> Area:
    """The process's variables, but for those that systemd makes anew for each."""
    if process is None:
        return Area(is_present=False)
    kept = {name: value for name, value in process.environment.items() if name in declared or name not in _GIVEN}
    return Area(values=kept, problem=process.environment_problem)


def _limits(process: ProcessReading | None) -> Area:
    if process is None:
        return Area(is_present=False)
    if not process.limits:
        return Area(problem="the limits of the process may not be read")
    return Area(values={word: process.limits[name] for name, word in LIMITS.items() if name in process.limits})


def _model(model: ModelReading | None) -> Area:
    if model is None:
        return Area(is_present=False)
    if model.problem:
        return Area(problem=model.problem)
    values = {"model": model.model_digest, "model config": model.config_digest, "chat template": model.template}
    values |= {"generation config": model.generation_digest, "weights' content": model.content}
    unread = {"chat template": model.template_problem} if model.template_problem else {}
    if not model.content:
        unread["weights' content"] = f"{model.n_hashed} of {model.n_files} weight files have a receipt that holds"
    absent = dict.fromkeys(("chat template", "model config", "generation config"), "none")
    return Area(values={**absent, **{name: value for name, value in values.items() if value}}, unread=unread)
