"""What is written down about a sandbox when it starts: ``spec.json`` in its directory, for whoever finds it later."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
from collections.abc import Iterator

from dockless.base import json, paths, signal
from dockless.base.dataclass import dataclass, field
from dockless.base.path import Path
from dockless.sandbox.resolved import Identity
from dockless.sandbox.restart import Restart
from dockless.sandbox.spec import Spec

NAME = "spec.json"
PLAN = "plan"
"""What its launcher carried out, for who enters it: sandbox/plan/plan.py."""
_LATEST = 1 << 40
"""Seconds since 1970 that a sandbox may say it was made at: any later, infinite or not a number is damage."""


@dataclass(frozen=True, slots=True)
class Document:
    """``spec.json``. ``boot_id``: of its last start, empty where it was never started. ``cgroup``: its path, empty for none. ``image``: the
    digest of what ``spec.image`` named when it started. ``stop_signal``: the caller's or the image's. ``identity``: None in the record of
    an earlier version. ``keeper``, ``init``: the pids of a foreground sandbox; a detached one's are in its ``started``. ``removed``: its
    keeper removes all of it at its end. ``gpus``: how many or which are leased when it is first started; those that it has got are in
    ``spec``. ``ends``: when its time to live is over, in seconds since 1970, 0 for never. ``restart``: its restart policy, which has
    started it ``restarts`` times since somebody did."""

    spec: Spec
    boot_id: str
    created: float
    owner: int
    cgroup: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    image: str = ""
    stop_signal: int = int(signal.SIGTERM)
    identity: Identity | None = None
    keeper: int = 0
    init: int = 0
    removed: bool = False
    gpus: str = ""
    ends: float = 0.0
    restart: Restart = field(default_factory=Restart)
    restarts: int = 0

    @property
    def begun(self) -> bool:
        """Whether it was ever started."""
        return self.boot_id != ""


@dataclass(frozen=True, slots=True)
class Run:
    """Of a ``Document``: what of its last start is needed to end it."""

    boot_id: str
    cgroup: str = ""
    removed: bool = False

    @property
    def begun(self) -> bool:
        """As ``Document.begun``."""
        return self.boot_id != ""


def parse_run(raw: bytes) -> Run:
    """As ``parse``, in a tenth of the time: the rest is not looked at."""
    from dockless.base.records import read

    values = json.loads(raw.partition(b"\0")[0])
    return read(Run, {name: values[name] for name in Run.__match_args__ if name in values} if isinstance(values, dict) else values)


def parse(raw: bytes) -> Document:
    """``ValueError``, ``RecursionError`` for what is no sound one."""
    from dockless.base.records import read

    document = read(Document, json.loads(raw.partition(b"\0")[0]))
    if not 0 <= document.created < _LATEST:
        raise ValueError(f"{document.created} is no time of creation")
    return document


def plan_behind(raw: bytes) -> bytes:
    """The plan of a foreground sandbox, which is in the same file."""
    return raw.partition(b"\0")[2]


def write(directory: Path, document: Document, plan: bytes = b"") -> None:
    """Whole or not at all, and durable. ``plan``: of a foreground sandbox. ``Unwritable``"""
    temporary = directory / "spec.tmp"
    with paths.writing("the records of a sandbox", directory):
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            rest = memoryview(written(document, plan))
            while rest:
                rest = rest[os.write(fd, rest) :]
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, directory / NAME)


def written(document: Document, plan: bytes = b"") -> bytes:
    """What ``parse`` reads."""
    return with_plan(f"{{{members(**_fields(document))}}}", plan)


@contextlib.contextmanager
def changing(directory: Path) -> Iterator[None]:
    """While somebody reads what is there and writes it anew nobody else does. ``FileNotFoundError``, ``Unwritable``"""
    while True:
        with open(os.open(directory / NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(held.fileno()), os.stat(directory / NAME)):
                yield
                return


def note(directory: Path, name: str, content: bytes) -> None:
    """A new file in one write, for as long as the sandbox lives: a reader may come before it is whole. ``OSError``"""
    fd = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, content)
    finally:
        os.close(fd)


def members(**fields: object) -> str:
    """Fields of a ``Document`` as JSON, without the braces. ASCII alone: what is not UTF-8 travels as lone surrogates."""
    return json.dumps(fields, separators=(",", ":"), default=_fields)[1:-1]


def with_plan(text: str, plan: bytes) -> bytes:
    """What is in the file."""
    return text.encode("ascii") + (b"\0" + plan if plan else b"")


def _fields(record: object) -> dict[str, object]:
    return {name: getattr(record, name) for name in record.__slots__}  # type: ignore[attr-defined]


@functools.cache
def boot_id() -> str:
    """Changes at every boot: a pid or a cgroup of another boot is nobody's."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
