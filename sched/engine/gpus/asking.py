"""Questions to the GPUs' driver. One that hangs answers after seconds or never, and cannot be interrupted: so each GPU has a thread that
asks about it, and nobody waits for longer than ``PATIENCE``. Used from the loop alone."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue

from dockless.base.typing import Any, TypeVar

T = TypeVar("T")

PATIENCE = 1.0
"""Seconds for which an answer is waited for."""
NO_ANSWER = 10.0
"""Seconds without an answer after which a GPU is out of service."""


def begun(question: Callable[[], T]) -> Future[T]:
    """The answer to come to a question that is asked before there is a loop."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # whoever no longer waits cancels nothing

    def run() -> None:
        try:
            future.set_result(question())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="dockless-gpu", daemon=True).start()
    return future


class Asker:
    """``changed``: called when something has not answered for ``NO_ANSWER``, and when what hung has answered."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._threads: dict[str, _Thread] = {}

    async def ask(
        self, questions: Mapping[str, Callable[[], T]], patience: float = PATIENCE, late: Callable[[str, T], None] | None = None
    ) -> dict[str, T]:
        """The answers that come in so many seconds; ``late`` is called with each that comes later. ``questions``: by what they are about,
        such as a GPU; about what hangs nothing more is asked. Raises what a question raises."""
        futures: dict[str, asyncio.Future[T]] = {}
        for name, question in questions.items():
            thread = self._threads.get(name)
            if thread is None:
                thread = self._threads[name] = _Thread(self._changed)
            if not thread.hangs:
                futures[name] = thread.put(question)
        if futures:
            await asyncio.wait(futures.values(), timeout=patience)
        for name, future in futures.items():
            if not future.done():
                self._threads[name].is_late()
                if late is not None:
                    future.add_done_callback(partial(_tell, name, late))
        return {name: future.result() for name, future in futures.items() if future.done()}

    def hangs(self, name: str) -> bool:
        """Whether a question about this has not been answered in time, and is not answered yet."""
        return name in self._threads and self._threads[name].hangs

    def silent(self, name: str) -> bool:
        """Whether that has been so for ``NO_ANSWER``."""
        return name in self._threads and self._threads[name].silent

    @property
    def idle(self) -> bool:
        """Whether all questions are answered."""
        return not any(thread.pending for thread in self._threads.values())

    def close(self) -> None:
        """Ask nothing more."""
        for thread in self._threads.values():
            thread.wanted.put(None)


def _tell(name: str, late: Callable[[str, T], None], future: asyncio.Future[T]) -> None:
    if future.exception() is None:
        late(name, future.result())


class _Thread:
    """``pending``: questions without an answer; ``since``: when the first of them was begun, by the loop's clock."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self.pending, self.since = 0, 0.0
        self.hangs = self.silent = False
        self.wanted: SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = SimpleQueue()
        self._changed = changed
        # A daemon thread: a driver that hangs keeps no daemon from ending.
        threading.Thread(target=self._run, name="dockless-gpu", daemon=True).start()

    def put(self, question: Callable[[], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        future.add_done_callback(asyncio.Future.exception)  # seen, also where nobody waits any more
        if not self.pending:
            self.since = loop.time()
        self.pending += 1
        self.wanted.put((question, future))
        return future

    def is_late(self) -> None:
        if not self.hangs:
            self.hangs = True
            asyncio.get_running_loop().call_at(self.since + NO_ANSWER, self._still_hangs, self.since)

    def _still_hangs(self, since: float) -> None:
        if self.hangs and self.since == since:
            self.silent = True
            self._changed()

    def _run(self) -> None:
        while (one := self.wanted.get()) is not None:
            question, future = one
            answer, error = None, None
            try:
                answer = question()
            except BaseException as raised:
                error = raised
            with contextlib.suppress(RuntimeError):  # the daemon has ended
                future.get_loop().call_soon_threadsafe(self._answered, future, answer, error)

    def _answered(self, future: asyncio.Future[Any], answer: Any, error: BaseException | None) -> None:
        self.pending, self.since = self.pending - 1, future.get_loop().time()
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(answer)
        if self.hangs:
            self.hangs = self.silent = False
            future.get_loop().call_soon(self._changed)  # after who waits for the answer
