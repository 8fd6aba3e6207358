"""NVIDIA's Multi-Process Service for jobs of one user that share a GPU: an allocation beyond a job's share fails, as on a smaller GPU.

One control daemon (``nvidia-cuda-mps-control``) for each user and GPU, in a sandbox like a job's: its user's, with that GPU. It holds a
share of the GPU itself, so nobody has the GPU whole before it is gone. Its jobs find it by a directory that they have in common with it,
and share its /dev/shm. Whether one is wanted is read off the jobs that run, so a daemon that comes back ends those whose jobs have ended,
and keeps the others.

A limit for those who want one: a program that leaves the variables of MPS out has all of the GPU, until the watchdog ends it.

It sees the host's processes: it looks its clients up by their numbers, and itself. It can signal those that have its user's ids, which for
root are those of all of root's sandboxes, and neither read nor trace any: its user namespace is its own. So nothing of a job's image runs
in it: its image is ``host``, its programs are the host's and its driver's (attack A79). Its root is read-only, and what it can write to is
bounded.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable

from dockless.base.dataclass import replace
from dockless.base.healthcheck import HealthCheck
from dockless.base.path import Path
from dockless.base.typing import TYPE_CHECKING, Any
from dockless.cgroups import Limits
from dockless.errors import CommandNotFound, DocklessError, GpuError, Unsupported
from dockless.sandbox.spec import Bind, Mount, Namespaces, Spec, Tmpfs
from dockless.sandbox.state import RUNNING
from dockless.sched.engine.faults import describe, say
from dockless.sched.engine.gpus import mps_places

if TYPE_CHECKING:
    from dockless.sandbox.gpus.lease import Ours
    from dockless.sched.engine.attempts import Handle, Launcher

SERVICE_MEMORY = 512
"""MiB of a shared GPU that are the service's: its server has a context of CUDA."""
PIPES, MEMORY = "/dev/nvidia-mps", "/dev/shm"
"""Where its directories are inside."""
_LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
_READY = 10.0
"""Seconds until it listens."""
_ENDS = 2.0
"""Seconds that it has to end by itself."""
_PAUSE = 300.0
"""Seconds in which nothing is tried again for a user for whom it did not start: who waits for it keeps others from starting."""
_WORDS = {
    CommandNotFound: "nvidia-cuda-mps-control cannot be run: it comes with NVIDIA's driver (gpus.driver_root), and needs glibc on the host",
    Unsupported: "it needs a cgroup, in which it is ended with all that it started",
    GpuError: "nvidia-cuda-mps-control does not listen, or the directory that it shares with its jobs cannot be made",
}
"""For the log, which does not have the words of errors."""
_LIMITS = Limits(memory_max=4 << 30, pids_max=512)
_LOGS = "/tmp"
_LOGS_SIZE = 16 << 20
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"  # not /usr/local, where a group may write
_PREFIX = "mps-g"


class ControlDaemons:
    """Those of one queue. Blocking: called from threads, of one name by one at a time."""

    def __init__(self, launcher: Launcher, queue: str) -> None:
        self._launcher, self._queue = launcher, queue
        self._lost: set[str] = set()
        self._failed: dict[int, float] = {}
        self.known: set[str] = set()
        """Names of those that were started and not ended yet."""

    def name(self, uid: int, uuid: str) -> str:
        return f"{_PREFIX}{hashlib.sha256(uuid.encode()).hexdigest()[:12]}-{uid}-{self._queue[:8]}"

    def join(
        self,
        spec: Spec,
        uid: int,
        uuid: str,
        memory: int,
        capacity: int,
        room: int,
        owner: int | None,
        user: int | None,
        ours: Ours = (),
    ) -> Spec:
        """``spec`` with the limit of ``memory`` MiB, after the user's control daemon of that GPU is up. ``capacity``: MiB of the GPU for
        all who share it. ``room``: bytes of what the service and its jobs have in common. ``owner``, ``user``: as in ``Launcher.start``.
        ``ours``: as in ``lease.take_share``. The same ``spec`` where it cannot be had, and the log says why."""
        if not _can(spec):
            return spec
        if time.monotonic() < self._failed.get(uid, 0.0):
            return spec
        try:
            place = self._up(self.name(uid, uuid), uuid, capacity, room, owner, user, ours)
        except (DocklessError, OSError) as error:
            self._failed[uid] = time.monotonic() + _PAUSE
            why = next((words for kind, words in _WORDS.items() if isinstance(error, kind)), None) or describe(error)
            say(f"no MPS for user {uid} on GPU {uuid}: {why}; trying again after {_PAUSE:g} seconds")
            return spec
        self._failed.pop(uid, None)
        own = {"CUDA_MPS_PIPE_DIRECTORY": PIPES, _LIMIT: f"0={memory}M"}
        env = tuple(pair for pair in spec.env if not pair[0].startswith("CUDA_MPS_")) + tuple(own.items())
        return replace(spec, env=env, mounts=(*spec.mounts, *_mounts(place)))

    def _up(self, name: str, uuid: str, capacity: int, room: int, owner: int | None, user: int | None, ours: Ours) -> Path:
        from dockless.sandbox.gpus import injection, lease

        known = mps_places.place(name)
        if known is not None and self._runs(name):
            return known
        self.end(name)
        place = mps_places.make(name, owner, room)
        env = {
            "PATH": f"{injection.HOST_PLACE}:{_PATH}",
            "LD_LIBRARY_PATH": injection.HOST_PLACE,
            "CUDA_MPS_PIPE_DIRECTORY": PIPES,
            "CUDA_MPS_LOG_DIRECTORY": _LOGS,
            "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        }
        asked = Spec(
            ("nvidia-cuda-mps-control", "-f"),
            "host",
            (),
            tuple(env.items()),
            workdir="/",
            user="0:0",
            root="readonly",
            mounts=(*_mounts(place), Tmpfs(_LOGS, size=_LOGS_SIZE)),
            namespaces=Namespaces(pid="host"),
            limits=_LIMITS,
            best_effort=True,
            gpus=(uuid,),
            log_size=1 << 20,
            health=HealthCheck(disabled=True),
        )
        labels = {"queue": self._queue, "mps": uuid}
        share = lease.Share(uuid, SERVICE_MEMORY, "user", lease.share_number(name))
        self.known.add(name)
        try:
            with contextlib.ExitStack() as held:
                sockets = [held.enter_context(socket) for socket in lease.take_share(share, capacity, ours)]
                start: Callable[..., Handle] = self._launcher.start
                handle = start(asked, id=name, owner=owner, labels=labels, leased=sockets, user=user)
            _await(handle, place / "pipe" / "control")
        except BaseException:
            self.end(name)
            raise
        self._lost.discard(name)
        return place

    def take_up(self) -> None:
        """After a start of the queue's daemon: what an earlier one left is known."""
        left = [*(handle.id for handle in self._launcher.list_all()), *mps_places.names()]
        self.known.update(name for name in left if name.startswith(_PREFIX) and name.endswith(f"-{self._queue[:8]}"))

    def lost(self, name: str) -> bool:
        """Whether one has ended before its jobs, or has to be ended, since its directories are not its own any more; told once."""
        if name in self._lost or name not in self.known:
            return False
        if not self._runs(name):
            self._lost.add(name)
            return True
        if mps_places.place(name) is None:
            self.end(name)
            return True
        return False

    def _runs(self, name: str) -> bool:
        handle = self._launcher.find(name)
        return handle is not None and handle.state() in RUNNING

    def end(self, name: str) -> None:
        """With all that is of it. ``DocklessError`` or ``OSError`` where it cannot, which its user can bring about."""
        handle = self._launcher.find(name)
        if handle is not None:
            with contextlib.suppress(DocklessError):  # it has ended
                handle.send_stop()
                _until(lambda: handle.state() not in RUNNING, _ENDS)
            handle.remove()
        mps_places.clear(name)
        self.known.discard(name)
        self._lost.discard(name)


def has_limit(spec: Spec) -> bool:
    """Whether ``join`` gave it one."""
    return _LIMIT in dict(spec.env) and any(mount.target == PIPES for mount in spec.mounts)


def _can(spec: Spec) -> bool:
    """It needs a user namespace, and a program that runs as the user: the service is that user's alone."""
    from dockless.sandbox.run.start import find_image

    user = spec.user or find_image(spec.image).config.user
    taken = any(mount.target.rstrip("/") in (PIPES, MEMORY) for mount in spec.mounts)
    return spec.profile == "default" and spec.namespaces == Namespaces() and not taken and user.partition(":")[0] in ("", "0", "root")


def _mounts(place: Path) -> tuple[Mount, ...]:
    return (Bind(place / "pipe", PIPES), Bind(place / "shm", MEMORY))


def _await(handle: Any, socket: Path) -> None:
    """Until it listens. ``GpuError``"""
    if not handle.document.cgroup:
        raise Unsupported("no cgroup", subject="mps")
    _until(lambda: socket.is_socket() or handle.state() not in RUNNING, _READY)
    if not socket.is_socket() or handle.state() not in RUNNING:
        raise GpuError("nvidia-cuda-mps-control does not listen", subject="mps")


def _until(done: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not done() and time.monotonic() < end:
        time.sleep(0.01)
