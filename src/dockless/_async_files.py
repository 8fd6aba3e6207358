"""``box.files`` of ``dockless.aio``: the same operations, to be awaited. A thread waits for each, as for the host's own files."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial, wraps
from types import TracebackType
from typing import Concatenate, ParamSpec

from dockless._loop import in_thread
from dockless.base.pickling import Unpicklable
from dockless.base.typing import IO, Any, TypeVar
from dockless.sandbox.files import files, watching
from dockless.sandbox.files.files import AnyPath
from dockless.sandbox.files.tree import Copied, Progress
from dockless.sandbox.files.watching import FileEvent

P = ParamSpec("P")
T = TypeVar("T")
_SLICE = 1.0
"""Seconds until a watch that is cancelled notices it."""


class _Cancelled(Exception):
    """Nobody waits for the copy any more."""


def _method(function: Callable[Concatenate[files.Files, P], T]) -> Callable[Concatenate[Files, P], Coroutine[Any, Any, T]]:
    """A method of ``dockless.Files``, to be awaited. A cancellation arrives when it has returned, after a minute at most."""

    @wraps(function)
    async def call(self: Files, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await in_thread(partial(function, self.files, *args, **kwargs))

    return call


class Files(Unpicklable):
    """``dockless.Files`` for programs with a loop. ``files``: the same for functions that block, ``open`` among them."""

    def __init__(self, made: files.Files) -> None:
        self.files = made

    def as_user(self, user: str) -> Files:
        """As that of ``dockless.Files``."""
        return Files(self.files.as_user(user))

    read_bytes = _method(files.Files.read_bytes)
    read_text = _method(files.Files.read_text)
    write_bytes = _method(files.Files.write_bytes)
    write_text = _method(files.Files.write_text)
    stat = _method(files.Files.stat)
    exists = _method(files.Files.exists)
    list = _method(files.Files.list)
    mkdir = _method(files.Files.mkdir)
    remove = _method(files.Files.remove)
    rename = _method(files.Files.rename)
    close = _method(files.Files.close)

    async def copy_in(self, source: AnyPath, target: AnyPath, *, progress: Progress | None = None) -> Copied:
        """As that of ``dockless.Files``; a cancellation ends it between two pieces. ``progress`` is called by another thread."""
        return await _copied(partial(self.files.copy_in, source, target), progress)

    async def copy_out(
        self, source: AnyPath, target: AnyPath, *, max_size: int | str = "16G", max_files: int = 1_000_000, progress: Progress | None = None
    ) -> Copied:
        """The same."""
        return await _copied(partial(self.files.copy_out, source, target, max_size=max_size, max_files=max_files), progress)

    async def tar_in(
        self,
        stream: IO[bytes],
        target: AnyPath,
        *,
        max_size: int | str = "16G",
        max_files: int = 1_000_000,
        progress: Progress | None = None,
    ) -> Copied:
        """The same; another thread reads from ``stream``."""
        return await _copied(partial(self.files.tar_in, stream, target, max_size=max_size, max_files=max_files), progress)

    async def tar_out(
        self,
        source: AnyPath,
        stream: IO[bytes],
        *,
        max_size: int | str = "16G",
        max_files: int = 1_000_000,
        progress: Progress | None = None,
    ) -> Copied:
        """The same; another thread writes to ``stream``."""
        return await _copied(partial(self.files.tar_out, source, stream, max_size=max_size, max_files=max_files), progress)

    def watch(self, path: AnyPath, *, recursive: bool = False) -> Watch:
        """As that of ``dockless.Files``, for ``async with`` and ``async for``."""
        return Watch(partial(self.files.watch, path, recursive=recursive))


async def _copied(copy: Callable[..., Copied], progress: Progress | None) -> Copied:
    cancelled = threading.Event()

    def step(count: int, size: int) -> None:
        if cancelled.is_set():
            raise _Cancelled
        if progress is not None:
            progress(count, size)

    return await in_thread(partial(copy, progress=step), cancelled.set)


class Watch:
    """``dockless.Watch``, whose events are awaited."""

    def __init__(self, begin: Callable[[], watching.Watch]) -> None:
        self._begin = begin
        self._watch: watching.Watch | None = None

    async def __aenter__(self) -> Watch:
        try:
            await in_thread(self._start)
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)  # it may have begun when it was cancelled
            raise
        return self

    def _start(self) -> None:
        self._watch = self._begin()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._watch is not None:
            await in_thread(self._watch.close)

    async def __aiter__(self) -> AsyncIterator[FileEvent]:
        assert self._watch is not None, "use it in an async with"
        while True:
            event = await in_thread(partial(self._watch.next, _SLICE))
            if event is not None:
                yield event
