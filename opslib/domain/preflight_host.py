"""Checks of everything around the GPUs before a launch: port, engine, flags, model, disks, memory, limits, lock."""

from opslib.domain.facts.ports import Listener, parse_listeners
from opslib.domain.flag_known import flags_of, is_known, no_such_flag
from opslib.domain.lock import lock_held, read_holder
from opslib.domain.preflight_look import GIB, Look, PreflightCheck, critical, ok, unknown, warning
from opslib.domain.survey import Filesystem
from opslib.domain.survey_checks import CLOCK_S, SHM_BYTES
from opslib.domain.survey_gpus import first_remedy
from opslib.errors import UnexpectedAnswer

_CACHE_BYTES = 5 * GIB  # torch.compile and Triton keep 1-3 GiB for a large model
_OPEN_FILES = 65_535  # vllm/utils: set_ulimit asks for as many
_LOCKED_BYTES = 64 * 2**20
_RANK_BYTES = 3 * GIB  # resident memory of one worker process; observed 2-4 GiB with vLLM 0.10 to 0.15
_ANY = frozenset({"0.0.0.0", "*", "[::]", "::", ""})  # noqa: S104 - compared with, never bound


def check_port(look: Look) -> PreflightCheck:
    """Is the port free, or held by the unit itself?"""
    port, answer = look.wanted.port, look.reading.survey.answer("listeners")
    if answer.exit_status != 0:
        return unknown(f"who listens on port {port} is not known: ss {answer.error or answer.problem}".strip())
    try:
        found = [listener for listener in parse_listeners(answer.text) if listener.port == port]
    except UnexpectedAnswer as error:
        return unknown(f"who listens on port {port} is not known: {error.message}")
    others = [listener for listener in found if not _is_own_listener(look, listener)]
    if not others:
        return ok(f"port {port} is held by the unit itself" if found else f"port {port} is free")
    named = next((listener for listener in others if listener.pid), others[0])
    who = f"{named.process_name} (pid {named.pid}, on {named.address})"
    who = who if named.pid else f"somebody (on {named.address})"
    cause, words = "configuration/port-in-use", f"Port {port} is held by {who}"
    if look.wanted.may_move_port:
        return warning(words, "the runbook may move to a free one", cause=cause)
    return critical(words, "end that program, or choose another `port`", cause=cause)


def _is_own_listener(look: Look, listener: Listener) -> bool:
    survey = look.reading.survey
    units = {process.pid: process.unit.removesuffix(".service") for process in survey.processes}
    if listener.pid is not None:
        return units.get(listener.pid) in look.own_units
    return any(unit.port == listener.port and unit.main_pid for unit in survey.units)  # nobody may see who it is


def check_engine(look: Look) -> PreflightCheck:
    """Is the engine's program there?"""
    engine, version = look.reading.engine, look.reading.survey.engine
    if engine is None:
        return unknown("the engine's program could not be looked at")
    if not engine.is_program:
        return critical(
            f"the engine is not there: {version.problem or 'its program can not be run'}",
            "install vLLM, or name its program by `vllm` in hosts.toml",
            cause="systemd/exec-failed",
        )
    return ok(f"vLLM {version.version}" if version.version else f"its program is there; {version.problem}")


def check_flags(look: Look) -> PreflightCheck:
    """Does the *installed* engine know every flag that it is given?"""
    known = set(look.reading.engine.flags) if look.reading.engine else set()
    given = flags_of(look.wanted.flags)
    if not given:
        return ok("no flags are given")
    if not known:
        return unknown("which flags the installed engine knows is not known: its sources are not there")
    strange = [flag for flag in given if not is_known(flag, known)]
    if not strange:
        return ok(f"the installed engine knows all {len(given)} flags")
    return critical(no_such_flag(strange, known), "correct `extra_args`", cause="configuration/bad-argument")


def check_model(look: Look) -> PreflightCheck:
    """Is the model there, and may the unit's user read it?"""
    places = look.reading.places
    if places is None:
        return unknown("the model's directory gave no answer (a network file system that hangs?)")
    model = places.model
    if not look.wanted.model_path or model.problem == "is no path on this host":
        return unknown(f"{model.path or 'the model'} is no path on this host: the engine would look it up by itself")
    if model.problem:
        return critical(f"{model.path}: {model.problem}", "download it, then 10-verify-download", cause=_MISSING)
    if not model.n_files:
        return critical(f"{model.path} is empty", "download it, then 10-verify-download", cause=_MISSING)
    if model.n_unreadable:
        words = f"{places.user} may not read {model.n_unreadable} of {model.n_files} files of {model.path}"
        step = f"let {places.user} read them, and enter every directory above (namei -l shows them)"
        return critical(words, step, *model.unreadable, cause="environment/permission-denied")
    return ok(f"{places.user} may read all {model.n_files} files, {model.size_bytes / GIB:,.1f} GiB")


_MISSING = "checkpoint/missing-file"


def check_receipt(look: Look) -> PreflightCheck:
    """Are the model's files those that were hashed?"""
    model = look.reading.places.model if look.reading.places else None
    if model is None or model.problem:
        return unknown("the model could not be looked at")
    found, step = model.receipts, f"opslib verify {look.host} {model.path} --level digest"
    if found is None:
        return unknown("no receipt: its bytes were never compared with what was published", step)
    kept = f"{found.kept_at:%Y-%m-%d %H:%M} UTC"
    if found.n_changed:
        words = f"{found.n_changed} of {model.n_files} files have changed since they were hashed ({kept})"
        return warning(words, step)
    return ok(f"{found.n_fresh} of {model.n_files} files are as they were when they were hashed ({kept})")


def check_disk(look: Look) -> PreflightCheck:
    """Is there room for what the engine writes: compile caches, temporary files, logs?"""
    places = look.reading.places
    if places is None:
        return unknown("the disks gave no answer")
    asked = [("caches", places.cache, _CACHE_BYTES), ("/tmp", places.tmp, GIB)]  # noqa: S108 - a name
    asked.append(("/", look.reading.survey.filesystems.get("root", Filesystem(path="/", problem="not asked")), GIB))
    for name, disk, least in asked:
        if disk.problem:
            return unknown(f"{disk.path}: {disk.problem}")
        words = f"{disk.path} ({name}): {disk.free_bytes / GIB:,.1f} GiB free"
        if disk.free_bytes < least / 10:
            return critical(words, first_remedy("environment/disk-full"), cause="environment/disk-full")
        if disk.free_bytes < least:
            return warning(words, first_remedy("environment/disk-full"), cause="environment/disk-full")
    return ok(", ".join(f"{disk.path}: {disk.free_bytes / GIB:,.1f} GiB free" for _, disk, _ in asked))


def check_shared_memory(look: Look) -> PreflightCheck:
    """Is /dev/shm large enough for the ranks to talk through?"""
    shm = look.reading.survey.filesystems.get("shm")
    if shm is None or shm.problem:
        return unknown(f"shared memory: {shm.problem if shm else 'not asked'}")
    words = f"{shm.free_bytes / GIB:,.1f} of {shm.total_bytes / GIB:,.1f} GiB free in {shm.path}"
    if shm.free_bytes >= SHM_BYTES or len(look.wanted.gpus) < 2:
        return ok(words)
    cause = "host-memory/shared-memory-too-small"
    return warning(f"{words}, and {len(look.wanted.gpus)} ranks talk through it", first_remedy(cause), cause=cause)


def check_memory(look: Look) -> PreflightCheck:
    """Is there main memory for the engine's processes; on the CPU, for the weights as well?"""
    memory = look.reading.survey.memory
    if not memory.total_bytes:
        return unknown("/proc/meminfo can't be read")
    places = look.reading.places
    n_ranks = max(1, len(look.wanted.gpus))
    weights = places.model.size_bytes if places and not look.wanted.gpus else 0
    needed = _RANK_BYTES * n_ranks + weights
    words = f"{memory.available_bytes / GIB:,.1f} of {memory.total_bytes / GIB:,.1f} GiB available"
    cause, step = "host-memory/oom-killed", "free some, or choose a smaller model"
    if weights > memory.total_bytes:
        return critical(f"{words}; the weights alone take {weights / GIB:,.1f}", step, cause=cause)
    if needed > memory.available_bytes:
        return warning(f"{words}; about {needed / GIB:,.1f} are wanted", "see what else runs there", cause=cause)
    return ok(words)


def check_limits(look: Look) -> PreflightCheck:
    """May the engine open enough files, and lock memory for its ranks?"""
    limits = look.reading.limits
    if not limits.nr_open:
        return unknown("what the kernel allows can't be read")
    wanted = look.wanted.max_open_files
    ceiling = limits.own.get("nofile", -1) if look.is_user_scope else limits.nr_open
    files = wanted if ceiling < 0 else min(wanted, ceiling)
    locked = limits.own.get("memlock", -1) if look.is_user_scope else -1
    if files < _OPEN_FILES:
        step = "raise LimitNOFILE of the unit, or fs.nr_open (of a user's units: /etc/security/limits.conf)"
        return warning(f"the engine may open {files:,} files; it asks for {_OPEN_FILES:,}", step)
    if look.wanted.gpus and 0 <= locked < _LOCKED_BYTES:
        step = f"raise memlock of {look.reading.survey.identity.user} in /etc/security/limits.conf, and log in anew"
        return warning(f"the engine may lock {locked // 2**20} MiB of memory, too little for its ranks", step)
    return ok(f"{files:,} open files, {'any' if locked < 0 else f'{locked / GIB:,.1f} GiB of'} locked memory")


def check_clock(look: Look) -> PreflightCheck:
    """Do the clocks of host and controller agree?"""
    clock = look.clock
    words = f"{abs(clock.offset_s):.2f} s {'ahead of' if clock.offset_s > 0 else 'behind'} this machine's"
    words += f", give or take {clock.uncertainty_s:.2f} s"
    if abs(clock.offset_s) - clock.uncertainty_s > CLOCK_S:
        return warning(words, "timedatectl on both: which of them is synchronised?")
    return ok(words)


def check_lock(look: Look) -> PreflightCheck:
    """Is somebody else at work on this unit?"""
    lock = look.reading.lock
    holder = read_holder(lock.holder)
    if not lock.is_held:
        if holder is not None and holder != look.wanted.holder:
            return warning(f"{holder.words} ended without freeing the lock", "see in its record what it left undone")
        return ok("nobody else is at work on the unit")
    if holder is not None and holder == look.wanted.holder:
        return ok("held by this run")
    refusal = lock_held(look.wanted.unit, holder, host=look.host, host_pid=lock.pid)
    return critical(refusal.message, refusal.hint)
