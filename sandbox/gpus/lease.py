"""GPUs leased without a daemon: one lock file per GPU, so that two programs on one host never take the same one.

::

    <runtime>/gpu-leases/
        choosing                 held for the moment of choosing
        <uuid>.lock              locked for as long as a sandbox of a living caller has that GPU

A flock(2) goes with the process that holds it, however that ends; nothing has to be tidied up. A detached sandbox outlives its caller, so
its GPUs are read from its ``spec.json`` for as long as its keeper lives; the daemon's jobs are such sandboxes. What none of this sees
(another user's leases) shows as processes on the GPU, which ``gpu.choose`` respects.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

from dockless.base import paths
from dockless.base.dataclass import dataclass
from dockless.base.locks import is_locked
from dockless.errors import NotEnoughGpus
from dockless.sandbox.gpus.gpu import Gpu, GpuRequest, choose, inventory, units

_ASKING = 0.05
"""Seconds after which a lock is somebody's lease, and not a look at it."""


@dataclass(slots=True)
class GpuLease:
    """``gpus`` belong to the holder until ``close``, or the end of its process. A context manager."""

    gpus: tuple[Gpu, ...]
    _locks: list[int]

    @property
    def uuids(self) -> tuple[str, ...]:
        return tuple(gpu.uuid for gpu in self.gpus)

    @property
    def simulated(self) -> bool:
        return any(gpu.simulated for gpu in self.gpus)

    def close(self) -> None:
        while self._locks:
            os.close(self._locks.pop())

    def __enter__(self) -> GpuLease:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def lease(request: GpuRequest, busy: Callable[[], Collection[str]] = tuple) -> GpuLease:
    """Choose free GPUs for a request and hold them. ``busy``: UUIDs that are not free though nobody holds their lock; asked while nobody
    else chooses.

    Errors: ``UnknownGpu``, ``NotEnoughGpus``, ``GpuDriverMissing``.
    """
    gpus = inventory()
    with _choosing():
        taken = held(unit.uuid for unit in units(gpus)) | frozenset(busy())
        chosen = choose(request, gpus, taken)
        locks: list[int] = []
        try:
            for unit in chosen:
                locks.append(_lock(unit.uuid))
        except BaseException:
            for fd in locks:
                os.close(fd)
            raise
        return GpuLease(chosen, locks)


@contextlib.contextmanager
def hold(uuids: Iterable[str]) -> Iterator[None]:
    """Hold these very GPUs, for a scheduler: from before the launch until the detached sandbox runs. ``NotEnoughGpus`` if one is taken."""
    with contextlib.ExitStack() as stack:
        with _choosing():
            for uuid in uuids:
                stack.callback(os.close, _lock(uuid))
        yield


def held(uuids: Iterable[str]) -> frozenset[str]:
    """Which of these are locked by a living process now. Asking disturbs nobody."""
    return frozenset(uuid for uuid in uuids if is_locked(_path(uuid)))


def _directory() -> Path:
    return paths.runtime() / "gpu-leases"


def _path(uuid: str) -> Path:
    return _directory() / f"{uuid.replace('/', '_')}.lock"


@contextlib.contextmanager
def _choosing() -> Iterator[None]:
    paths.make(_directory(), 0o755)
    with paths.writing("the leases of GPUs", _directory()):
        fd = os.open(_directory() / "choosing", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _lock(uuid: str) -> int:
    with paths.writing("the leases of GPUs", _directory()):
        fd = os.open(_path(uuid), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    deadline = time.monotonic() + _ASKING
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(fd)
                raise NotEnoughGpus(f"GPU {uuid} is leased", subject=uuid, hint="wait for it, or ask for another") from None
            time.sleep(0.001)
