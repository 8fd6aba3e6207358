"""What a job file says, whatever its format: roles with the keywords of ``dockless.run``, and what the queue is told of the job."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping

from dockless.base.dataclass import dataclass, field
from dockless.base.typing import Any
from dockless.sched.formats.tables import Source


@dataclass(frozen=True, slots=True)
class Role:
    """Programs of one kind in a job. ``command``: empty for the image's own. ``options``: the keywords of ``dockless.run``, beside GPUs.
    ``ports``: how many ports each label stands for. The job fails when ``min_failed`` instances have failed, None for never; it is done
    when ``min_succeeded`` have ended well, None for when all have ended. ``reserve_cpus``: cores that the queue counts for each, where its
    limit says fewer."""

    name: str = "main"
    count: int = 1
    image: str = "host"
    command: tuple[str, ...] = ()
    gpus: str = ""
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)  # the environment is among them
    ports: Mapping[str, int] = field(default_factory=dict)
    min_failed: int | None = 1
    min_succeeded: int | None = None
    reserve_cpus: float = 0.0


@dataclass(frozen=True, slots=True)
class Secret:
    """``value`` empty: it is in the variable ``env`` of whoever submits the job."""

    value: str = field(default="", repr=False)
    env: str = ""


@dataclass(frozen=True, slots=True)
class JobFile:
    """``queue``: the keywords of ``dockless.submit`` that are not of ``dockless.run``, and ``array``. ``secrets``: by the names with which
    commands and variables refer to them, ``<% $secrets.NAME %>``. ``notes``: what of the file has no effect, each with its place.
    ``literal``: what looks like such a reference and is none, as a job has it that was submitted without a file.
    ``together``: each instance is told of all of them, also where there is one. ``source``: where its keys are."""

    format: str
    name: str
    roles: tuple[Role, ...]
    queue: Mapping[str, Any] = field(default_factory=dict)
    secrets: Mapping[str, Secret] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    together: bool = False
    source: Source | None = field(default=None, repr=False, compare=False)
    literal: frozenset[str] = frozenset()


def host_path(address: str) -> str:
    """The path of a directory of this host, whole or as ``file:///path``; empty for what is none, or cannot be mounted there."""
    path = address.removeprefix("file://")
    whole = path.startswith("/") and not {":", "$", "<", "\0"} & set(path)
    return posixpath.normpath(path) if whole and path.strip("/.") else ""


def mounts_of(read: Iterable[str], written: Iterable[str] = ()) -> list[str]:
    """These directories of the host at the same places, as ``mounts`` takes them: first those that others lie in. What is written, too, is
    not read-only. They are found and opened with the rights of the job's user, like all that she mounts."""
    both = set(written)
    return [f"{path}:{path}" + ("" if path in both else ":ro") for path in sorted({*read, *both})]
