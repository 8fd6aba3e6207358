"""Signals that are passed on to what runs in the foreground: collected from the first moment on, and given back as they were."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest

from dockless.cli.signals import PASSED_ON, Signals


def test_signals_are_collected_and_given_back():
    before = {number: signal.getsignal(number) for number in PASSED_ON}
    reads, writes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    given = signal.set_wakeup_fd(writes)
    try:
        with Signals() as signals:
            for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGWINCH):
                signal.raise_signal(number)
            assert signals._waiting == [signal.SIGINT, signal.SIGUSR1, signal.SIGWINCH]
            assert os.read(signals.woken, 9) == bytes(signals._waiting)
            woken, wake = signals.woken, signals._wake
        assert signal.set_wakeup_fd(-1) == writes
        assert {number: signal.getsignal(number) for number in PASSED_ON} == before
        for fd in (woken, wake):
            with pytest.raises(OSError):
                os.fstat(fd)
    finally:
        signal.set_wakeup_fd(given)
        os.close(reads)
        os.close(writes)


def test_a_start_that_hangs_is_left_at_the_second_interrupt():
    with Signals() as signals:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signals._running = True
        signal.raise_signal(signal.SIGINT)
        assert signals._waiting == [signal.SIGINT] * 2


def test_more_signals_than_anybody_reads_are_no_error(capfd):
    with Signals() as signals:
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(signals._wake, bytes(4096))
        signal.raise_signal(signal.SIGWINCH)
        assert signals._waiting == [signal.SIGWINCH]
    assert capfd.readouterr().err == ""
