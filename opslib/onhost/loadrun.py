"""How a level is run: on the event loop that there is, in this process or several, with an eye on the server."""

import asyncio
import contextlib
import json
import os
import time
from typing import IO, Any, Callable, Coroutine, Dict, List, Optional, Tuple, TypeVar

from opslib.onhost.loadlevel import Level, Load
from opslib.onhost.loadlines import lines_of, merged
from opslib.onhost.loadserver import COUNTERS, GAUGES, ServerWatch, counted, read_metrics
from opslib.onhost.loadsplit import Child

PROGRESS_S = 0.5

_T = TypeVar("_T")
Lines = Tuple[List[Dict[str, Any]], Dict[str, Any]]
Tell = Callable[[Dict[str, Any]], None]


def run_on_loop(load: Load, work: "Coroutine[Any, Any, _T]") -> _T:
    """Runs on uvloop where this Python has it, and leaves no task behind."""
    loop = _new_loop(load.options["event_loop"])
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(work)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        asyncio.set_event_loop(None)
        loop.close()


def _new_loop(name: str) -> asyncio.AbstractEventLoop:
    if name != "asyncio":
        with contextlib.suppress(Exception):  # one that was built for another Python fails in its own way
            import uvloop  # type: ignore[import-not-found] # noqa: PLC0415 - vLLM brings it, others need not

            return uvloop.new_event_loop()  # type: ignore[no-any-return]
    return asyncio.new_event_loop()


def work_of(load: Load, share: Dict[str, Any], start_at: float) -> Callable[[IO[str]], None]:
    """What a process does that runs a share of a level: its lines go to the file that it is given."""

    def work(out: IO[str]) -> None:
        load.inputs.rng.seed(os.urandom(16))  # a fork's copy would draw the same prompts as its brothers
        level = Level(load, share)

        def tell(line: Dict[str, Any]) -> None:
            out.write(json.dumps(line) + "\n")
            out.flush()

        run_on_loop(load, with_progress(level, tell, start_at))
        requests, line = lines_of(level)
        for request in requests:
            out.write(json.dumps(request) + "\n")
        tell(line)

    return work


async def watched(
    load: Load, shape: Dict[str, Any], children: List[Child], start_at: float
) -> Tuple[Lines, float, Dict[str, Any]]:
    """One run of a level, in this process or its children; its lines, when it began, what the server said meanwhile."""
    before = await _counters(load)
    watch = ServerWatch(lambda: load.get("/metrics"))
    if before:
        watch.start()
    if children:
        found = await _collected(children)
        began_at = start_at
    else:
        level = Level(load, shape)
        await with_progress(level, print_line, None)
        found, began_at = lines_of(level), level.started_at
    watch.stop()
    after = await _counters(load)
    await _cool_down(load)
    loop = type(asyncio.get_running_loop()).__module__.partition(".")[0]
    details = {"server": counted(before, after), "server_samples": watch.samples(began_at), "event_loop": loop}
    return found, began_at, details


async def with_progress(level: Level, tell: Tell, start_at: Optional[float]) -> None:
    """Runs a level, tells twice a second how far it is, and ends what stands still."""
    running = asyncio.ensure_future(level.run(start_at))
    while not running.done():
        await asyncio.wait([running], timeout=PROGRESS_S)
        level.end_stalled()
        tell(level.progress())
    running.result()


async def _collected(children: List[Child]) -> Lines:
    """The lines of all children; their progress is told as one. A child that died brings none."""
    loop = asyncio.get_running_loop()
    latest: Dict[int, Dict[str, Any]] = {}

    def gather(child: Child) -> List[Dict[str, Any]]:
        kept: List[Dict[str, Any]] = []
        for line in child.lines():
            if line["type"] == "progress":
                latest[child.process_id] = line
            else:
                kept.append(line)
        return kept

    waiting = [loop.run_in_executor(None, gather, child) for child in children]
    is_open = True
    while is_open:
        _, open_ = await asyncio.wait(waiting, timeout=PROGRESS_S)
        is_open = bool(open_)
        if latest:
            print_line(_summed(list(latest.values())))
    kept = [future.result() for future in waiting]
    found = [(lines[:-1], lines[-1]) for lines in kept if lines and lines[-1]["type"] == "level"]
    for child in children:
        child.wait()
    return merged(found)


def _summed(lines: List[Dict[str, Any]]) -> Dict[str, Any]:
    total = dict(lines[0])
    for line in lines[1:]:
        for name in ("concurrency", "n_requests", "n_done", "n_open", "n_errors", "n_chunks"):
            total[name] += line[name]
    return total


async def _counters(load: Load) -> Dict[str, float]:
    return read_metrics(await load.get("/metrics") or b"", COUNTERS)


async def _cool_down(load: Load) -> None:
    """Waits until the server is idle, where it tells, so that one level's rest is no part of the next."""
    ends_at = time.perf_counter() + min(float(load.options["cooldown_s"]), load.time_left())
    while time.perf_counter() < ends_at:
        gauges = read_metrics(await load.get("/metrics") or b"", GAUGES)
        if not gauges.get("running") and not gauges.get("waiting"):
            return
        await asyncio.sleep(0.1)


def print_line(line: Dict[str, Any]) -> None:
    """One JSON line on standard output, at once."""
    print(json.dumps(line, separators=(",", ":")), flush=True)
