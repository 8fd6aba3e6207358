"""The keywords of a sandbox: what ``run``, ``arun``, ``Sandbox`` and ``submit`` take beside their own, for people and type checkers; values
are checked against it. What becomes of each is in ``_options.KEYWORDS``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from dockless._stdio import Stream
from dockless.base.healthcheck import HealthCheck
from dockless.base.paths import Argument, StrPath
from dockless.base.typing import TYPE_CHECKING, Any, Literal, Required
from dockless.cgroups import IoMax, Limits
from dockless.images.pull_policy import PullPolicy
from dockless.sandbox.network.model import Egress, Endpoint, Port, Rule
from dockless.sandbox.spec import Mount, Namespaces, Profile, Rlimit, RootMode

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
    gpu_memory: ``"20G"`` that each has at least; a MIG slice that has it will do where one GPU is enough.
    gpu_class: what each is: a model (``"H100"``), a MIG profile (``"1g.10gb"``), ``"whole"``.
    disk: ``"10G"`` that it may write to its image; an error if the disk has no project quotas, a job is measured instead.
    io: ``"/data:read=50MB/s"``. cpu_affinity: ``"0-3,8"`` or numbers. limits: a ready ``Limits`` instead of the keywords for limits.
    tty: its standard streams are a terminal of its own. interactive: the standard input of a detached one stays open, for ``attach``.
    devices: ``"/dev/kvm"``, ``"/dev/sda:/dev/disk:r"``, ``"amd.com/gpu=0"`` as a file of the Container Device Interface describes it;
    ``"amd.com/gpu:2"``: any two, where the settings say that they are leased.
    network: ``"none"`` (the default: loopback alone), ``"host"``, ``"bridge"``, the name of a user network, ``"container:ID"``; or
    several names; ``"NAME:ip=10.1.0.5,mac=…,alias=db"`` or an ``Endpoint`` says more. publish: ``"8080:80"``, ``"127.0.0.1:53:53/udp"``:
    ports of the host that lead inside. dns, dns_search, dns_options: for its /etc/resolv.conf. allow_out: where alone it may connect to
    beyond its networks, ``["10.0.0.0/8", "pypi.org:443"]``, nowhere if empty. allow_host: that may be the host itself or a metadata
    address, the default unless allow_out is given or the profile is untrusted. net_rate: ``"10M"`` bytes a second, in and out each.
    log_denied: what is refused is in the kernel's log. egress: a ready ``Egress`` instead of those four.
    add_hosts: ``{"db": "10.0.0.5"}`` or ``"db:10.0.0.5"``. sysctls: ``{"net.core.somaxconn": 1024}``, those of its own namespaces.
    pull: ``"missing"`` (the default) brings an image that the store lacks, ``"always"``, ``"newer"``, ``"never"``.
    platform: ``"linux/arm64"``, that the image must be for.
    timeout: after which the whole tree ends; idle_timeout: the same after a time without anybody; ttl: the same, but ``extend`` moves that
    end, see there; grace: between the stop signal and SIGKILL, then and where somebody stops it. health: a ``HealthCheck``, False for none;
    left out: the image's own. labels: names and values by which it can be found, of a sandbox and not of a job. best_effort: a limit that
    this host cannot enforce becomes a warning.
    """

    env: Mapping[str, str] | Iterable[str]
    workdir: StrPath
    user: str | int
    group_add: Iterable[int | str]
    hostname: str
    domainname: str
    add_hosts: Mapping[str, str] | Iterable[str]
    sysctls: Mapping[str, str | int] | Iterable[str]
    entrypoint: Argument | Sequence[Argument] | None
    profile: Profile
    root: RootMode
    root_size: Size
    disk: Size
    mounts: Iterable[str | Mount]
    tmpfs: Iterable[str]
    shm_size: Size
    log_size: Size
    keep_log: bool
    tty: bool
    interactive: bool
    devices: Iterable[str]
    network: str | Endpoint | Iterable[str | Endpoint]
    publish: str | Port | Iterable[str | Port]
    dns: str | Iterable[str]
    dns_search: str | Iterable[str]
    dns_options: str | Iterable[str]
    egress: Egress | None
    allow_out: str | Iterable[str | Rule] | None
    allow_host: bool | None
    net_rate: Size | None
    log_denied: bool
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
    idle_timeout: str | float | None
    ttl: str | float | None
    health: HealthCheck | Literal[False] | None
    gpus: str | int | None
    gpu_memory: Size | None
    gpu_class: str | None
    best_effort: bool
    pull: PullPolicy
    platform: str
    labels: Mapping[str, str]
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


class QueueOptions(TypedDict, total=False):
    """The keywords of a job of the queue.

    time_limit: seconds or ``"2h"``; a job with one can be fitted in before a wide job that waits. hold: it waits until it is released.
    begin: not before that time, ``"2026-01-31T08:00:00Z"`` (without a zone UTC), ``"+2h"`` or seconds since 1970. after: when other jobs
    have ended, ``"ok:12"``, ``"not-ok:12"`` or ``"any:12"``; it is cancelled where that cannot be any more. singleton: when no older job
    of this user and name is left. retries: how often it runs again when it failed, retry_on: after these exit codes alone. warn:
    ``"USR1@2m"``, a signal so long before its time limit. notify: what its owner is told of, ``"end,fail"`` (also start, preempt, idle),
    where the administrator has said how; notify_to: at which address for mail, instead of her own.
    """

    priority: int
    time_limit: str | float | None
    name: str
    group: str
    on_reboot: Literal["requeue", "fail"]
    hold: bool
    begin: str | float | None
    after: str | Sequence[str]
    singleton: bool
    retries: int
    retry_on: Sequence[int]
    warn: str
    notify: str | Sequence[str]
    notify_to: str


class SubmitOptions(Options, QueueOptions, total=False): ...


class StreamOptions(TypedDict, total=False):
    """The keywords of streams.

    stdin, stdout, stderr: None (ours), ``PIPE``, ``DEVNULL``, ``STDOUT``, an fd or a file. bufsize: as ``subprocess.Popen`` has it.
    max_output: how much of each stream is kept to be given back at the end, bytes or ``"64M"``; the rest is read and dropped.
    on_stdout, on_stderr: called while somebody waits, with each line of text, or with bytes as they come.
    """

    stdin: Stream
    stdout: Stream
    stderr: Stream
    bufsize: int
    max_output: Size | None


class TextStreams(StreamOptions, total=False):
    text: Required[Literal[True]]
    encoding: str | None
    errors: str | None
    on_stdout: Callable[[str], object] | None
    on_stderr: Callable[[str], object] | None


class BytesStreams(StreamOptions, total=False):
    text: Literal[False] | None
    on_stdout: Callable[[bytes], object] | None
    on_stderr: Callable[[bytes], object] | None


class AnyStreams(StreamOptions, total=False):
    text: bool | None
    encoding: str | None
    errors: str | None
    on_stdout: Callable[[Any], object] | None
    on_stderr: Callable[[Any], object] | None


class SandboxOptions(Options, total=False):
    id: str | None
    measure: bool
    size: tuple[int, int] | None


class TextSandbox(SandboxOptions, TextStreams, total=False): ...


class BytesSandbox(SandboxOptions, BytesStreams, total=False): ...


class AnySandbox(SandboxOptions, AnyStreams, total=False): ...


class RunOptions(Options, total=False):
    id: str | None
    check: bool


class TextRun(RunOptions, TextStreams, total=False):
    input: str | None
    capture_output: Required[Literal[True]]


class BytesRun(RunOptions, BytesStreams, total=False):
    input: bytes | None
    capture_output: Required[Literal[True]]


class AnyRun(RunOptions, AnyStreams, total=False):
    input: str | bytes | None
    capture_output: bool


class TakeOptions(TypedDict, total=False):
    """The keywords of a program that runs in a sandbox of a pool: see ``Pool.take``."""

    env: Mapping[str, str] | Iterable[str]
    workdir: StrPath


class TextTake(TakeOptions, TextStreams, total=False): ...


class BytesTake(TakeOptions, BytesStreams, total=False): ...


class AnyTake(TakeOptions, AnyStreams, total=False): ...


class TextTakeRun(TextTake, total=False):
    check: bool
    input: str | None
    capture_output: Required[Literal[True]]


class BytesTakeRun(BytesTake, total=False):
    check: bool
    input: bytes | None
    capture_output: Required[Literal[True]]


class AnyTakeRun(AnyTake, total=False):
    check: bool
    input: str | bytes | None
    capture_output: bool


class DebugOptions(TypedDict, total=False):
    """The keywords of a command of another image: see ``Sandbox.debug``."""

    env: Mapping[str, str] | Iterable[str]
    workdir: StrPath
    timeout: str | float | None


class TextDebug(DebugOptions, TextStreams, total=False): ...


class BytesDebug(DebugOptions, BytesStreams, total=False): ...


class ExecOptions(DebugOptions, total=False):
    """The keywords of a command that is executed: see ``Sandbox.exec``."""

    user: str | int


class TextExec(ExecOptions, TextStreams, total=False): ...


class BytesExec(ExecOptions, BytesStreams, total=False): ...
