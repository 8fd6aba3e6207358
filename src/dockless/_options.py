"""Keywords in human units → ``Spec``: what ``run``, ``arun``, ``Sandbox``, ``submit`` and the command line share. No side effect.

::

    make_spec("python:3.12", ["python", "-V"], memory="4G", cpus=1.5, mounts=["/data:/data:ro"], env={"A": "1"})
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from dockless.base import device_names
from dockless.base.checks import annotation, check
from dockless.base.fields import Keyword, as_it_is, filled
from dockless.base.healthcheck import HealthCheck
from dockless.base.later import re
from dockless.base.paths import Argument, absolute
from dockless.base.text import shown
from dockless.base.typing import TYPE_CHECKING, Any
from dockless.base.units import parse_duration, parse_signal, parse_size
from dockless.errors import BadInput

if TYPE_CHECKING:
    from dockless.base.paths import StrPath
    from dockless.cgroups import Limits
    from dockless.sandbox.network.model import Endpoint, Port
    from dockless.sandbox.spec import HostDevice, Mount, Namespaces, Rlimit, Spec

_MOST_ITEMS = 1_000_000
_GROUP = r"[A-Za-z_][A-Za-z0-9_.-]{0,63}\$?\Z"
_EGRESS = ("allow_out", "allow_host", "net_rate", "log_denied")
_ELSEWHERE = {
    "cwd": "workdir", "working_dir": "workdir", "environment": "env", "envs": "env", "volumes": "mounts", "binds": "mounts",
    "mem_limit": "memory", "cpu": "cpus", "nano_cpus": "cpus", "gpu": "gpus", "pids_limit": "pids", "shell": 'args: ["sh", "-c", …]',
    "command": "args",
    "extra_hosts": "add_hosts", "detach": "dockless.start", "name": "id", "network_mode": "network", "universal_newlines": "text",
    "ports": "publish", "networks": "network", "dns_opt": "dns_options", "mac_address": 'network: "NAME:mac=…"',
    "ip": 'network: "NAME:ip=…"',
    "privileged": 'profile="privileged"', "read_only": 'root="readonly"', "auto_remove": "nothing: it is always removed",
    "restart": "dockless.start or dockless.create", "restart_policy": "restart, of dockless.start or dockless.create",
}  # fmt: skip
"""What ``subprocess`` and other libraries for containers call a keyword."""


def image_and_args(image: str | Sequence[Argument] | None, args: Sequence[Argument] | None) -> tuple[str, tuple[str, ...]]:
    """``("python:3.12", [...])``, or arguments alone for the pseudo-image ``host``. A shell string is never meant. ``BadInput``"""
    if image is not None and not isinstance(image, str):
        if args is not None or not isinstance(image, Iterable) or isinstance(image, (bytes, Mapping)):
            hint = 'give run("IMAGE", [arguments]) or run([arguments])'
            raise BadInput(f"image is {shown(image)}, not a name", subject="image", hint=hint)
        image, args = None, image
    if image is not None:
        check("image", image, str)
        if not image:
            raise BadInput("image is empty", subject="image", hint="leave it out for the host's own system")
    if isinstance(args, (str, bytes)):
        raise BadInput(f"args is one text, {shown(args)}, not a list", subject="args", hint='give a list; for a shell: ["sh", "-c", …]')
    arguments = given_items(args) if args is not None else ()
    check("args", arguments, Sequence[Argument])
    return image or "host", tuple(os.fsdecode(argument) for argument in arguments)


_COUNTED = rf"({device_names.KIND}):([0-9]{{1,6}}|all)\Z"
"""``VENDOR/CLASS:COUNT``"""


def given_items(value: object) -> Any:
    """An iterator's items as a tuple, to be looked at more than once; anything else as it is. ``BadInput`` if it does not end."""
    if not isinstance(value, Iterator):
        return value
    items = tuple(islice(value, _MOST_ITEMS + 1))
    if len(items) > _MOST_ITEMS:
        raise BadInput(f"an iterator gives more than {_MOST_ITEMS} items", subject="iterator", hint="give a list")
    return items


def unknown_keyword(name: str, known: Collection[str]) -> TypeError:
    """Names what is meant by it, or the nearest, or all that there are."""
    meant = _ELSEWHERE.get(name, "")
    if meant and (meant in known or not meant.isidentifier()):
        return TypeError(f"unknown keyword {name!r}: use {meant}")
    import difflib

    if near := difflib.get_close_matches(name, sorted(known), 1, 0.7):
        return TypeError(f"unknown keyword {name!r}: did you mean {near[0]}?")
    return TypeError(f"unknown keyword {name!r}; known are {', '.join(sorted(known))}")


def given_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords that say something, checked against ``_keywords.Options``. ``TypeError`` for an unknown one, ``BadInput``."""
    from dockless._keywords import Options

    known = Options.__annotations__
    unknown = sorted(set(options) - known.keys())
    if unknown:
        raise unknown_keyword(unknown[0], known)
    given = {name: given_items(value) for name, value in options.items() if value is not None}
    for name, value in given.items():
        check(name, value, annotation(known[name], Options.__module__))
    return given


def make_spec(image: str, args: Sequence[str] = (), **options: Any) -> Spec:
    """The spec of these keywords. ``gpus``, ``pull`` and ``labels`` are no part of it: whoever starts it leases and
    pulls first. ``TypeError`` for an
    unknown keyword, ``BadInput``."""
    from dockless.sandbox.spec import Spec

    given = given_options(options)
    _refuse_without_effect(image, given)
    given["limits"] = _limits(given)
    if any(name in given for name in _EGRESS):
        from dockless._networks import egress_of

        given["egress"] = egress_of(given)
    fields = filled(KEYWORDS, given)
    if "capabilities" in str(given.get("gpus") or ""):
        said = _driver_capabilities(given["gpus"])
        fields["env"] = tuple((dict(fields.get("env", ())) | said).items())
    return Spec(tuple(args), image, **fields)


def _driver_capabilities(gpus: str) -> dict[str, str]:
    """What ``--gpus`` says of the driver's files, as Docker says it inside."""
    from dockless.sandbox.gpus.request import parse_request

    names = [name for name in parse_request(gpus).capabilities if name not in ("gpu", "nvidia")]
    return {"NVIDIA_DRIVER_CAPABILITIES": ",".join(names)} if names else {}


def gpus_wanted(options: Mapping[str, Any]) -> str | int | None:
    """What ``gpus``, ``gpu_memory`` and ``gpu_class`` say together, in the grammar of ``gpus``. ``BadInput``"""
    gpus: str | int | None = options.get("gpus")
    memory, gpu_class = options.get("gpu_memory"), options.get("gpu_class")
    if counted := [found for text in options.get("devices") or () if (found := re.match(_COUNTED, text))]:
        kind, count = counted[0][1], counted[0][2]
        beside = [repr(found[0]) for found in counted[1:]]
        beside += [f"{name} {options[name]}" for name in ("gpus", "gpu_memory", "gpu_class") if options.get(name) is not None]
        if beside:
            hint = "ask for devices of one kind, by one number, and for nothing else of GPUs; or submit two jobs"
            raise BadInput(f"devices: {counted[0][0]!r} and {beside[0]} together", subject="devices", hint=hint)
        return count if kind == "nvidia.com/gpu" else f"{count},class={kind}"
    if memory is None and gpu_class is None:
        return gpus
    from dockless.sandbox.gpus.request import parse_request

    said = parse_request(gpus) if gpus is not None else None
    if memory is not None and said is not None and said.memory:
        raise BadInput("gpus and gpu_memory both say how much memory", subject="gpu_memory", hint="say it once")
    if gpu_class is not None and said is not None and said.gpu_class:
        raise BadInput("gpus and gpu_class both say which class", subject="gpu_class", hint="say it once")
    if gpu_class is not None and said is not None and said.devices:
        raise BadInput("gpus names GPUs, and gpu_class says which class", subject="gpu_class", hint="leave one of them out")
    parts = [] if gpus is None else [str(gpus)]
    parts += [] if memory is None else [f"memory={_size(memory, 'gpu_memory')}"]
    parts += [] if gpu_class is None else [f"class={gpu_class}"]
    return ",".join(parts)


def _refuse_without_effect(image: str, options: Mapping[str, Any]) -> None:
    """``BadInput`` for a keyword that another one leaves without effect: whoever wrote it expects one."""
    if options.get("root_size") is not None and options.get("root") != "tmpfs" and (image != "host" or options.get("root") == "readonly"):
        hint = 'ask for one, --root tmpfs (root="tmpfs"), or leave the size out'
        raise BadInput("root_size is the size of a root in memory", subject="root_size", hint=hint)
    if options.get("disk") is not None and (image == "host" or options.get("root") == "tmpfs"):
        hint = "leave it out, or bound the root by its size: --root-size (root_size)"
        raise BadInput("disk has no effect on a root in memory, as the image host and root tmpfs have it", subject="disk", hint=hint)
    if options.get("profile") == "untrusted":
        if options.get("root") == "disk":
            hint = "leave one of them out: the profile has no root on disk that can be written"
            raise BadInput("root disk is not possible with the profile untrusted", subject="root", hint=hint)
        network = options.get("network")
        alone = network if isinstance(network, str) else network[0] if isinstance(network, (list, tuple)) and len(network) == 1 else ""
        if isinstance(alone, str) and (alone == "host" or alone.startswith("container:")):
            hint = "leave one of them out: the profile has a network of its own, or none"
            raise BadInput(f"network {alone[:80]} is not possible with the profile untrusted", subject="network", hint=hint)
    if options.get("keep_log") is False and options.get("log_size"):
        raise BadInput("log_size is the size of a log that is kept", subject="log_size", hint="leave it out, or keep the log")
    for name in ("hostname", "domainname"):
        if options.get(name) and _namespaces(options.get("namespaces", {}), "namespaces").uts == "host":
            hint = "leave one of them out: the name of the host itself is never changed"
            raise BadInput(f"a {name} in the host's own UTS namespace", subject=name, hint=hint)


def _limits(options: Mapping[str, Any]) -> Limits:
    from dockless.cgroups import limits

    given = {keyword.name: options[keyword.name] for keyword in limits.KEYWORDS if keyword.name in options}
    ready: Limits | None = options.get("limits")
    if ready is not None and given:
        raise BadInput(f"limits= and {next(iter(given))}= together", subject="limits", hint="say it in one way")
    return ready if ready is not None else limits.Limits.parse(**given)


def _size(value: str | int, name: str) -> int:
    """Bytes. Nobody who writes 0 means the default."""
    size = parse_size(value, name)
    if not size:
        raise BadInput(f"{name} 0 leaves no room", subject=name, hint="leave it out for the default")
    return size


def _entrypoint(value: Argument | Sequence[Argument], name: str) -> tuple[str, ...]:
    """An empty text is none at all."""
    if isinstance(value, (str, bytes, os.PathLike)):
        return (os.fsdecode(value),) if value else ()
    return tuple(os.fsdecode(part) for part in value)


def environment(value: Mapping[str, str] | Iterable[str], name: str = "env") -> tuple[tuple[str, str], ...]:
    """Variables, of a mapping or of texts ``NAME=value``."""
    if isinstance(value, Mapping):
        return tuple((str(variable), str(text)) for variable, text in value.items())
    pairs: dict[str, str] = {}
    for entry in value:
        variable, equals, text = entry.partition("=")
        if not equals:
            raise BadInput(f"environment entry {entry[:60]!r} has no '='", subject=entry[:80], hint="write NAME=value")
        pairs[variable] = text
    return tuple(pairs.items())


def _hosts(value: Mapping[str, str] | Iterable[str], name: str) -> tuple[tuple[str, str], ...]:
    """Of a mapping, or of texts ``NAME:ADDRESS``; an address of IPv6 may have brackets, as in a URL. A name may have several."""
    if isinstance(value, Mapping):
        return tuple(value.items())
    found = []
    for entry in value:
        host, _, address = entry.replace("=", ":", 1).partition(":")
        found.append((host, address[1:-1] if address[:1] == "[" and address[-1:] == "]" else address))
    return tuple(found)


def _sysctls(value: Mapping[str, str | int] | Iterable[str], name: str) -> tuple[tuple[str, str], ...]:
    """Of a mapping, or of texts ``NAME=VALUE``; ``/`` in a name is as good as a dot."""
    entries = value.items() if isinstance(value, Mapping) else [_assignment(entry, name) for entry in value]
    found: dict[str, str] = {}
    for setting, given in entries:
        if isinstance(given, int) and not -(2**63) <= given < 2**64:
            raise BadInput(f"{name}: {shown(setting)} is out of the kernel's range", subject=name, hint="no setting has more than 64 bits")
        found[setting.replace("/", ".")] = str(given)
    return tuple(found.items())


def _assignment(entry: str, name: str) -> tuple[str, str]:
    left, equals, right = entry.partition("=")
    if not equals:
        raise BadInput(f"{name}: {entry[:60]!r} has no '='", subject=name, hint="write NAME=VALUE")
    return left, right


def _named_devices(value: Iterable[str], name: str) -> tuple[str, ...]:
    """``VENDOR/CLASS=NAME``. Those that are asked for by number are in ``gpus_wanted``."""
    return tuple(text for text in value if _is_name(text) and not re.match(_COUNTED, text))


def _is_name(text: str) -> bool:
    return text[:1] != "/" and ("=" in text or bool(re.match(_COUNTED, text)))


def _devices(value: Iterable[str], name: str) -> tuple[HostDevice, ...]:
    """``SOURCE[:TARGET][:rwm]``."""
    from dockless.sandbox.spec import HostDevice

    found = []
    for text in value:
        if _is_name(text):
            continue
        source, *rest = text.split(":")
        access = rest.pop() if rest and rest[-1] and not set(rest[-1]) - set("rwm") else "rw"
        if len(rest) > 1:
            hint = "write /dev/SOURCE, /dev/SOURCE:/dev/TARGET or /dev/SOURCE:/dev/TARGET:rw"
            raise BadInput(f"{name}: {text[:80]!r} cannot be read", subject=name, hint=hint)
        found.append(HostDevice(source, rest[0] if rest else source, access))
    return tuple(found)


def _groups(value: Iterable[int | str], name: str) -> tuple[int | str, ...]:
    found: list[int | str] = []
    for item in value:
        number = _decimal(str(item))
        if number is None and not (isinstance(item, str) and re.match(_GROUP, item)):
            raise BadInput(f"{name}: {shown(item)} is no group", subject=name, hint="give its number inside, or its name in the image")
        found.append(str(item) if number is None else number)
    return tuple(found)


def _decimal(text: str) -> int | None:
    """A whole number of plain digits, None if it is anything else or larger than all that is counted."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None


def _mounts(value: Iterable[str | Mount], name: str) -> tuple[Mount, ...]:
    from dockless._mounts import parse_mount

    return tuple(parse_mount(mount) if isinstance(mount, str) else mount for mount in value)


def _tmpfs(value: Iterable[str], name: str) -> tuple[Mount, ...]:
    from dockless._mounts import parse_tmpfs

    return tuple(map(parse_tmpfs, value))


def _namespaces(value: Namespaces | Mapping[str, str], name: str) -> Namespaces:
    from dockless.sandbox.spec import Namespaces

    if not isinstance(value, Mapping):
        return value
    known = ("pid", "uts", "ipc", "user", "cgroup", "time")
    for kind, choice in value.items():
        if kind not in known or choice not in ("new", "host"):
            raise BadInput(f"namespace {kind}={choice} is not valid", subject=kind, hint=f"{', '.join(known)}: each 'new' or 'host'")
    return Namespaces(**value)  # type: ignore[arg-type]


def _texts(value: str | Iterable[str], name: str) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _network(value: str | Endpoint | Iterable[str | Endpoint], name: str) -> str:
    if value in ("none", "host"):
        return str(value)
    from dockless._networks import network_of

    return network_of(value, name)


def _endpoints(value: str | Endpoint | Iterable[str | Endpoint], name: str) -> tuple[Endpoint, ...]:
    if value in ("none", "host"):
        return ()
    from dockless._networks import endpoints_of

    return endpoints_of(value, name)


def _published(value: str | Port | Iterable[str | Port], name: str) -> tuple[Port, ...]:
    from dockless._networks import published

    return published(value, name)


def _seccomp(value: StrPath, name: str) -> str:
    path = os.fspath(value)
    return absolute(path, name) if path and path != "unconfined" else path


def _rlimits(value: Mapping[str, int | str | tuple[int, int]] | Iterable[str | Rlimit], name: str) -> tuple[Rlimit, ...]:
    if isinstance(value, Mapping):
        return tuple(_rlimit(limit, setting) for limit, setting in value.items())
    return tuple(_rlimit(*entry.partition("=")[::2]) if isinstance(entry, str) else entry for entry in value)


def _rlimit(name: str, setting: int | str | tuple[int, int]) -> Rlimit:
    from dockless.sandbox.spec import Rlimit

    parts = [str(part) for part in setting] if isinstance(setting, (tuple, list)) else str(setting).split(":")
    values = [-1 if part in ("unlimited", "infinity", "-1") else _decimal(part) for part in parts]
    if not name or None in values or not 1 <= len(values) <= 2:
        raise BadInput(
            f"ulimits: {shown(name)} = {shown(setting)} cannot be read",
            subject="ulimits",
            hint="write nofile=1024 or nofile=1024:4096; 'unlimited' is a value",
        )
    soft, hard = values[0], values[-1]
    assert soft is not None and hard is not None
    if hard != -1 and (soft == -1 or soft > hard):
        raise BadInput(f"ulimits: {name}: the soft limit is above the hard one", subject="ulimits", hint="write SOFT:HARD")
    return Rlimit(name.lower().removeprefix("rlimit_"), soft, hard)


def _umask(value: int | str, name: str) -> int:
    number = int(value, 8) if isinstance(value, str) and value and set(value) <= set("01234567") else value
    if not isinstance(number, int) or not 0 <= number <= 0o777:
        raise BadInput(f"{name} {shown(value)} is not valid", subject=name, hint="write it in octal, like 022")
    return number


def _processors(value: str | Iterable[int], name: str) -> tuple[int, ...]:
    if not isinstance(value, str):
        return tuple(sorted(set(value)))
    from dockless.cgroups.limits import parse_list

    return tuple(sorted(parse_list(value, "processors"))) if value else ()


KEYWORDS = (
    Keyword("env", "env", environment),
    Keyword("workdir", "workdir", lambda path, _: os.fspath(path)),
    Keyword("user", "user", lambda user, _: str(user)),
    Keyword("group_add", "groups", _groups),
    Keyword("hostname", "hostname", as_it_is),
    Keyword("domainname", "domainname", as_it_is),
    Keyword("add_hosts", "hosts", _hosts),
    Keyword("sysctls", "sysctls", _sysctls),
    Keyword("entrypoint", "entrypoint", _entrypoint),
    Keyword("profile", "profile", as_it_is),
    Keyword("root", "root", as_it_is),
    Keyword("root_size", "root_size", _size),
    Keyword("disk", "disk", _size),
    Keyword("mounts", "mounts", _mounts),
    Keyword("tmpfs", "mounts", _tmpfs),
    Keyword("shm_size", "shm_size", _size),
    Keyword("log_size", "log_size", _size),
    Keyword("keep_log", "keep_log", as_it_is),
    Keyword("tty", "tty", as_it_is),
    Keyword("interactive", "interactive", as_it_is),
    Keyword("devices", "devices", _devices),
    Keyword("devices", "cdi", _named_devices),
    Keyword("network", "network", _network),
    Keyword("network", "endpoints", _endpoints),
    Keyword("publish", "ports", _published),
    Keyword("dns", "dns", _texts),
    Keyword("dns_search", "dns_search", _texts),
    Keyword("dns_options", "dns_options", _texts),
    Keyword("egress", "egress", as_it_is),  # or made by _networks.egress_of of these
    Keyword("allow_out", "", as_it_is),
    Keyword("allow_host", "", as_it_is),
    Keyword("net_rate", "", as_it_is),
    Keyword("log_denied", "", as_it_is),
    Keyword("namespaces", "namespaces", _namespaces),
    Keyword("time_offset", "time_offset", as_it_is),
    Keyword("cap_add", "cap_add", _texts),
    Keyword("cap_drop", "cap_drop", _texts),
    Keyword("seccomp", "seccomp", _seccomp),
    Keyword("ulimits", "rlimits", _rlimits),
    Keyword("umask", "umask", _umask),
    Keyword("oom_score_adj", "oom_score_adj", as_it_is),
    Keyword("cpu_affinity", "cpus", _processors),
    Keyword("stop_signal", "stop_signal", parse_signal),
    Keyword("timeout", "timeout", parse_duration),
    Keyword("grace", "grace", parse_duration),
    Keyword("idle_timeout", "idle_timeout", parse_duration),
    Keyword("ttl", "ttl", parse_duration),
    Keyword("health", "health", lambda value, _: value or HealthCheck(disabled=True)),
    Keyword("gpus", "", as_it_is),  # leased by whoever starts it; the field has what was leased
    Keyword("gpu_memory", "", as_it_is),  # the same
    Keyword("gpu_class", "", as_it_is),
    Keyword("best_effort", "best_effort", as_it_is),
    Keyword("pull", "", as_it_is),  # done by whoever starts it
    Keyword("platform", "", as_it_is),  # the same
    Keyword("labels", "", as_it_is),  # written down by whoever starts it
    Keyword("limits", "limits", as_it_is),  # or made by _limits of the keywords of cgroups.limits.KEYWORDS
)
"""The keywords of ``_keywords.Options`` but those of limits, which are rows of ``cgroups.limits.KEYWORDS``, and the field of ``Spec`` that
each fills. What the command line calls them: ``cli.sandbox_options``."""
