"""The same moving of bytes as ``_stdio.exchange``, driven by asyncio's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from dockless._stdio import Ending, Reader, Writer


async def until(end: Ending, readers: Iterable[Reader], writer: Writer | None, timeout: float | None = None) -> None:
    """Until it has ended. ``TimeoutError`` after ``timeout`` seconds; whatever ``end.poll`` raises. Needs a loop with ``add_reader``."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    readers = tuple(readers)
    end_fd = end.fileno()

    def look() -> None:
        try:
            if end.poll() is None:
                return
        except Exception as error:
            if not over.done():
                over.set_exception(error)
        else:
            if not over.done():
                over.set_result(None)
        loop.remove_reader(end_fd)

    def step(reader: Reader, fd: int) -> None:
        if not reader.step():
            loop.remove_reader(fd)
            reader.close()

    def feed(writer: Writer, fd: int) -> None:
        if not writer.step():
            loop.remove_writer(fd)
            writer.close()

    watched = [(reader, reader.fd) for reader in readers if reader.fd >= 0]
    feeding = writer.fd if writer is not None else -1
    loop.add_reader(end_fd, look)
    for reader, fd in watched:
        loop.add_reader(fd, step, reader, fd)
    if writer is not None and feeding >= 0:
        loop.add_writer(feeding, feed, writer, feeding)
    try:
        await asyncio.wait_for(over, timeout)
    finally:
        loop.remove_reader(end_fd)
        for reader, fd in watched:
            if reader.fd >= 0:
                loop.remove_reader(fd)
        if writer is not None and writer.fd >= 0:
            loop.remove_writer(feeding)
