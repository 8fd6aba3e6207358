"""The keywords of a sandbox: what ``run``, ``arun``, ``Sandbox`` and ``submit`` take beside their own, for people and type checkers; values
are checked against it. What becomes of each is in ``_options.KEYWORDS``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from dockless.base.paths import Argument, StrPath
from dockless.cgroups import IoMax, Limits
from dockless.images.transfer.pull_policy import PullPolicy
from dockless.sandbox.spec import Mount, Namespaces, Network, Profile, Rlimit, RootMode

if TYPE_CHECKING:
    from typing import TypedDict
else:

    class TypedDict(dict):
        """Only its annotations are needed when a program runs, and as text: making a real one takes as long as all of ``make_spec``."""

        def __init_subclass__(cls, total: bool = True) -> None:
            pass


Size = str | int


class Options(TypedDict, total=False):
    """The keywords of a sandbox. Sizes: bytes or ``"4G"``; durations: seconds or ``"1h30m"``; cores: ``1.5`` or ``"1500m"``.

    mounts: ``"/host:/inside[:ro]"``, ``"name:/inside"`` for a named volume, or ``Bind``, ``Tmpfs``, ``Volume``. ulimits:
    ``{"nofile": 1024}``, a pair for soft and hard, -1 for none. gpus: ``2`` for any two free ones, ``"all"``, ``"device=0,2"``, a UUID.
    io: ``"/data:read=50MB/s"``. cpu_affinity: ``"0-3,8"`` or numbers. limits: a ready ``Limits`` instead of the keywords for limits.
    pull: ``"missing"`` (the default) brings an image that the store lacks, ``"always"``, ``"newer"``, ``"never"``.
    timeout: after which the whole tree ends; grace: between the stop signal and SIGKILL then. best_effort: a limit that this host cannot
    enforce becomes a warning.
    """

    env: Mapping[str, str] | Iterable[str]
    workdir: StrPath
    user: str | int
    group_add: Iterable[int | str]
    hostname: str
    entrypoint: Argument | Sequence[Argument] | None
    profile: Profile
    root: RootMode
    root_size: Size
    mounts: Iterable[str | Mount]
    tmpfs: Iterable[str]
    shm_size: Size
    log_size: Size
    network: Network
    namespaces: Namespaces | Mapping[str, str]
    time_offset: int
    cap_add: str | Iterable[str]
    cap_drop: str | Iterable[str]
    seccomp: StrPath
    ulimits: Mapping[str, int | str | Sequence[int | str]] | Iterable[str | Rlimit]
    umask: int | str | None
    oom_score_adj: int | None
    cpu_affinity: str | Iterable[int]
    stop_signal: str | int
    timeout: str | float | None
    grace: str | float | None
    gpus: str | int | None
    best_effort: bool
    pull: PullPolicy
    limits: Limits | None
    cpus: str | float | None
    cpu_weight: str | int | None
    cpu_burst: str | float | None
    cpuset: str | None
    mems: str | None
    memory: Size | None
    memory_high: Size | None
    memory_low: Size | None
    memory_min: Size | None
    swap: Size | None
    oom_group: bool | None
    io: str | Iterable[str | IoMax]
    io_weight: str | int | None
    pids: str | int | None
    hugetlb: str | Mapping[str, str | int]
    dmem: str | Mapping[str, str | int]
