"""``dockless daemon``: one process, in the foreground, that starts queued jobs.

::

    lock (one daemon per queue) ─► settings, GPUs ─► take up what runs ─► listen ─► … ─► SIGTERM: commit, leave the jobs running

Killed at any moment it loses nothing: what was acked is on disk, jobs do not need it, and the next one takes up what it finds
(``attempts.recover``). SIGHUP reads the settings again. ``service`` makes it a service of systemd.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import fcntl
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from dockless._version import __version__
from dockless.base import paths, settings
from dockless.base.text import escaped
from dockless.base.typing import Any, cast
from dockless.errors import DocklessError, SchedError
from dockless.sched import service
from dockless.sched.engine import outside, reading
from dockless.sched.engine.attempts import Launcher
from dockless.sched.engine.engine import Engine
from dockless.sched.engine.faults import describe, say
from dockless.sched.engine.gpus import idle, sharing
from dockless.sched.engine.gpus.failures import listen
from dockless.sched.engine.gpus.gpu_errors import reported
from dockless.sched.engine.gpus.hostgpus import HostGpus
from dockless.sched.engine.host import disk
from dockless.sched.engine.lifecycle.housekeeping import keep_house
from dockless.sched.wire.protocol import check_address
from dockless.sched.wire.server import Server

TAKE_OVER = 5.0
"""Seconds to wait for the lock of a daemon that was killed: a sandbox it was just cloning holds it until its exec."""


LET_GO_EVERY = 60.0
"""Seconds between looks for layers that somebody removed while this process holds their mounts."""


def main(argv: Sequence[str] = (), *, launcher: Launcher | None = None) -> int:
    """Serve until SIGTERM, SIGINT or a shutdown request. Raises DocklessError if it cannot."""
    parser = argparse.ArgumentParser(prog="dockless daemon", description="Start queued jobs; stays in the foreground.")
    parser.add_argument("--socket", type=Path, help="where to listen (default: %(default)s)", default=paths.runtime() / "daemon.sock")
    options = parser.parse_args(list(argv))
    check_address(options.socket)
    state = paths.state()
    _directory(state)
    _directory(options.socket.parent)
    threading.excepthook = lambda failed: say(f"unexpected error: {describe(failed.exc_value)}" if failed.exc_value else "unexpected error")
    with only_one(state / "daemon.lock"):
        service.leave_group()
        try:
            asyncio.run(serve(state, options.socket, launcher or real_launcher()))
        except DocklessError:
            raise
        except Exception as error:  # not its traceback: that ends with the error's text
            hint = "this is a bug in dockless; please report it. Running jobs go on"
            raise SchedError(f"the daemon failed: {describe(error)}", hint=hint) from None
    return 0


async def serve(state: Path, path: Path, launcher: Launcher, *, ready: Callable[[], None] | None = None) -> None:
    """The daemon's life, in a running loop. ``ready``: called once it listens."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_unexpected)
    gpus = HostGpus()
    engine = Engine(state, launcher, gpus, reading.settings(), check_image)
    engine.said = settings.load()
    end = asyncio.Event()
    server = Server(engine, path, __version__, end.set)

    async def reload() -> None:
        with contextlib.suppress(DocklessError):  # it is in the log
            await reading.reload(engine)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: engine.spawn(reload()))
    try:
        await engine.recover()
        reading.tell_classes(gpus)
        await server.open()
        whom = "all users" if os.geteuid() == 0 else "this user"
        say(f"serving {whom} at {path}, {gpus.in_words}, {len(engine.entries)} jobs in the queue")
        _notify("READY=1")
        if ready is not None:
            ready()
        works = (let_removed_layers_go(LET_GO_EVERY), keep_house(engine), hear(engine))
        chores = [
            asyncio.create_task(work)
            for work in (*works, idle.watch(engine), disk.watch(engine), sharing.watch(engine), outside.watch(engine))
        ]
        await end.wait()
        for chore in chores:
            chore.cancel()
        await asyncio.wait(chores)
        if await loop.run_in_executor(None, service.host_goes_down):
            await engine.note_shutdown()
            say("ending; the host is shutting down")
        else:
            say("ending; running jobs go on")
    finally:
        _notify("STOPPING=1")
        engine.closing = True
        await server.close()
        await server.hang_up()
        await engine.close()


async def hear(engine: Engine) -> None:
    """Failures of GPUs, until cancelled; from when the driver answers, which may be long after the daemon's start."""
    if await engine.gpus.opened():
        with contextlib.suppress(DocklessError):  # it is in the log
            await reading.reload(engine)
    await listen(engine.gpus.whole, partial(reported, engine))


async def let_removed_layers_go(every: float) -> None:
    """Give back the room of layers that are gone, every so many seconds: a mount keeps the files of its layer on the disk."""
    while True:
        await asyncio.sleep(every)
        from dockless.images.layers import erofs

        erofs.release()


@contextlib.contextmanager
def only_one(path: Path) -> Iterator[None]:
    """Hold the queue's lock. Raises SchedError if another daemon has it; a flock(2), so it goes with the process, however that ends."""
    with paths.writing("the lock of the daemon", path):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + TAKE_OVER
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EINTR):
                    raise
            pid = os.pread(fd, 20, 0).decode(errors="replace").strip()
            # Only a sign for people and for how long to wait; the lock alone decides.
            if (pid.isdigit() and os.path.exists(f"/proc/{pid}")) or time.monotonic() > deadline:
                raise SchedError(f"a daemon serves this queue already, process {pid}", subject=str(path), hint="there is one per user")
            time.sleep(0.02)
        with contextlib.suppress(OSError):  # only a sign for people: a full disk need not keep a daemon from serving
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(fd)


def real_launcher() -> Launcher:
    """Detached sandboxes."""
    from dockless.sandbox.run import detached

    return cast(Launcher, detached)


def check_image(reference: str) -> None:
    """Raises UnknownImage unless this daemon's store has it. Nothing is downloaded: a job never holds a GPU while bytes travel."""
    if reference != "host":
        from dockless.images import Store

        Store().get(reference)


def _directory(path: Path) -> None:
    paths.make(path, mode=0o755 if os.geteuid() == 0 else 0o700)


def _notify(text: str) -> None:
    """sd_notify(3), where a service manager asked for it."""
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as connection:
            connection.sendto(text.encode(), "\0" + address[1:] if address.startswith("@") else address)


def _unexpected(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """asyncio's own words repeat the arguments of the callback that failed."""
    error = context.get("exception")
    what = context["message"] if error is None else describe(error)
    say(f"unexpected error: {what}")


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except DocklessError as error:
        print(f"dockless: {escaped(str(error))}\n  hint: {escaped(error.hint)}", file=sys.stderr)
        sys.exit(error.exit_code)
