"""What a job file says, whatever its format: roles with the keywords of ``dockless.run``, and what the queue is told of the job."""

from __future__ import annotations

from collections.abc import Mapping

from dockless.base.dataclass import dataclass, field
from dockless.base.typing import Any


@dataclass(frozen=True, slots=True)
class Role:
    """Programs of one kind in a job. ``command``: empty for the image's own. ``options``: the keywords of ``dockless.run``, beside GPUs.
    ``ports``: how many ports each label stands for. The job fails when ``min_failed`` instances have failed, None for never; it is done
    when ``min_succeeded`` have ended well, None for when all have ended."""

    name: str = "main"
    count: int = 1
    image: str = "host"
    command: tuple[str, ...] = ()
    gpus: str = ""
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)  # the environment is among them
    ports: Mapping[str, int] = field(default_factory=dict)
    min_failed: int | None = 1
    min_succeeded: int | None = None


@dataclass(frozen=True, slots=True)
class Secret:
    """``value`` empty: it is in the variable ``env`` of whoever submits the job."""

    value: str = field(default="", repr=False)
    env: str = ""


@dataclass(frozen=True, slots=True)
class JobFile:
    """``queue``: the keywords of ``dockless.submit`` that are not of ``dockless.run``, and ``array``. ``secrets``: by the names with which
    commands and variables refer to them, ``<% $secrets.NAME %>``. ``notes``: what of the file has no effect, each with its place."""

    format: str
    name: str
    roles: tuple[Role, ...]
    queue: Mapping[str, Any] = field(default_factory=dict)
    secrets: Mapping[str, Secret] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
