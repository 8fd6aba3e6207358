"""A running agent and the two pipes to it. Whatever it says is taken as said by the sandbox, which may trace it, stop it or be it: answers
are bounded in size and in time, and after one that makes no sense nobody asks it again."""

from __future__ import annotations

import contextlib
import math
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable

from dockless.base.typing import NoReturn
from dockless.base.waits import readable
from dockless.errors import SandboxError, SandboxGone
from dockless.sandbox.files.wire import ANSWER, CLOSE, AgentAnswer, Request, answer_header, nonsense

PATIENCE = 60.0
"""Seconds for the answers to what is asked at once, which is some 256 KiB at most."""


class Agent:
    """Owns both fds. ``end``: called once, when it is closed; ``used``: at each request. Safe to use from several threads, one after the
    other."""

    def __init__(self, stdin: int, stdout: int, end: Callable[[], None], used: Callable[[], object] = bool) -> None:
        self._stdin, self._stdout, self._end, self._used = stdin, stdout, end, used
        self._owner = os.getpid()
        self._closed = self._busy = False
        self._lock = threading.RLock()
        self._unclosed: deque[int] = deque()
        for fd in (stdin, stdout):
            os.set_blocking(fd, False)

    @property
    def closed(self) -> bool:
        """Whether it has been closed, or has ended by itself since the last request: whoever may kill it inside may do so."""
        if not self._closed and self._lock.acquire(blocking=False):  # else it is just being asked
            try:
                if not self._closed and not self._busy and readable(self._stdout, 0):
                    self._shut()
            finally:
                self._lock.release()
        return self._closed

    def ask(self, *requests: Request, patience: float | None = None) -> list[AgentAnswer]:
        """The answers, in their order; errors are in them. ``SandboxGone`` where it has ended, ``TimeoutError`` where it does not answer,
        ``SandboxError`` where it answers nonsense; it is closed then."""
        try:
            with self._lock:
                return self._ask(requests, PATIENCE if patience is None else patience)
        finally:
            self._close_those()

    def _ask(self, requests: tuple[Request, ...], patience: float) -> list[AgentAnswer]:
        if self._closed:
            raise SandboxGone("the sandbox's files are closed", hint="the sandbox has ended, or an earlier request failed")
        if self._busy:  # by the garbage collector, in the middle of another request
            raise RuntimeError("a file of a sandbox was not closed, and what was still to be written is lost")
        self._busy = True
        try:
            self._used()
            return self._exchange(requests, time.monotonic() + patience)
        except BaseException:
            self._shut()  # half an answer may be left in the pipe
            raise
        finally:
            self._busy = False

    def let_go(self, handle: int) -> None:
        """Close a handle, at once or after the request that goes on: also from the garbage collector. No error."""
        self._unclosed.append(handle)
        self._close_those()

    def _close_those(self) -> None:
        while self._unclosed and not self._closed and not self._busy and self._lock.acquire(blocking=False):
            try:
                with contextlib.suppress(SandboxError, TimeoutError):  # it is closed then, and all is
                    handles = [self._unclosed.popleft() for _ in range(len(self._unclosed))]
                    self._ask(tuple(Request(CLOSE, handle=handle) for handle in handles), PATIENCE)
            finally:
                self._lock.release()

    def _exchange(self, requests: tuple[Request, ...], deadline: float) -> list[AgentAnswer]:
        unsent = deque(memoryview(part) for request in requests for part in (request.encoded(), request.contents) if len(part))
        answers: list[AgentAnswer] = []
        coming = _Coming()
        poller = select.poll()
        poller.register(self._stdout, select.POLLIN)
        if unsent:
            self._send(unsent)
        if unsent:
            poller.register(self._stdin, select.POLLOUT)
        while unsent or len(answers) < len(requests):
            left = deadline - time.monotonic()
            ready = poller.poll(None if left == math.inf else max(0, math.ceil(left * 1000)))
            if not ready and time.monotonic() >= deadline:
                raise TimeoutError("the sandbox does not answer about its files: is it paused, or its process stopped from inside?")
            for fd, _ in ready:
                if fd == self._stdin:
                    self._send(unsent)
                    if not unsent:
                        poller.unregister(fd)
                else:
                    while len(answers) < len(requests) and (answer := coming.read(self._stdout)):
                        answers.append(answer)
        if coming.more(self._stdout):
            raise nonsense("more than was asked for")
        return answers

    def _send(self, unsent: deque[memoryview]) -> None:
        while unsent:
            try:
                n = os.writev(self._stdin, list(unsent))
            except BlockingIOError:
                return
            except BrokenPipeError:
                _gone()
            while n:
                part = unsent.popleft()
                if len(part) > n:
                    unsent.appendleft(part[n:])
                n -= min(n, len(part))

    def close(self) -> None:
        """End it. Twice is once."""
        with self._lock:
            self._shut()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # whoever forgets it cannot be told
            self._shut()

    def _shut(self) -> None:
        if not self._closed:
            self._closed = True
            os.close(self._stdin)
            os.close(self._stdout)
            if self._owner == os.getpid():  # else it is the one of the process that we were forked from
                self._end()


class _Coming:
    """An answer while it comes. One that is in the pipe as a whole is not copied."""

    def __init__(self) -> None:
        self._head = b""
        self._parts: list[bytes] = []
        self._left = ANSWER.size

    def read(self, fd: int) -> AgentAnswer | None:
        """The next answer, None where it is not here yet."""
        while True:
            try:
                part = os.read(fd, self._left)
            except BlockingIOError:
                return None
            if not part:
                _gone()
            self._parts.append(part)
            self._left -= len(part)
            if self._left:
                continue
            whole = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
            self._parts = []
            if not self._head:
                self._head = whole
                self._left = answer_header(whole)[1]
                if self._left:
                    continue
                whole = b""
            result, _ = answer_header(self._head)
            self._head, self._left = b"", ANSWER.size
            return AgentAnswer(result, whole)

    @staticmethod
    def more(fd: int) -> bool:
        """Whether something comes that nobody asked for."""
        with contextlib.suppress(BlockingIOError):
            return bool(os.read(fd, 1))
        return False


def _gone() -> NoReturn:
    raise SandboxGone("the sandbox has ended, or somebody inside ended what acts on its files", hint="try again, if the sandbox still runs")
