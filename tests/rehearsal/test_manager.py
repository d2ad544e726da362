"""The unit manager: syntax of unit files, restart rules, and what a real process tree goes through."""

import asyncio
import time
from math import inf
from pathlib import Path

import pytest

from opslib.rehearsal import processes
from opslib.rehearsal.jobs import UnitRefused
from opslib.rehearsal.journal_store import JournalStore
from opslib.rehearsal.manager import Manager
from opslib.rehearsal.unit_loading import load_unit
from opslib.rehearsal.unit_semantics import (
    RESTARTED_RESULTS,
    Exit,
    StartLimit,
    format_time_span,
    parse_time_span,
    result_of,
)
from opslib.rehearsal.unit_syntax import expand_variables, parse_exec, split_words


def written(directory, text, name="u.service"):
    (directory / name).write_text(text)
    return load_unit(directory, name)


def test_continuation_comments_and_resets(tmp_path):
    """Lines go on after a backslash, comments in between are dropped, an empty value resets a list."""
    config = written(
        tmp_path,
        "# c\n[Service]\nExecStart=/bin/a\nExecStart=\nExecStart=/bin/b \\\n  # not this\n ; nor this\n  --x 1 \\\n  --y\n",
    )
    assert [command.argv for command in config.exec_start] == [("/bin/b", "--x", "1", "--y")]


def test_drop_ins_come_after_the_fragment_in_order(tmp_path):
    """NAME.service.d/*.conf is read after the unit's file, sorted by name; later values win."""
    (tmp_path / "u.service.d").mkdir()
    (tmp_path / "u.service.d/20.conf").write_text("[Service]\nEnvironment=A=3\nRestart=always\n")
    (tmp_path / "u.service.d/10.conf").write_text("[Service]\nEnvironment=A=2 B=2\n")
    config = written(tmp_path, "[Service]\nExecStart=/bin/true\nEnvironment=A=1\nRestart=no\n")
    assert (config.environment, config.restart) == (["B=2", "A=3"], "always")
    assert [path.rpartition("/")[2] for path in config.drop_in_paths] == ["10.conf", "20.conf"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('a "b c" d', ["a", "b c", "d"]),
        ("'it is' \"it's\"", ["it is", "it's"]),
        (r"a\tb \x41 \"q\"", ["a\tb", "A", '"q"']),
        ('--x={"a":"b"}', ["--x={a:b}"]),
        ("'{\"a\": 1}'", ['{"a": 1}']),
        ('""', [""]),
    ],
)
def test_quoting(text, words):
    """Words are split as systemd does, so JSON needs single quotes around it."""
    assert split_words(text) == words


def test_open_quote_is_an_error(tmp_path):
    """A quote that is not closed makes the line ignored with a complaint."""
    config = written(tmp_path, '[Service]\nExecStart=/bin/true\nExecStartPre="/bin/x\n')
    assert [warning.text for warning in config.warnings] == ['Unbalanced quoting, ignoring: ""/bin/x"']


def test_variables_and_prefixes():
    """${X} is replaced in a word, $X alone is split into words, $$ is a dollar; "-" ignores a failure."""
    environment = {"X": "a b", "Y": "c"}
    assert expand_variables(("p", "${X}-${Y}", "$X", "$$Y", "${Z}"), environment) == ["p", "a b-c", "a", "b", "$Y", ""]
    command = parse_exec("-/bin/rm x")
    assert (command.path, command.ignore_failure) == ("/bin/rm", True)


@pytest.mark.parametrize(
    ("text", "seconds", "shown"),
    [("90", 90, "1min 30s"), ("2min 3s", 123, "2min 3s"), ("1h30min", 5400, "1h 30min"), ("infinity", inf, "infinity")],
)
def test_time_spans(text, seconds, shown):
    """Spans are read and shown as systemd.time(7) says."""
    assert parse_time_span(text) == seconds
    assert format_time_span(seconds) == shown


@pytest.mark.parametrize(
    ("end", "result"),
    [
        (Exit("exited", 0), "success"),
        (Exit("exited", 1), "exit-code"),
        (Exit("killed", 15), "success"),
        (Exit("killed", 9), "signal"),
        (Exit("dumped", 6), "core-dump"),
    ],
)
def test_results(end, result):
    """SIGTERM is a clean end of a daemon, SIGKILL is not."""
    assert result_of(end, success_statuses=frozenset(), is_daemon=True) == result


def test_restart_table():
    """Each Restart= value restarts after the results of systemd.service(5)'s table, never after start-limit-hit."""
    by_result = {
        result: {policy for policy, results in RESTARTED_RESULTS.items() if result in results}
        for result in ("success", "exit-code", "signal", "timeout", "oom-kill", "start-limit-hit")
    }
    assert by_result == {
        "success": {"always", "on-success"},
        "exit-code": {"always", "on-failure"},
        "signal": {"always", "on-failure", "on-abnormal", "on-abort"},
        "timeout": {"always", "on-failure", "on-abnormal"},
        "oom-kill": {"always", "on-failure", "on-abnormal"},
        "start-limit-hit": set(),
    }


def test_start_limit_counts_in_windows():
    """The sixth start within ten seconds is one too many; a new window admits again."""
    limit = StartLimit()
    assert [limit.admits(at) for at in (0, 1, 2, 3, 4, 5, 11)] == [True] * 5 + [False, True]


def lived(directory, unit_text, story, **settings):
    """Run `story(manager)` beside a manager with one unit, u.service; what it returns."""

    async def live():
        table = processes.ProcessTable()
        loop = asyncio.get_running_loop()
        table.watch(loop)
        (directory / "u.service").write_text(unit_text)
        environment = {"PATH": "/usr/bin:/bin"}
        manager = Manager(directory, JournalStore(), table, environment, group_prefix=str(directory), **settings)
        try:
            return await story(manager)
        finally:
            manager.kill_all()
            await asyncio.sleep(0.05)

    try:
        return asyncio.run(live())
    finally:
        processes._prctl(processes._PR_SET_CHILD_SUBREAPER, 0)


def open_descriptors():
    return len(tuple(Path("/proc/self/fd").iterdir()))


async def done(manager, job_type):
    job = manager.enqueue("u.service", job_type)
    await asyncio.wait_for(job.finished.wait(), 10)
    return job.result


def lines(manager, *, systemd=False):
    return [e.text("MESSAGE") for e in manager.journal.entries if (e.text("_PID") == "1") is systemd]


async def until(is_so):
    """Come back once it is so; after ten seconds whatever is asserted next says what it was."""
    for _ in range(500):
        if is_so():
            return
        await asyncio.sleep(0.02)


def test_output_lines_name_their_writer(tmp_path):
    """Each line carries the process that wrote it, a child as well, and the invocation of its unit."""

    async def story(manager):
        await done(manager, "start")
        await until(lambda: len(lines(manager)) == 2)
        entries = [e for e in manager.journal.entries if e.text("_TRANSPORT") == "stdout"]
        service = manager.service("u.service")
        assert {e.text("_SYSTEMD_INVOCATION_ID") for e in entries} == {service.invocation_id}
        return [(e.text("MESSAGE"), e.text("_PID") == str(service.children.main_pid)) for e in entries]

    text = "[Service]\nExecStart=/bin/sh -c 'echo main; sh -c \"echo child; exit 0\"; sleep 9'\n"
    assert lived(tmp_path, text, story) == [("main", True), ("child", False)]


def test_whole_process_tree_is_stopped(tmp_path):
    """Stopping ends processes that left session and parent, for they are in the unit's control group."""

    async def story(manager):
        await done(manager, "start")
        service = manager.service("u.service")
        await until(lambda: len(service.processes()) == 3)
        before = service.processes()
        await done(manager, "stop")
        return len(before), [pid for pid in before if processes.is_alive(pid)]

    text = "[Service]\nExecStart=/bin/sh -c '(setsid sleep 99 &) ; sleep 99 & wait'\n"
    assert lived(tmp_path, text, story) == (3, [])


def test_kill_mode_process_leaves_the_rest(tmp_path):
    """KillMode=process ends only the main process, and systemd says who remains."""

    async def story(manager):
        await done(manager, "start")
        service = manager.service("u.service")
        await until(lambda: len(service.processes()) == 2)
        await asyncio.sleep(0.1)  # the child is sh until it has become sleep
        left = [pid for pid in service.processes() if pid != service.children.main_pid]
        await done(manager, "stop")
        alive = [processes.is_alive(pid) for pid in left]
        processes.kill(left, 9)
        return alive, lines(manager, systemd=True)[-2]

    text = "[Service]\nKillMode=process\nExecStart=/bin/sh -c 'sleep 99 & wait'\n"
    alive, said = lived(tmp_path, text, story)
    assert alive == [True]
    assert said.startswith("u.service: Unit process ")
    assert said.endswith("(sleep) remains running after unit stopped.")


def test_every_start_has_its_own_invocation(tmp_path):
    """A restart gives a new invocation id, told in the environment; "Stopped" belongs to the old one."""

    async def story(manager):
        await done(manager, "start")
        first = manager.service("u.service").invocation_id
        await until(lambda: len(lines(manager)) == 1)
        await done(manager, "restart")
        second = manager.service("u.service").invocation_id
        await until(lambda: len(lines(manager)) == 2)
        told = lines(manager)
        stopped = next(e for e in manager.journal.entries if e.text("MESSAGE") == "Stopped u.service.")
        return told == [first, second], first != second, stopped.text("INVOCATION_ID") == first

    text = "[Service]\nExecStart=/bin/sh -c 'echo $$INVOCATION_ID; exec sleep 99'\n"
    assert lived(tmp_path, text, story) == (True, True, True)


def test_restart_waits_as_written(tmp_path):
    """RestartSec= is waited in full, unless a time factor was asked for."""

    async def story(manager):
        await done(manager, "start")
        began = time.monotonic()
        while manager.service("u.service").n_restarts == 0:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return time.monotonic() - began

    text = "[Service]\nExecStart=/bin/false\nRestart=on-failure\nRestartSec=600ms\n"
    in_full_s = lived(tmp_path, text, story)
    assert in_full_s >= 0.55
    assert lived(tmp_path, text, story, time_factor=10) < in_full_s


def test_a_kill_for_memory_stops_the_unit(tmp_path):
    """OOMPolicy=stop: systemd says what the kernel did, ends the rest, and calls the result oom-kill, a failure."""

    async def story(manager):
        await done(manager, "start")
        service = manager.service("u.service")
        service.oom_killed()
        await until(lambda: service.active_state == "activating")
        return service.active_state, service.result, lines(manager, systemd=True)[-2:]

    assert lived(tmp_path, "[Service]\nExecStart=/bin/sleep 99\nRestart=on-failure\nRestartSec=30\n", story) == (
        "activating",
        "oom-kill",
        [
            "u.service: A process of this unit has been killed by the OOM killer.",
            "u.service: Failed with result 'oom-kill'.",
        ],
    )


def test_environment_file(tmp_path):
    """EnvironmentFile= wins over Environment=; with "-" it may be missing."""
    (tmp_path / "env").write_text("# c\nA=2\nB='x y'\n")

    async def story(manager):
        await done(manager, "start")
        await until(lambda: lines(manager))
        return lines(manager)

    text = (
        f"[Service]\nEnvironment=A=1 C=3\nEnvironmentFile=-/nope\nEnvironmentFile={tmp_path}/env\n"
        "ExecStart=/bin/sh -c 'echo $$A $$B $$C'\n"
    )
    assert lived(tmp_path, text, story) == ["2 x y 3"]


def test_unknown_unit_is_refused(tmp_path):
    """A unit without a file is not found: systemctl's words and status 5."""

    async def story(manager):
        with pytest.raises(UnitRefused, match=r"Failed to start nope.service: Unit nope.service not found\.") as caught:
            manager.enqueue("nope.service", "start")
        return caught.value.exit_status

    assert lived(tmp_path, "", story) == 5


def test_descriptors_are_not_leaked(tmp_path):
    """Many starts leave no open descriptors behind."""

    async def story(manager):
        await done(manager, "start")
        await asyncio.sleep(0.1)
        before = open_descriptors()
        for _ in range(5):
            manager.service("u.service").reset_failed()
            await done(manager, "start")
            await asyncio.sleep(0.05)
        return open_descriptors() - before

    assert lived(tmp_path, "[Service]\nExecStart=/bin/echo x\n", story) <= 0
