"""The options that run and submit share, and their meaning: the keywords of ``dockless.run``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from dockless._pulling import present
from dockless.base.checks import check
from dockless.cli.parser import Namespace, Parser
from dockless.errors import BadInput
from dockless.images.transfer.pull_policy import PULL_POLICIES

_SAME_NAME = (
    "workdir", "user", "entrypoint", "hostname", "umask", "oom_score_adj", "cpu_affinity", "timeout", "grace", "stop_signal", "root",
    "root_size", "shm_size", "memory", "memory_high", "memory_low", "memory_min", "cpus", "cpu_weight", "cpu_burst", "io_weight", "hugetlb",
    "profile", "network", "time_offset", "gpus", "log_size",
)  # fmt: skip
_LARGEST_FILE = 4 << 20
"""Characters of an --env-file at most: more than execve(2) takes."""


def image_options(parser: Parser, usage: str) -> None:
    """``[options] [IMAGE] [-- COMMAND …]``."""
    parser.takes_command = True
    parser.usage = usage
    parser.add_argument(
        "image", nargs="*", metavar="IMAGE", help="pulled if the store lacks it; left out: the host's own system, read-only (`host`)"
    )


def pull_option(parser: Any) -> None:
    parser.add_argument(
        "--pull", choices=PULL_POLICIES, help="missing: what the store lacks is pulled first (default); always; newer; never"
    )


def fetched(image: str, options: Namespace, bring: Callable[..., str] = present) -> str:
    """The image in the store, pulled if that is wanted; the name by which it is there."""
    if image == "host":
        return image
    from dockless.cli.progress import Shown, resumable

    with resumable("the pull"), Shown(options.quiet or options.json) as progress:
        return bring(image, options.pull or "missing", progress)


def image_and_command(options: Namespace) -> tuple[str, list[str]]:
    """The image and the command of a parsed line. ``BadInput`` where neither is said, or the ``--`` was forgotten."""
    if len(options.image) > 1:
        wanted = " ".join(options.image[1:4])
        raise BadInput(
            f"{wanted!r} follows the image", subject=options.image[1], hint=f"the command goes after '--': {options.image[0]} -- {wanted}"
        )
    if options.command is not None and not options.command:
        raise BadInput("there is no command after '--'", hint="leave '--' out to run the image's own command")
    if not options.image and options.command is None:
        raise BadInput("neither an image nor a command", hint="dockless run IMAGE, dockless run IMAGE -- COMMAND, dockless run -- COMMAND")
    return (options.image[0] if options.image else "host"), options.command or []


def sandbox_options(parser: Parser) -> None:
    """What run and submit share, in groups for --help."""
    job = parser.add_argument_group("the command")
    job.add_argument("--rm", action="store_true", help="the default: nothing is left of it when it has ended")
    job.add_argument("--init", action="store_true", help="the default: an init process reaps what others leave")
    job.add_argument(
        "-e", "--env", action="append", default=[], metavar="NAME[=VALUE]", help="set a variable; without a value: the caller's"
    )
    job.add_argument("--env-file", action="append", default=[], metavar="FILE", help="variables, one NAME=VALUE per line")
    job.add_argument("-w", "--workdir", metavar="DIR", help="where it starts, inside")
    job.add_argument("-u", "--user", metavar="USER[:GROUP]", help="names or numbers, looked up inside the image")
    job.add_argument("--group-add", action="append", default=[], metavar="GID", help="a supplementary group")
    job.add_argument("--entrypoint", metavar="PROGRAM", help='instead of the image\'s; "" for none')
    job.add_argument("--hostname", metavar="NAME", help="the host name inside")
    job.add_argument("--ulimit", action="append", default=[], metavar="NAME=SOFT[:HARD]", help="a resource limit: nofile=1024:4096")
    job.add_argument("--umask", metavar="OCTAL", help="like 022")
    job.add_argument("--oom-score-adj", type=int, metavar="N", help="-1000 to 1000")
    job.add_argument("--cpu-affinity", metavar="LIST", help="processors to run on, without a limit: 0-3,8")
    job.add_argument("--timeout", metavar="TIME", help="kill everything inside after that: 90s, 1h30m (exit code 124)")
    job.add_argument("--grace", metavar="TIME", help="between the stop signal and the kill (default: none)")
    job.add_argument("--log-size", metavar="SIZE", help="how much output of a job, or of run -d, is kept, the newest (default: 128M)")
    job.add_argument("--stop-signal", metavar="SIGNAL", help="instead of the image's, or TERM")

    files = parser.add_argument_group("files")
    files.add_argument("-v", "--volume", action="append", default=[], metavar="SOURCE:TARGET[:ro]", help="a host path, or a named volume")
    files.add_argument(
        "--mount", action="append", default=[], metavar="KEY=VALUE,…", help="type=bind|volume|tmpfs,source=,target=,ro,idmap,size=,mode="
    )
    files.add_argument("--tmpfs", action="append", default=[], metavar="TARGET[:size=…]", help="a private memory file system")
    files.add_argument("--root", choices=("disk", "tmpfs", "readonly"), help="where changes to the image go (default: disk, thrown away)")
    files.add_argument("--root-size", metavar="SIZE", help="of --root tmpfs")
    files.add_argument("--read-only", action="store_true", help="the same as --root readonly")
    files.add_argument("--shm-size", metavar="SIZE", help="of /dev/shm (default: 1G)")

    limits = parser.add_argument_group("limits", "Where this host cannot enforce one it is an error; --best-effort makes it a warning.")
    limits.add_argument("-m", "--memory", metavar="SIZE", help="memory.max: 4G")
    limits.add_argument("--memory-swap", metavar="SIZE", help="memory and swap together, -1 for any swap (needs -m)")
    limits.add_argument("--memory-high", metavar="SIZE", help="slow it down above that")
    limits.add_argument("--memory-low", metavar="SIZE", help="protect that much, if others can give")
    limits.add_argument("--memory-min", metavar="SIZE", help="protect that much, whatever it costs")
    limits.add_argument("--cpus", metavar="CORES", help="cpu.max: 1.5")
    limits.add_argument("--cpu-weight", metavar="N", help="share under contention, 1 to 10000 (default: 100)")
    limits.add_argument("--cpu-burst", metavar="TIME", help="unused time that may be saved up")
    limits.add_argument("--cpuset-cpus", metavar="LIST", help="only these processors: 0-3")
    limits.add_argument("--cpuset-mems", metavar="LIST", help="only these memory nodes")
    limits.add_argument("--pids-limit", metavar="N", help="processes and threads at once")
    limits.add_argument(
        "--io", action="append", default=[], metavar="PATH:rbps=…,wiops=…", help="a disk by any path on it: /data:rbps=50M,wiops=1000"
    )
    for name, key in (
        ("device-read-bps", "rbps"),
        ("device-write-bps", "wbps"),
        ("device-read-iops", "riops"),
        ("device-write-iops", "wiops"),
    ):
        limits.add_argument(f"--{name}", action="append", default=[], metavar="PATH:N", help=f"the same as --io PATH:{key}=N")
    limits.add_argument("--io-weight", metavar="N", help="share of the disk, 1 to 10000")
    limits.add_argument("--hugetlb", metavar="SIZE=SIZE", help="huge pages: 2MB=1G")
    limits.add_argument("--best-effort", action="store_true", help="go on without a limit that cannot be enforced, and say so")

    walls = parser.add_argument_group("isolation")
    walls.add_argument(
        "--profile", choices=("default", "untrusted", "privileged"), help="untrusted: no capabilities, no network, read-only"
    )
    walls.add_argument("--network", "--net", choices=("none", "host"), help="none: loopback only (default)")
    for name, flag in (("user", "userns"), ("pid", "pid"), ("ipc", "ipc"), ("uts", "uts"), ("cgroup", "cgroupns"), ("time", "timens")):
        names = (f"--{flag}",)
        walls.add_argument(*names, dest=f"ns_{name}", choices=("new", "host"), help=f"{name} namespace: its own or the host's")
    walls.add_argument("--time-offset", type=int, metavar="SECONDS", help="added to the clocks of a new time namespace")
    walls.add_argument("--cap-add", action="append", default=[], metavar="CAP", help="NET_ADMIN, ALL, …")
    walls.add_argument("--cap-drop", action="append", default=[], metavar="CAP", help="likewise")
    walls.add_argument(
        "--security-opt", action="append", default=[], metavar="seccomp=FILE", help="a profile as Docker's, or seccomp=unconfined"
    )

    gpus = parser.add_argument_group("GPUs")
    gpus.add_argument("--gpus", metavar="N|all|device=…", help="N free ones; all; device=0,2; or UUIDs")


def keywords(options: Namespace) -> dict[str, Any]:
    """The parsed options as the keywords of ``dockless.run``: one meaning for both."""
    found: dict[str, Any] = {name: value for name in _SAME_NAME if (value := getattr(options, name)) is not None}
    renamed = {"cpuset": options.cpuset_cpus, "mems": options.cpuset_mems, "pids": options.pids_limit}
    found |= {name: value for name, value in renamed.items() if value is not None}
    namespaces = {n: value for n in ("user", "pid", "ipc", "uts", "cgroup", "time") if (value := getattr(options, f"ns_{n}")) is not None}
    if options.time_offset is not None:
        namespaces.setdefault("time", "new")
    if options.read_only:
        if options.root not in (None, "readonly"):
            raise BadInput(f"--read-only and --root {options.root}", subject="--root", hint="give one of them")
        found["root"] = "readonly"
    if options.memory_swap is not None:
        found["swap"] = _swap(options.memory, options.memory_swap)
    disks = list(options.io)
    for key in ("read_bps", "write_bps", "read_iops", "write_iops"):
        disks += [_device_limit(key, text) for text in getattr(options, f"device_{key}")]
    return found | {
        "env": _environment(options.env_file, options.env),
        "group_add": options.group_add,
        "ulimits": options.ulimit,
        "mounts": [*options.volume, *(_mount(text) for text in options.mount)],
        "tmpfs": options.tmpfs,
        "io": _joined(disks),
        "namespaces": namespaces,
        "cap_add": options.cap_add,
        "cap_drop": options.cap_drop,
        "seccomp": _seccomp(options.security_opt),
        "best_effort": options.best_effort,
    }


def _swap(memory: str | None, both: str) -> int | None:
    """Docker's --memory-swap is the sum of memory and swap; cgroup v2 limits swap alone."""
    from dockless.base.units import parse_size

    if both == "-1":
        return None
    if memory is None:
        raise BadInput("--memory-swap without --memory", subject="--memory-swap", hint="it is the sum of memory and swap: give -m too")
    swap = parse_size(both, "memory and swap") - parse_size(memory, "memory")
    if swap < 0:
        raise BadInput(
            f"--memory-swap {both} is less than --memory {memory}", subject="--memory-swap", hint="it is the sum of memory and swap"
        )
    return swap


def _device_limit(key: str, text: str) -> str:
    path, _, value = text.rpartition(":")
    if not path or not value:
        raise BadInput(
            f"--device-{key.replace('_', '-')} {text[:60]!r} cannot be read", subject=text[:80], hint="write PATH:VALUE: /data:50MB"
        )
    short = {"read_bps": "rbps", "write_bps": "wbps", "read_iops": "riops", "write_iops": "wiops"}[key]
    return f"{path}:{short}={value}"


def _joined(disks: Sequence[str]) -> list[str]:
    """One entry per disk: the kernel keeps one line for each."""
    found: dict[str, list[str]] = {}
    for text in disks:
        path, colon, settings = text.rpartition(":")
        found.setdefault(path + colon, []).append(settings)
    return [f"{path}{','.join(settings)}" for path, settings in found.items()]


def _environment(files: Sequence[str], entries: Sequence[str]) -> dict[str, str]:
    """Variables of files, then of the line. A name alone takes the caller's value, where she has one."""
    check("--env", entries, Sequence[str])
    found: dict[str, str] = {}
    for where, entry in (*(line for path in files for line in _lines(path)), *((f"--env {entry[:60]!r}", entry) for entry in entries)):
        name, equals, value = entry.partition("=")
        if not name:
            raise BadInput(f"{where}: there is no name", subject="--env", hint="write NAME=VALUE, or NAME for the caller's value")
        if equals:
            found[name] = value
        elif name in os.environ:
            found[name] = os.environ[name]
    return found


def _lines(path: str) -> Iterator[tuple[str, str]]:
    """The entries of an --env-file, each with where it stands. Empty lines and comments are none."""
    hint = "give a file of NAME=VALUE lines"
    try:
        with open(path, encoding="utf-8-sig", errors="surrogateescape") as stream:
            text = stream.read(_LARGEST_FILE + 1)
    except (OSError, ValueError) as error:
        raise BadInput(f"--env-file {path}: {getattr(error, 'strerror', None) or error}", subject="--env-file", hint=hint) from None
    if len(text) > _LARGEST_FILE:
        raise BadInput(f"--env-file {path} is longer than any environment", subject="--env-file", hint=hint)
    for number, raw in enumerate(text.split("\n"), 1):
        line, where = raw.strip("\r").lstrip(), f"--env-file {path}, line {number}"
        if "\0" in line:
            raise BadInput(f"{where} contains a NUL byte", subject="--env-file", hint=hint)
        name = line.partition("=")[0]
        if line[:1] != "#" and name != "".join(name.split()):
            raise BadInput(f"{where}: the name {name[:40]!r} has a blank in it", subject="--env-file", hint=f"{hint}, without 'export'")
        if line and line[0] != "#":
            yield where, line


_MOUNT_KEYS = {
    "bind": ("source", "target", "ro", "rw", "idmap", "bind-nonrecursive"),
    "volume": ("source", "target", "ro", "rw"),
    "tmpfs": ("target", "size", "mode"),
}
_MOUNT_ALIASES = {
    "src": "source", "dst": "target", "destination": "target", "readonly": "ro", "tmpfs-size": "size", "tmpfs-mode": "mode",
}  # fmt: skip
_SWITCHES = ("ro", "rw", "idmap", "bind-nonrecursive")
_BOOLEANS = {"": True, "true": True, "1": True, "false": False, "0": False}


def _mount(text: str) -> Any:
    """Docker's long form: ``type=bind,source=/a,target=/b,ro``. Without a type it is a volume."""
    from dockless._options import absolute, parse_tmpfs
    from dockless.sandbox.spec import Bind, Volume

    def refuse(why: str) -> NoReturn:
        raise BadInput(f"--mount {text[:80]!r}: {why}", subject=text[:80], hint="write type=bind,source=/on/the/host,target=/inside,ro")

    settings: dict[str, str] = {}
    for part in text.split(","):
        key, _, value = part.partition("=")
        key = _MOUNT_ALIASES.get(key, key)
        if key in settings:
            refuse(f"{key} is given twice")
        if key not in _SWITCHES and not value:
            refuse(f"{part[:30]!r} is not KEY=VALUE")
        if key in _SWITCHES and value not in _BOOLEANS:
            refuse(f"{key} is {value[:30]!r}, neither true nor false")
        settings[key] = value
    kind = settings.pop("type", "volume")
    if kind not in _MOUNT_KEYS:
        refuse(f"type {kind[:30]!r} is unknown, it is bind, volume or tmpfs")
    for key in settings:
        if key not in _MOUNT_KEYS[kind]:
            refuse(f"{key[:30]!r} is no setting of a {kind}, which has {', '.join(_MOUNT_KEYS[kind])}")
    if "target" not in settings:
        refuse("there is no target")
    if kind != "tmpfs" and "source" not in settings:
        refuse("there is no source")
    if kind == "tmpfs":
        sizes = [f"{key}={settings[key]}" for key in ("size", "mode") if key in settings]
        return parse_tmpfs(f"{settings['target']}:{','.join(sizes)}")
    source, target = settings["source"], settings["target"]
    on = {key: _BOOLEANS[settings.get(key, "false")] for key in _SWITCHES}
    if on["ro"] and on["rw"]:
        refuse("ro and rw are given")
    if kind == "bind":
        recursive = not on["bind-nonrecursive"]
        return Bind(absolute(source, "--mount"), target, readonly=on["ro"], recursive=recursive, idmap=on["idmap"] or None)
    if source[0] in "/.~":
        refuse("a volume has a name, not a path; type=bind is for a path of the host")
    return Volume(source, target, readonly=on["ro"])


def _seccomp(entries: Sequence[str]) -> str:
    found = ""
    for entry in entries:
        key, _, value = entry.replace(":", "=", 1).partition("=")
        if key == "seccomp" and value:
            found = value
        elif key not in ("no-new-privileges", "no_new_privs"):  # always on here
            raise BadInput(f"--security-opt {entry[:60]!r} is unknown", subject=entry[:80], hint="seccomp=FILE, seccomp=unconfined")
    return found
