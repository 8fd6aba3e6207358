"""The options that run and submit share, and their meaning: the keywords of ``dockless.run``. ``GROUPS`` is the table of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

from dockless._pulling import present
from dockless.base.checks import check
from dockless.base.dataclass import dataclass
from dockless.base.healthcheck import HealthCheck
from dockless.base.typing import Any
from dockless.cli.parser import Namespace, Parser, whole
from dockless.errors import BadInput
from dockless.images.pull_policy import PULL_POLICIES

_LARGEST_FILE = 4 << 20
"""Characters of an --env-file or a --label-file at most: more than execve(2) takes."""


@dataclass(frozen=True, slots=True)
class Option:
    """``keyword``: of ``dockless.run``, empty for none. ``flags``: with blanks between. ``metavar``: of what it takes; a switch has neither
    that nor ``choices``. ``repeated``: it may be, and gives a list. ``value``: where a keyword is more than what its one option was given,
    it is made of all that was parsed."""

    keyword: str
    flags: str
    metavar: str
    help: str
    choices: tuple[str, ...] = ()
    repeated: bool = False
    type: Callable[[str], Any] | None = None
    value: Callable[[Namespace], Any] | None = None

    @property
    def place(self) -> str:
        """What ``Namespace`` calls it: as argparse does, where it is not the keyword."""
        name = next(flag for flag in self.flags.split() if flag[:2] == "--")[2:]
        return self.keyword if self.keyword and not self.value else name.replace("-", "_")

    @property
    def absent(self) -> Any:
        """Its value on a line without it."""
        return [] if self.repeated else None if self.choices or self.metavar else False

    def add_to(self, parser: Any) -> None:
        more: dict[str, Any] = {"dest": self.place, "default": self.absent}
        if self.choices:
            more["choices"] = self.choices
        elif self.metavar:
            more |= {"metavar": self.metavar, "type": self.type}
        else:
            more["action"] = "store_true"
        if self.repeated:
            more["action"] = "append"
        parser.add_argument(*self.flags.split(), help=self.help, **more)


Groups = Sequence[tuple[str, str | None, Sequence[Option]]]


def environment_options(parser: Parser) -> None:
    """Those of a command's variables; what they say: ``environment_of``."""
    for row in COMMAND:
        if row.keyword == "env":
            row.add_to(parser)


def image_options(parser: Parser, usage: str) -> None:
    """``[options] [IMAGE] [-- COMMAND …]``."""
    parser.takes_command = True
    parser.usage = usage
    parser.add_argument(
        "image", nargs="*", metavar="IMAGE", help="pulled if the store lacks it; left out: the host's own system, read-only (`host`)"
    )


def pull_option(parser: Any) -> None:
    """``keywords`` leaves them out: whoever shows the progress of a pull does it before."""
    PULL.add_to(parser)
    PLATFORM.add_to(parser)


def fetched(
    image: str, options: Namespace, bring: Callable[..., str] = present, *, pull: str | None = None, platform: str | None = None
) -> str:
    """The image in the store, pulled if that is wanted; the name by which it is there. ``pull``, ``platform``: of a job file, where the
    command line does not say them."""
    platform = options.platform or platform
    if image == "host" and platform is None:
        return image
    from dockless.cli.progress import ProgressLine, resumable

    with resumable("the pull"), ProgressLine(options.quiet or options.json) as progress:
        return bring(image, options.pull or pull or "missing", progress, platform)


def image_and_command(options: Namespace, verb: str = "run") -> tuple[str, list[str]]:
    """The image and the command of a parsed line. ``BadInput`` where neither is said, or the ``--`` was forgotten."""
    if len(options.image) > 1:
        wanted = " ".join(options.image[1:4])
        raise BadInput(
            f"{wanted!r} follows the image", subject=options.image[1], hint=f"the command goes after '--': {options.image[0]} -- {wanted}"
        )
    if options.command is not None and not options.command:
        raise BadInput("there is no command after '--'", hint="leave '--' out to run the image's own command")
    if not options.image and options.command is None:
        hint = f"dockless {verb} IMAGE, dockless {verb} IMAGE -- COMMAND, dockless {verb} -- COMMAND"
        raise BadInput("neither an image nor a command", hint=hint)
    return (options.image[0] if options.image else "host"), options.command or []


def sandbox_options(parser: Parser) -> None:
    """What run and submit share, in groups for --help."""
    for title, about, rows in GROUPS:
        group = parser.add_argument_group(title, about)
        for row in rows:
            row.add_to(group)


def keywords(options: Namespace, groups: Groups | None = None) -> dict[str, Any]:
    """The parsed options as the keywords of ``dockless.run``, None for what is not said: one meaning for both."""
    found: dict[str, Any] = {}
    for _, _, rows in groups or GROUPS:
        for row in rows:
            if row.keyword and row.keyword not in found:
                found[row.keyword] = row.value(options) if row.value else getattr(options, row.keyword)
    return found


def _root(options: Namespace) -> str | None:
    root: str | None = options.root
    if options.read_only and root not in (None, "readonly"):
        raise BadInput(f"--read-only and --root {root}", subject="--root", hint="give one of them")
    return "readonly" if options.read_only else root


_LOG_DRIVERS = ("json-file", "local", "k8s-file", "none")
"""Of Docker and Podman, those that keep output in files of the host; all mean the same here."""


def _keep_log(options: Namespace) -> bool | None:
    return False if options.log_driver == "none" else None


def _log_size(options: Namespace) -> Any:
    """Docker's max-size is that of each of max-file files, one if that is not said; here all of them together are bounded."""
    found: dict[str, str] = {}
    for entry in options.log_opt:
        key, _, value = entry.partition("=")
        if key not in ("max-size", "max-file") or not value:
            hint = "write max-size=10M or max-file=3; labels and tags are no part of a log here"
            raise BadInput(f"--log-opt {entry[:60]!r} is unknown", subject="--log-opt", hint=hint)
        found[key] = value
    if not found:
        return options.log_size
    if options.log_size is not None or "max-size" not in found:
        why = "--log-opt and --log-size" if options.log_size is not None else "--log-opt max-file without max-size"
        raise BadInput(why, subject="--log-opt", hint="give the size of all that is kept: --log-size 30M")
    from dockless.base.units import parse_count, parse_size

    size, files = parse_size(found["max-size"], "max-size"), parse_count(found.get("max-file", "1"), "max-file")
    if not size or not files:
        raise BadInput("--log-opt: 0 leaves no room", subject="--log-opt", hint="for no log at all: --log-driver none")
    return size * files


def _swap(options: Namespace) -> int | None:
    """Docker's --memory-swap is the sum of memory and swap; cgroup v2 limits swap alone."""
    memory, both = options.memory, options.memory_swap
    if both in (None, "-1"):
        return None
    if memory is None:
        raise BadInput("--memory-swap without --memory", subject="--memory-swap", hint="it is the sum of memory and swap: give -m too")
    from dockless.base.units import parse_size

    swap = parse_size(both, "memory and swap") - parse_size(memory, "memory")
    if swap < 0:
        raise BadInput(
            f"--memory-swap {both} is less than --memory {memory}", subject="--memory-swap", hint="it is the sum of memory and swap"
        )
    return swap


_DEVICE_LIMITS = {"read-bps": "rbps", "write-bps": "wbps", "read-iops": "riops", "write-iops": "wiops"}


def _disks(options: Namespace) -> list[str]:
    """One entry per disk: the kernel keeps one line for each."""
    found: dict[str, list[str]] = {}
    of_devices = ((name, getattr(options, f"device_{name.replace('-', '_')}")) for name in _DEVICE_LIMITS)
    for text in (*options.io, *(_device_limit(name, text) for name, texts in of_devices for text in texts)):
        path, colon, settings = text.rpartition(":")
        found.setdefault(path + colon, []).append(settings)
    return [f"{path}{','.join(settings)}" for path, settings in found.items()]


def _device_limit(name: str, text: str) -> str:
    path, _, value = text.rpartition(":")
    if not path or not value:
        raise BadInput(f"--device-{name} {text[:60]!r} cannot be read", subject=text[:80], hint="write PATH:VALUE: /data:50MB")
    return f"{path}:{_DEVICE_LIMITS[name]}={value}"


_NAMESPACES = {"userns": "user", "pid": "pid", "ipc": "ipc", "uts": "uts", "cgroupns": "cgroup", "timens": "time"}


def _namespaces(options: Namespace) -> dict[str, str]:
    found = {name: choice for flag, name in _NAMESPACES.items() if (choice := getattr(options, flag)) is not None}
    return found if options.time_offset is None else {"time": "new", **found}


def environment_of(options: Namespace) -> dict[str, str]:
    """Variables of files, then of the line. A name alone takes the caller's value, where she has one."""
    check("--env", options.env, Sequence[str])
    found: dict[str, str] = {}
    entries = ((f"--env {entry[:60]!r}", entry) for entry in options.env)
    for where, entry in (*(line for path in options.env_file for line in lines_of("--env-file", path)), *entries):
        name, equals, value = entry.partition("=")
        if not name:
            raise BadInput(f"{where}: there is no name", subject="--env", hint="write NAME=VALUE, or NAME for the caller's value")
        if equals:
            found[name] = value
        elif name in os.environ:
            found[name] = os.environ[name]
    return found


def lines_of(flag: str, path: str) -> Iterator[tuple[str, str]]:
    """The entries of an --env-file or a --label-file, each with where it stands. Empty lines and comments are none."""
    hint = "give a file of NAME=VALUE lines"
    try:
        with open(path, encoding="utf-8-sig", errors="surrogateescape") as stream:
            text = stream.read(_LARGEST_FILE + 1)
    except (OSError, ValueError) as error:
        raise BadInput(f"{flag} {path}: {getattr(error, 'strerror', None) or error}", subject=flag, hint=hint) from None
    if len(text) > _LARGEST_FILE:
        raise BadInput(f"{flag} {path} is longer than any environment", subject=flag, hint=hint)
    for number, raw in enumerate(text.split("\n"), 1):
        line, where = raw.strip("\r").lstrip(), f"{flag} {path}, line {number}"
        if "\0" in line:
            raise BadInput(f"{where} contains a NUL byte", subject=flag, hint=hint)
        name = line.partition("=")[0]
        if line[:1] != "#" and name != "".join(name.split()):
            raise BadInput(f"{where}: the name {name[:40]!r} has a blank in it", subject=flag, hint=f"{hint}, without 'export'")
        if line and line[0] != "#":
            yield where, line


def _mounts(options: Namespace) -> list[Any]:
    from dockless._mounts import parse_mount_settings

    return [*options.volume, *map(parse_mount_settings, options.mount)]


_CDI = "nvidia.com/gpu="
"""How the Container Device Interface names a GPU: behind it are an index, a UUID, or ``all``."""


def _devices(options: Namespace) -> list[str]:
    return [text for text in options.device if not text.startswith(_CDI)]


def _gpus(options: Namespace) -> str | None:
    named = [text.removeprefix(_CDI) for text in options.device if text.startswith(_CDI)]
    if len(options.gpus) > 1:
        raise BadInput(
            f"--gpus {options.gpus[0][:40]} and --gpus {options.gpus[1][:40]}", subject="--gpus", hint="give one: --gpus device=0,2"
        )
    gpus: str | None = options.gpus[0] if options.gpus else None
    if not named:
        return _by_variable(options) if gpus is None else gpus
    if gpus is not None:
        raise BadInput(f"--gpus and --device {_CDI}{named[0][:40]}", subject="--gpus", hint="give one of them")
    return "all" if "all" in named else f"device={','.join(named)}"


def _by_variable(options: Namespace) -> str | None:
    """What nvidia-docker's variable says, from before Docker had --gpus."""
    names = os.environ.get("NV_GPU")
    if not names:
        return None
    beside = [f"--gpu-class {options.gpu_class}"] if options.gpu_class is not None else []
    beside += [f"--device {text}" for text in options.device if text[:1] != "/" and "=" not in text]  # a number of leased ones
    if beside:
        what = f"NV_GPU={names[:40]} is set, which names GPUs, and {beside[0][:60]} is given"
        raise BadInput(what, subject="NV_GPU", hint="unset the variable, or leave the option out")
    return f"device={names}"


def _networks(options: Namespace) -> Any:
    """The options of one network go to the one that is named."""
    more = [f"ip={address}" for address in (options.ip, options.ip6) if address]
    more += [f"mac={options.mac_address}"] if options.mac_address else []
    more += [f"alias={alias}" for alias in options.network_alias]
    named: list[str] = options.network
    if not more:
        return named[0] if len(named) == 1 else named or None
    said = next(flag for flag in ("ip", "ip6", "mac_address", "network_alias") if getattr(options, flag))
    flag = f"--{said.replace('_', '-')}"
    if len(named) != 1:
        what = "several networks" if named else "no network"
        hint = f"say it with the network: --network NAME:{','.join(more)}"
        raise BadInput(f"{flag} with {what}", subject=flag, hint=hint)
    if named[0] in ("none", "host") or named[0].startswith("container:"):
        raise BadInput(f"{flag} with --network {named[0][:60]}", subject=flag, hint="it is for networks by name: leave one of them out")
    return f"{named[0]}{',' if ':' in named[0] or '=' in named[0] else ':'}{','.join(more)}"


def _allow_out(options: Namespace) -> list[str] | None:
    if options.allow_out and options.deny_out:
        raise BadInput(
            "--allow-out and --deny-out cannot be given together",
            subject="--allow-out",
            hint="give one of them: --allow-out alone denies all else",
        )
    return options.allow_out or ([] if options.deny_out else None)


def _allow_host(options: Namespace) -> bool | None:
    if options.allow_host and options.deny_host:
        raise BadInput("--allow-host and --deny-host", subject="--allow-host", hint="give one of them")
    return True if options.allow_host else False if options.deny_host else None


def _log_denied(options: Namespace) -> bool | None:
    return options.log_denied or None


_SECURITY = {
    "apparmor label": "the rules of AppArmor and SELinux stay as they are; what holds a sandbox is said by --profile: leave it out",
    "systempaths mask unmask proc-opts": "what of /proc and /sys is hidden goes with the profile: --profile privileged hides nothing",
    "no-new-privileges no_new_privs": "nothing inside gains privileges; only --profile privileged differs",
}


def _seccomp(options: Namespace) -> str:
    found = ""
    for entry in options.security_opt:
        key, _, value = entry.replace(":", "=", 1).partition("=")
        if key == "seccomp" and value:
            found = value
        elif key not in ("no-new-privileges", "no_new_privs") or value not in ("", "true"):  # always on here
            hint = next((hint for words, hint in _SECURITY.items() if key in words.split()), "seccomp=FILE, seccomp=unconfined")
            raise BadInput(f"--security-opt {entry[:60]!r} is not possible", subject=entry[:80], hint=hint)
    return found


def _health(options: Namespace) -> HealthCheck | bool | None:
    from dockless.base.units import parse_duration

    said = {name: getattr(options, f"health_{name}") for name in ("interval", "timeout", "start_period")}
    given: dict[str, Any] = {name: parse_duration(text, f"health {name}") for name, text in said.items() if text is not None}
    line, retries = options.health_cmd, options.health_retries
    if not given and line is None and retries is None:
        return False if options.no_healthcheck else None
    if options.no_healthcheck:
        hint = "leave one of them out"
        raise BadInput("--no-healthcheck with other options of health checks", subject="--no-healthcheck", hint=hint)
    if line is not None and not line.strip():
        raise BadInput("--health-cmd is empty", subject="--health-cmd", hint="--no-healthcheck is for none")
    return HealthCheck(("/bin/sh", "-c", line) if line is not None else (), retries=retries or 0, **given)


PULL = Option("pull", "--pull", "", "missing: what the store lacks is pulled first (default); always; newer; never", PULL_POLICIES)
PLATFORM = Option("platform", "--platform", "OS/ARCH[/VARIANT]", "platform of the image: linux/amd64")
COMMAND = (
    Option("", "--rm", "", "remove it at its end; a run without -d always does"),
    Option("", "--init", "", "the default: an init process reaps what others leave"),
    Option("env", "-e --env", "NAME[=VALUE]", "set a variable; without a value: the caller's", repeated=True, value=environment_of),
    Option("env", "--env-file", "FILE", "variables, one NAME=VALUE per line", repeated=True, value=environment_of),
    Option("workdir", "-w --workdir", "DIR", "where it starts, inside"),
    Option("user", "-u --user", "USER[:GROUP]", "names or numbers, looked up inside the image"),
    Option("group_add", "--group-add", "GROUP", "a supplementary group, by its number or its name in the image", repeated=True),
    Option("entrypoint", "--entrypoint", "PROGRAM", 'instead of the image\'s; "" for none'),
    Option("hostname", "--hostname", "NAME", "the host name inside"),
    Option("domainname", "--domainname", "NAME", "the domain name inside, with which /etc/hosts has the host name, too"),
    Option("add_hosts", "--add-host", "NAME:ADDRESS", "a line of /etc/hosts; host-gateway is the host, with its network", repeated=True),
    Option("ulimits", "--ulimit", "NAME=SOFT[:HARD]", "a resource limit: nofile=1024:4096", repeated=True),
    Option("umask", "--umask", "OCTAL", "like 022"),
    Option("oom_score_adj", "--oom-score-adj", "N", "-1000 to 1000", type=whole()),
    Option("cpu_affinity", "--cpu-affinity", "LIST", "processors to run on, without a limit: 0-3,8"),
    Option("timeout", "--timeout", "TIME", "kill everything inside after that: 90s, 1h30m (exit code 124)"),
    Option("grace", "--grace --stop-timeout", "TIME", "between stop signal and kill (default: at a deadline none, else 10s)"),
    Option("idle_timeout", "--idle-timeout", "TIME", "end it after this time without exec, cp, attach or typing (exit code 124)"),
    Option("ttl", "--ttl", "TIME", "end it after this time; update --ttl moves the end"),
    Option(
        "log_size", "--log-size", "SIZE", "how much output of a job, or of run -d, is kept, the newest (default: 128M)", value=_log_size
    ),
    Option("log_size", "--log-opt", "KEY=VALUE", "Docker's words for it: max-size=10M, max-file=3", repeated=True, value=_log_size),
    Option("keep_log", "--log-driver", "", "none: no output is kept (default: json-file)", _LOG_DRIVERS, value=_keep_log),
    Option("stop_signal", "--stop-signal", "SIGNAL", "instead of the image's, or TERM"),
)
FILES = (
    Option("mounts", "-v --volume", "SOURCE:TARGET[:ro]", "a host path, or a named volume", repeated=True, value=_mounts),
    Option("mounts", "--mount", "KEY=VALUE,…", "type=bind|volume|tmpfs,source=,target=,ro,idmap,size=,mode=", repeated=True, value=_mounts),
    Option("tmpfs", "--tmpfs", "TARGET[:size=…]", "a private memory file system: size=, mode=, uid=, gid=, noexec", repeated=True),
    Option("root", "--root", "", "where changes to the image go (default: disk, thrown away)", ("disk", "tmpfs", "readonly"), value=_root),
    Option("root_size", "--root-size", "SIZE", "of --root tmpfs"),
    Option("disk", "--disk", "SIZE", "limit for writes to the image; needs project quotas, jobs are measured without them"),
    Option("root", "--read-only", "", "the same as --root readonly", value=_root),
    Option("shm_size", "--shm-size", "SIZE", "of /dev/shm (default: 1G)"),
)
LIMITS = (
    Option("memory", "-m --memory", "SIZE", "memory.max: 4G"),
    Option("swap", "--memory-swap", "SIZE", "memory and swap together, -1 for any swap (needs -m)", value=_swap),
    Option("memory_high", "--memory-high", "SIZE", "slow it down above that"),
    Option("memory_low", "--memory-low", "SIZE", "protect that much, if others can give"),
    Option("memory_min", "--memory-min", "SIZE", "protect that much, whatever it costs"),
    Option("cpus", "--cpus", "CORES", "cpu.max: 1.5"),
    Option("cpu_weight", "--cpu-weight", "N", "share under contention, 1 to 10000 (default: 100)"),
    Option("cpu_burst", "--cpu-burst", "TIME", "unused time that may be saved up"),
    Option("cpuset", "--cpuset-cpus", "LIST", "only these processors: 0-3"),
    Option("mems", "--cpuset-mems", "LIST", "only these memory nodes"),
    Option("pids", "--pids-limit", "N", "processes and threads at once"),
    Option("io", "--io", "PATH:rbps=…,wiops=…", "a disk by any path on it: /data:rbps=50M,wiops=1000", repeated=True, value=_disks),
    *(
        Option("io", f"--device-{name}", "PATH:N", f"the same as --io PATH:{key}=N", repeated=True, value=_disks)
        for name, key in _DEVICE_LIMITS.items()
    ),
    Option("io_weight", "--io-weight", "N", "share of the disk, 1 to 10000"),
    Option("hugetlb", "--hugetlb", "SIZE=SIZE", "huge pages: 2MB=1G"),
    Option("best_effort", "--best-effort", "", "go on without a limit that cannot be enforced, and say so"),
)
ISOLATION = (
    Option(
        "profile", "--profile", "", "untrusted: no capabilities, no network unless named, read-only", ("default", "untrusted", "privileged")
    ),
    Option(
        "devices",
        "--device",
        "SOURCE[:TARGET][:rwm]",
        "a node of the host's /dev; VENDOR/CLASS=NAME; VENDOR/CLASS:COUNT of what is leased",
        repeated=True,
        value=_devices,
    ),
    *(
        Option("namespaces", f"--{flag}", "", f"{name} namespace: its own or the host's", ("new", "host"), value=_namespaces)
        for flag, name in _NAMESPACES.items()
    ),
    Option("time_offset", "--time-offset", "SECONDS", "added to the clocks of a new time namespace", type=whole()),
    Option("sysctls", "--sysctl", "NAME=VALUE", "net.*, fs.mqueue.*, kernel.{msg*,sem,shm*}, of its own namespaces", repeated=True),
    Option("cap_add", "--cap-add", "CAP", "NET_ADMIN, ALL, …", repeated=True),
    Option("cap_drop", "--cap-drop", "CAP", "likewise", repeated=True),
    Option("seccomp", "--security-opt", "seccomp=FILE", "a profile as Docker's, or seccomp=unconfined", repeated=True, value=_seccomp),
)
NETWORK = (
    Option(
        "network",
        "--network --net",
        "NAME[:ip=…,mac=…,alias=…]",
        "none: loopback only (default); bridge; host; container:ID; user networks, several",
        repeated=True,
        value=_networks,
    ),
    Option("network", "--ip", "ADDRESS", "its own on that network, of IPv4", value=_networks),
    Option("network", "--ip6", "ADDRESS", "its own on that network, of IPv6", value=_networks),
    Option("network", "--mac-address", "MAC", "its own on that network", value=_networks),
    Option("network", "--network-alias --net-alias", "NAME", "another name for it on that network", repeated=True, value=_networks),
    Option("publish", "-p --publish", "[ADDRESS:]HOST:INSIDE", "ports of the host, -p 5000-5005:5000-5005/udp", repeated=True),
    Option("dns", "--dns", "ADDRESS", "a DNS server, instead of the network's own", repeated=True),
    Option("dns_search", "--dns-search", "DOMAIN", "where names without a dot are looked up", repeated=True),
    Option("dns_options", "--dns-option --dns-opt", "OPTION", "of resolv.conf: ndots:2", repeated=True),
    Option("allow_out", "--allow-out", "TO[:PORTS]", "connect to these alone: 10.0.0.0/8, pypi.org:443", repeated=True, value=_allow_out),
    Option("allow_out", "--deny-out", "", "connect to nothing beyond its networks", value=_allow_out),
    Option("allow_host", "--allow-host", "", "what may be reached may be the host itself, and metadata addresses", value=_allow_host),
    Option("allow_host", "--deny-host", "", "do not reach them", value=_allow_host),
    Option("net_rate", "--net-rate", "SIZE", "bytes a second, in and out each: 10M"),
    Option("log_denied", "--log-denied", "", "tell the kernel's log of what is refused", value=_log_denied),
)
HEALTH = (
    Option("health", "--health-cmd", "COMMAND", "a line for /bin/sh inside; 0 is healthy", value=_health),
    Option("health", "--health-interval", "TIME", "between two checks, and before the first (default: 30s)", value=_health),
    Option("health", "--health-timeout", "TIME", "after which one has failed (default: 30s)", value=_health),
    Option("health", "--health-retries", "N", "failures in a row that mean unhealthy (default: 3)", type=whole(), value=_health),
    Option("health", "--health-start-period", "TIME", "in which failures do not count (default: 0)", value=_health),
    Option("health", "--no-healthcheck", "", "none, though the image has one", value=_health),
)
GPUS = (
    Option("gpus", "--gpus", "N|all|device=…", "N free ones; all; device=0,2; or UUIDs", repeated=True, value=_gpus),
    Option("gpu_memory", "--gpu-memory", "SIZE", "that each has at least; a MIG slice may do"),
    Option("gpu_class", "--gpu-class", "NAME", "a model, as H100; a MIG profile, as 1g.10gb; or whole"),
)
GROUPS = (
    ("the command", None, COMMAND),
    ("files", None, FILES),
    ("limits", "Where this host cannot enforce one it is an error; --best-effort makes it a warning.", LIMITS),
    ("isolation", None, ISOLATION),
    ("networks", "What it may reach beyond them; the profile untrusted never reaches the host unasked. docs/networks.md", NETWORK),
    ("health", "Checks by a command inside; the image's own where it has one.", HEALTH),
    ("GPUs", None, GPUS),
)
"""What run and submit share, in the order of --help: a group's title, what is said of it, its options."""
