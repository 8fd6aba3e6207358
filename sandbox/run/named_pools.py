"""Pools with a name, which live in a process of their own: where they are, and what they say of themselves.

::

    <runtime>/pools/<name>/    0700, and locked for as long as its process lives: run.pool_process
        about     ``About`` and, behind a NUL, the plan by which its sandboxes are made; there as soon as all of them wait
        door      a socket, 0600: who connects is given a sandbox, run.taking
        state     ``State``, written anew when it changes

What is not locked is left from a process that was killed. Nobody looks at it, and the next ``create`` removes it.
"""

from __future__ import annotations

import contextlib
import os
import sys

from dockless.base import json, paths, records, signal
from dockless.base.dataclass import dataclass, field
from dockless.base.idmaps import IdMap
from dockless.base.locks import is_locked
from dockless.base.path import Path
from dockless.base.pidfds import hold
from dockless.base.waits import readable
from dockless.errors import BadInput, NotEnded, SandboxError, Unsupported
from dockless.images.model.config import ImageConfig
from dockless.sandbox.accounts import Account
from dockless.sandbox.names import check_id
from dockless.sandbox.spec import Spec

ABOUT, STATE = "about", "state"
EXPIRE = 3600.0
"""Seconds after which a pool ends from which nobody takes, where its maker does not say."""
_MOST = 1000
_ENDS = 10.0
"""Seconds in which one that is asked to end must have ended."""
_LARGEST = 16 << 20
_CODE = "import sys; sys.path += sys.argv[1:]; from dockless.sandbox.run.pool_process import main; main()"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What ``create`` asks for. ``expire``: seconds, 0 for never."""

    name: str
    spec: Spec
    size: int
    expire: float
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class About:
    """A pool, and what of its sandboxes whoever takes one must know. ``made``: no other pool has it. ``pid``: of its process. ``created``:
    seconds since 1970. ``digest``: of the image. ``config``: what of it says what a command is."""

    wanted: Wanted
    made: str
    pid: int
    created: float
    digest: str
    config: ImageConfig
    account: Account
    hostname: str
    workdir: str
    capabilities: int
    idmap: IdMap | None
    rootful: bool
    has_cgroup: bool

    @property
    def name(self) -> str:
        return self.wanted.name


@dataclass(frozen=True, slots=True)
class State:
    """``waiting``: how many wait, or are about to. ``taken``: how many were taken. ``used``: when the last one was, or the pool was made,
    seconds since 1970. ``failed``: why the last one that could not be made could not; empty where that is over."""

    waiting: int
    taken: int
    used: float
    failed: str = ""


@dataclass(frozen=True, slots=True)
class PoolInfo:
    """A pool as ``list_all`` tells of it. ``memory``: bytes that its process has in memory, RSS. ``newer``: the store has another image by
    that name now, which its sandboxes do not have."""

    name: str
    image: str
    digest: str
    size: int
    waiting: int
    taken: int
    created: float
    used: float
    expire: float
    pid: int
    memory: int
    newer: bool
    failed: str
    labels: dict[str, str]


def place() -> Path:
    """The directory of all of them."""
    return paths.runtime() / "pools"


def directory_of(name: str) -> Path:
    """``BadInput`` for what is no name."""
    return place() / check_id(name, "pool name")


def unknown(name: str) -> BadInput:
    """The error for a pool that there is not."""
    return BadInput(f"there is no pool {name}", subject=name, hint=f"dockless pool ls lists them; dockless pool create {name} IMAGE")


def create(wanted: Wanted) -> None:
    """Start its process. Returns when all of its sandboxes wait. ``BadInput`` where the name is taken, and errors of a start."""
    import subprocess

    directory_of(wanted.name)
    if not 1 <= wanted.size <= _MOST:
        raise BadInput(f"a pool of {wanted.size} sandboxes", subject="size", hint=f"give a number from 1 to {_MOST}")
    if not sys.executable:
        hint = "start it from a program whose sys.executable is Python, or by the command line"
        raise Unsupported("which Python could hold the pool is not known", subject="pool", hint=hint)
    command = [sys.executable, "-I", "-c", _CODE, *(path for path in sys.path if os.path.isabs(path))]
    request = json.dumps(records.plain(wanted)).encode("ascii")
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, cwd="/")
    assert process.stdin is not None and process.stdout is not None
    with process.stdin, process.stdout:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(request)
            process.stdin.close()
        said = process.stdout.read()
    process.wait()  # what goes on is its child
    if said != b"ready":
        raise _error_in(said, wanted.name)


def _error_in(said: bytes, name: str) -> Exception:
    """What our own process said."""
    import pickle

    with contextlib.suppress(Exception):
        error = pickle.loads(said)
        if isinstance(error, Exception):
            return error
    return SandboxError("the process of the pool has ended", subject=name, hint="what it wrote on standard error says why")


def read(name: str) -> tuple[About, bytes]:
    """What a pool says of itself, and its plan. ``BadInput`` where there is none."""
    directory = directory_of(name)
    try:
        raw = _content(directory / ABOUT) if is_locked(directory) else b""
        about, _, plan = raw.partition(b"\0")
        if raw:
            return records.read(About, json.loads(about)), plan
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (ValueError, RecursionError) as error:
        raise unreadable(name, error) from None
    raise unknown(name)


def unreadable(name: str, error: Exception) -> SandboxError:
    """The error for a pool whose records are damaged."""
    hint = f"end its process, which `dockless pool create {name}` replaces then"
    return SandboxError(f"what the pool {name} says of itself cannot be read: {error}", subject=name, hint=hint)


def _content(path: Path) -> bytes:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
        return stream.read(_LARGEST)


def list_all() -> list[PoolInfo]:
    """Every pool of this user, by name. What is none, is just being made or has just ended, is left out."""
    found = []
    for name in _names():
        with contextlib.suppress(BadInput, SandboxError, OSError, ValueError, RecursionError):
            about, _ = read(name)
            found.append(_info(about, records.read(State, json.loads(_content(place() / name / STATE)))))
    return found


def on_network(network: str) -> list[str]:
    """The names of the pools whose sandboxes are on a network."""
    found = []
    for name in _names():
        with contextlib.suppress(BadInput, SandboxError, OSError, ValueError, RecursionError):
            about, _ = read(name)
            found += [name] if any(one.network == network for one in about.wanted.spec.endpoints) else []
    return found


def _names() -> list[str]:
    try:
        return sorted(os.listdir(place()))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _info(about: About, state: State) -> PoolInfo:
    wanted = about.wanted
    with open(f"/proc/{about.pid}/statm") as stream:
        memory = int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return PoolInfo(
        name=about.name,
        image=wanted.spec.image,
        digest=about.digest,
        size=wanted.size,
        waiting=state.waiting,
        taken=state.taken,
        created=about.created,
        used=state.used,
        expire=wanted.expire,
        pid=about.pid,
        memory=memory,
        newer=_is_newer(wanted.spec.image, about.digest),
        failed=state.failed,
        labels=wanted.labels,
    )


def _is_newer(reference: str, digest: str) -> bool:
    """Whether that name means another image now; one that is gone is none."""
    from dockless.errors import ImageError
    from dockless.sandbox.run.start import find_image

    try:
        return find_image(reference).digest != digest
    except ImageError:
        return False


def remove(name: str) -> None:
    """End a pool, and all that waits in it; what was taken goes on. ``BadInput`` where there is none, ``NotEnded``"""
    directory = directory_of(name)
    about, _ = read(name)
    try:
        process = hold(about.pid)
    except ProcessLookupError:
        raise unknown(name) from None
    try:
        if not is_locked(directory):  # it has ended meanwhile: the pid may be another's
            raise unknown(name)
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, number)
            if readable(process, _ENDS):
                return
    finally:
        os.close(process)
    hint = "nothing ends a process that waits for a device or a network file system that does not answer: see its /proc/PID/stack"
    raise NotEnded(f"the process {about.pid} of the pool {name} was killed and still lives", subject=str(about.pid), hint=hint)
