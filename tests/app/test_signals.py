"""Signals that end a run in order."""

import os
import signal
import threading

import pytest

from opslib.app.signals import ENDING, signals_to


@pytest.fixture
def handlers():
    """What stood before stands again afterwards."""
    before = {number: signal.getsignal(number) for number in ENDING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_goes_to_who_can_end_in_order(handlers, number):
    """Each of them is handed on by its name, and the handler of before stands again afterwards."""
    signal.signal(number, before := lambda *_: None)
    taken = []
    with signals_to(taken.append):
        os.kill(os.getpid(), number)
    assert taken == [number]
    assert signal.getsignal(number) is before


def test_nohup_stays_in_force(handlers):
    """A run under nohup outlives the terminal: a signal that is ignored is no reason to end."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    taken = []
    with signals_to(taken.append):
        os.kill(os.getpid(), signal.SIGHUP)
    assert taken == []
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_another_thread_takes_no_signals(handlers):
    """Where a run is not in the main thread, its process's signals stay as they are."""
    before, seen = signal.getsignal(signal.SIGTERM), []

    def run():
        with signals_to(lambda _number: None):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [before]
