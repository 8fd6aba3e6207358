"""Compose files and Swarm's stack files: each service is a role, its replicas are the role's instances.

GPUs are read in all three forms: ``gpus`` of a service, ``deploy.resources.reservations.devices`` (Compose) and ``generic_resources``
(Swarm). https://github.com/compose-spec/compose-spec, deploy.md and 05-services.md; docker/cli config_schema_v3.13.json
"""

from __future__ import annotations

import math
import posixpath
import shlex
from collections.abc import Mapping

from dockless.base.later import re
from dockless.base.text import shown
from dockless.base.typing import Any
from dockless.sandbox.gpus.request import CAPABILITIES
from dockless.sched.formats.compose_networks import known_networks, networks_of
from dockless.sched.formats.jobfile import JobFile, Role
from dockless.sched.formats.tables import Path, Source, Table

_VARIABLE = r"\$(?:(\$)|([A-Za-z_][A-Za-z0-9_]{0,127})|\{([A-Za-z_][A-Za-z0-9_]{0,127})(?:(:?[-?+])([^{}$]{0,4096}))?\}|)"
_LONGEST = 1 << 20
_LONGEST_LINE = 1 << 16
"""Characters of a command in one line: for a long word ``shlex`` takes time that grows with its square."""
_NO_EFFECT = {
    **dict.fromkeys(("labels", "annotations", "label_file", "attach", "stop_timeout", "isolation", "storage_opt", "credential_spec"),
                    "it has no effect"),
    "container_name": "a job's sandbox has the job's number for a name",
    "logging": "its output is kept for it: dockless logs JOB",
    "depends_on": "the roles of a job start together",
    "memswap_limit": "swap is limited by the host alone",
    "mem_swappiness": "cgroup v2 has nothing of the kind",
    "cpu_shares": "say cpus",
    "cgroup_parent": "its cgroup is the queue's: limits are given by deploy.resources",
    "develop": "it has no effect",
}  # fmt: skip
_REFUSED = {
    "build": "build the image elsewhere, push it to a registry, and name it as image",
    "env_file": "write the variables under environment",
    "extends": "write the service out: docker compose config does it",
    "volumes_from": "name the volumes in each service",
    "security_opt": "what holds a sandbox is its profile: leave it out",
    "device_cgroup_rules": "name the devices: devices",
    "blkio_config": "say io in a job file of dockless's own form: dockless convert FILE",
    **dict.fromkeys(("cpu_rt_period", "cpu_rt_runtime", "cpu_period", "cpu_quota", "cpu_percent", "cpu_count"), "say cpus"),
    "oom_kill_disable": "cgroup v2 has nothing of the kind",
    "models": "leave it out",
    "provider": "leave it out",
    "post_start": "run it in the command",
    "pre_stop": "run it in the command",
    "profiles": "leave out the services that are not to run",
    "use_api_socket": "there is no engine",
}  # fmt: skip
_AS_IT_IS = {
    "working_dir": "workdir", "user": "user", "hostname": "hostname", "domainname": "domainname", "shm_size": "shm_size",
    "oom_score_adj": "oom_score_adj", "cpuset": "cpuset", "stop_signal": "stop_signal", "stop_grace_period": "grace",
    "platform": "platform",
}  # fmt: skip
_NAMESPACES = {"pid": "pid", "ipc": "ipc", "uts": "uts", "userns_mode": "user", "cgroup": "cgroup"}
_LISTS = {"cap_add": "cap_add", "cap_drop": "cap_drop", "group_add": "group_add", "tmpfs": "tmpfs", "devices": "devices"}
_PULL = {"always": "always", "never": "never", "missing": "missing", "if_not_present": "missing"}


def parse(values: Any, source: Source, directory: str, environment: Mapping[str, str]) -> JobFile:
    """``directory``: that of the file, from which its relative paths go; ``environment``: what ``${NAME}`` stands for. ``BadInput``"""
    unset: dict[str, None] = {}
    top = Table(source, _interpolated(values, (), source, environment, unset, [_LONGEST]))
    source.notes += [f"{source.what}: ${name} is not set, and nothing stands for it" for name in unset]
    top.required("services")
    top.text("version")
    name = top.text("name")
    volumes = {}
    for volume, table in top.tables("volumes"):
        external = table.table("external") if isinstance(table.value("external"), dict) else table
        volumes[volume] = external.text("name", table.text("name", volume))
        table.unused({"driver": "there are no drivers", "driver_opts": "there are no drivers", "labels": "it has no effect"})
        table.done_but("x-")
    files = {kind: _files(top, kind, directory) for kind in ("secrets", "configs")}
    networks = known_networks(top)
    top.refuse({"include": "write the services out: docker compose config does it"})
    queue: dict[str, Any] = {}
    found = [_role(table, service, directory, volumes, files, queue, networks) for service, table in top.tables("services")]
    roles = tuple(role for role in found if role.count)
    if not roles:
        top.wrong("services", "has none that is to run", "give one service at least")
    top.done_but("x-")
    return JobFile("compose", name, roles, queue, {}, tuple(source.notes), True, source)


def _files(top: Table, kind: str, directory: str) -> dict[str, str]:
    """The files of ``secrets`` or ``configs`` by their names, empty for one that is no file."""
    found = {}
    for name, table in top.tables(kind):
        said = table.text("file")
        found[name] = posixpath.normpath(posixpath.join(directory, said)) if said else ""
        for key in ("external", "environment", "content", "driver", "template_driver", "name"):
            table.value(key)
        table.unused({"labels": "it has no effect"})
        table.done_but("x-")
    return found


def _interpolated(value: Any, path: Path, source: Source, environment: Mapping[str, str], unset: dict[str, None], left: list[int]) -> Any:
    if isinstance(value, dict):
        return {key: _interpolated(item, (*path, key), source, environment, unset, left) for key, item in value.items()}
    if isinstance(value, list):
        return [_interpolated(item, (*path, at), source, environment, unset, left) for at, item in enumerate(value)]
    if not isinstance(value, str) or "$" not in value:
        return value

    room = [*left]

    def within(budget: list[int], text: str) -> None:
        budget[0] -= len(text)
        if budget[0] < 0:
            raise source.error(path, "becomes too long", "give shorter variables")

    def one(match: Any) -> str:
        dollar, plain, braced, sign, word = match.groups()
        if dollar:
            return "$"
        name = plain or braced
        if not name:
            source.wrong(
                path,
                f"{shown(value)} has a '$' that stands for nothing",
                "write $$ for the character, ${NAME} for a variable, and none in the default of another",
            )
            return ""
        found = environment.get(name)
        missing = found is None or (not found and (sign or "")[:1] == ":")
        if sign and sign[-1] == "+":
            return "" if missing else word
        if not missing:
            within(room, str(found))
            return str(found)
        if sign and sign[-1] == "?":
            source.wrong(path, f"needs the variable {name}{': ' + word if word else ''}", f"set it: {name}=… dockless submit FILE")
            return "unset"
        if not sign and found is None:
            unset[name] = None
        return word if sign else ""

    text = re.sub(_VARIABLE, one, value)
    within(left, text)
    return int(text) if re.fullmatch("0|[1-9][0-9]{0,17}", text) else text


def _role(
    table: Table,
    name: str,
    directory: str,
    volumes: Mapping[str, str],
    files: Mapping[str, Mapping[str, str]],
    queue: dict[str, Any],
    networks: Mapping[str, str],
) -> Role:
    table.refuse(_REFUSED)
    table.unused(_NO_EFFECT)
    table.required("image")
    options: dict[str, Any] = {keyword: table.text(key) for key, keyword in _AS_IT_IS.items() if table.has(key)}
    if "oom_score_adj" in options:
        options["oom_score_adj"] = table.whole("oom_score_adj", least=-1000, most=1000)
    options |= {keyword: table.texts(key) for key, keyword in _LISTS.items() if table.has(key)}
    if env := _pairs(table, "environment"):
        options["env"] = env
    if sysctls := _pairs(table, "sysctls"):
        options["sysctls"] = sysctls
    mounts = [one for at, item in enumerate(table.items("volumes")) if (one := _mount(table, at, item, directory, volumes, options))]
    for kind, place in (("secrets", "/run/secrets"), ("configs", "/")):
        mounts += _file_mounts(table, kind, files[kind], place)
    if mounts:
        options["mounts"] = mounts
    if table.has("ulimits"):
        options["ulimits"] = _ulimits(table)
    if namespaces := _namespaces(table):
        options["namespaces"] = namespaces
    for key, keyword in (("tty", "tty"), ("stdin_open", "interactive")):
        if table.flag(key):
            options[keyword] = True
    if table.flag("privileged"):
        options["profile"] = "privileged"
    if table.flag("read_only"):
        options["root"] = "readonly"
    if not table.flag("init", True):
        table.note("init", "every sandbox has an init process")
    if table.has("healthcheck"):
        options["health"] = _health(table.table("healthcheck"))
    if table.has("pull_policy"):
        policy = table.text("pull_policy")
        if policy not in _PULL:
            table.wrong("pull_policy", f"is {policy[:40]!r}", f"give one of {', '.join(_PULL)}")
        options["pull"] = _PULL.get(policy, "missing")
    if table.has("entrypoint"):
        options["entrypoint"] = _words(table, "entrypoint")
    _restart(table, queue)
    gpus, count, cores = _deploy(table, options, queue)
    networks_of(table, options, networks, count)
    if hosts := _hosts(table, options):
        options["add_hosts"] = hosts
    if table.text("runtime") == "nvidia" and not gpus and env.get("NVIDIA_VISIBLE_DEVICES", "void") not in ("", "void", "none"):
        table.wrong("runtime", "is nvidia, and the service asks for no GPUs", "write gpus: all, or how many it needs under deploy")
    if table.has("runtime"):
        table.note("runtime", "GPUs are given by gpus or deploy alone")
    found = Role(name, count, table.text("image"), tuple(_words(table, "command")), gpus, options, reserve_cpus=cores)
    table.done_but("x-")
    return found


def _words(table: Table, key: str) -> list[str]:
    """A list, or a line that is taken apart as a shell would."""
    if not isinstance(table.value(key), str):
        return table.texts(key)
    if len(table.text(key)) > _LONGEST_LINE:
        table.wrong(key, f"is one line of more than {_LONGEST_LINE} characters", "give a list")
        return []
    try:
        return shlex.split(table.text(key))
    except ValueError:
        table.wrong(key, "has a quote that does not end", "end it, or give a list")
        return []


def _pairs(table: Table, key: str) -> dict[str, str]:
    """A mapping, or a list of NAME=value. A name without a value is left out: Compose would take the caller's value."""
    if isinstance(table.value(key), list):
        pairs = [(name, value if equals else None) for name, equals, value in (one.partition("=") for one in table.texts(key))]
    else:
        texts = table.variables(key)
        pairs = [(name, texts[name] if table.value(key)[name] is not None else None) for name in texts]
    for name, value in pairs:
        if value is None:
            table.note(key, f"{name[:40]} has no value, and the caller's is not taken")
    return {name: value for name, value in pairs if value is not None}


def _mount(table: Table, at: int, item: Any, directory: str, volumes: Mapping[str, str], options: dict[str, Any]) -> str:
    """What ``mounts`` takes; a tmpfs goes to the options."""
    if isinstance(item, str):
        source, colon, rest = item.partition(":")
        if not colon:
            return _unnamed(table, at, item)
        return f"{_source(source, directory, volumes)}:{rest}"
    mount = Table(table.source, item, (*table.path, "volumes", at))
    mount.required("type", "target")
    kind, target = mount.text("type"), mount.text("target")
    mount.unused({"consistency": "it has no effect", "bind": "it has no effect", "volume": "it has no effect"})
    size = mount.table("tmpfs")
    if kind == "tmpfs":
        rest = f":size={size.text('size')}" if size.has("size") else ""
        options["tmpfs"] = [*options.get("tmpfs", []), f"{target}{rest}"]
    elif kind not in ("bind", "volume"):
        mount.wrong("type", f"is {kind[:40]!r}", "it is bind, volume or tmpfs")
    else:
        mount.required("source")
    readonly = ":ro" if mount.flag("read_only") else ""
    source = _source(mount.text("source"), directory, volumes) if mount.has("source") else ""
    mount.done()
    return "" if kind == "tmpfs" else f"{source}:{target}{readonly}"


def _unnamed(table: Table, at: int, target: str) -> str:
    """A volume without a name. Nothing is mounted for it: what a job writes is removed with the job, as such a volume would be."""
    place = (*table.path, "volumes", at)
    if table.value("read_only") is True or target[:1] != "/":
        table.source.wrong(place, f"{shown(target)} has no name", "write NAME:/inside or ./here:/inside")
    else:
        table.source.note(place, "it has no name: what is written there is the job's own, and goes with it")
    return ""


def _hosts(table: Table, options: Mapping[str, Any]) -> Any:
    """A mapping, or a list of NAME:ADDRESS. The address of the host is left out where the host cannot be reached."""
    said = table.value("extra_hosts")
    if isinstance(said, dict):
        texts = [f"{name}:{address}" for name, address in table.variables("extra_hosts").items()]
    else:
        texts = table.texts("extra_hosts")
    found = []
    for text in texts:
        name, sign, address = text.replace("=", ":", 1).partition(":")
        if address != "host-gateway" or options.get("network", "none") not in ("none", "host"):
            found.append(text)
        elif table.value("network_mode") == "host":
            found.append(f"{name}{sign}127.0.0.1")
        else:
            table.note("extra_hosts", f"{name[:60]} is not known: the host is reached with network_mode: host")
    return found


def _source(source: str, directory: str, volumes: Mapping[str, str]) -> str:
    if source[:1] == ".":
        return posixpath.normpath(posixpath.join(directory, source)) if directory else source
    return volumes.get(source, source)


def _file_mounts(table: Table, kind: str, files: Mapping[str, str], directory: str) -> list[str]:
    """``kind``: ``secrets`` or ``configs``."""
    found = []
    for at, item in enumerate(table.items(kind)):
        place = (*table.path, kind, at)
        entry = Table(table.source, {"source": item} if isinstance(item, str) else item, place)
        entry.required("source")
        name = entry.text("source")
        target = entry.text("target", name)
        entry.unused(dict.fromkeys(("uid", "gid", "mode"), "the file is shown as it is"))
        entry.done()
        if files.get(name):
            found.append(f"{files[name]}:{posixpath.join(directory, target)}:ro")
        elif name in files:
            table.source.wrong(place, f"{shown(name)} is no file", f"write it under {kind} with its file")
        elif name:
            table.source.wrong(place, f"{shown(name)} is not in the file", f"write it down under {kind}, with its file")
    return found


def _namespaces(table: Table) -> dict[str, str]:
    """The namespaces that the service shares with the host."""
    found = {}
    for key, kind in _NAMESPACES.items():
        said = table.text(key, "private")
        if said == "host":
            found[kind] = "host"
        elif said not in ("private", "shareable"):
            table.wrong(key, f"is {said[:40]!r}", "each sandbox has its own, or the host's: host")
    return found


def _ulimits(table: Table) -> dict[str, Any]:
    found: dict[str, Any] = {}
    limits = table.table("ulimits")
    for name, value in limits.values.items():
        if isinstance(value, dict):
            inner = limits.table(name)
            inner.required("soft", "hard")
            found[name] = [inner.whole("soft", least=-1), inner.whole("hard", least=-1)]
            inner.done()
        else:
            found[name] = limits.whole(name, least=-1)
    return found


def _health(table: Table) -> Any:
    test = table.value("test")
    argv = ["/bin/sh", "-c", test] if isinstance(test, str) else table.texts("test")
    disabled = table.flag("disable") or argv[:1] == ["NONE"]
    found: dict[str, Any] = {key: table.text(key) for key in ("interval", "timeout", "start_period") if table.has(key)}
    table.unused({"start_interval": "it has no effect"})
    if table.has("retries"):
        found["retries"] = table.whole("retries", least=1)
    table.done()
    if disabled:
        return False
    if argv[:1] == ["CMD-SHELL"]:
        argv = ["/bin/sh", "-c", *argv[1:2]]
    elif argv[:1] == ["CMD"]:
        argv = argv[1:]
    elif not isinstance(test, str) and argv:
        table.wrong("test", "begins with neither CMD nor CMD-SHELL", "write [CMD, PROGRAM, ARGUMENT]")
    return found | ({"argv": argv} if argv else {})


def _restart(table: Table, queue: dict[str, Any]) -> None:
    word, _, most = table.text("restart", "no").partition(":")
    if word == "on-failure":
        if most and not re.fullmatch("[0-9]{1,6}", most):
            table.wrong("restart", f"{shown(table.text('restart'))} cannot be read", "write on-failure:3")
            return
        _retry(queue, int(most) if most else None, lambda: table.note("restart", "without a number it is not started again"))
    elif word in ("always", "unless-stopped"):
        table.note("restart", "a job has ended when its program has; on-failure:N starts it again")
    elif word not in ("no", "false"):
        table.wrong("restart", f"is {word[:40]!r}", "it is no, on-failure:N, always or unless-stopped")


def _retry(queue: dict[str, Any], most: int | None, unsaid: Any) -> None:
    if most is None:
        unsaid()
    elif most:
        queue["retries"] = max(most, queue.get("retries", 0))


def _deploy(table: Table, options: dict[str, Any], queue: dict[str, Any]) -> tuple[str, int, float]:
    """The GPUs of an instance, how many instances, and the cores that are reserved for each."""
    deploy = table.table("deploy")
    deploy.unused(
        dict.fromkeys(("update_config", "rollback_config", "labels", "endpoint_mode"), "it has no effect")
        | {"placement": "there is one host"}
    )
    count = deploy.whole("replicas", table.whole("scale", 1, most=10_000), most=10_000)
    mode = deploy.text("mode", "replicated")
    if mode not in ("replicated", "global", "replicated-job", "global-job"):
        deploy.wrong("mode", f"is {mode[:40]!r}", "it is replicated or global")
    if mode.startswith("global"):
        count = 1
    policy = deploy.table("restart_policy")
    if deploy.has("restart_policy"):
        condition = policy.text("condition", "any")
        if condition == "on-failure":
            most = policy.whole("max_attempts") if policy.has("max_attempts") else None
            _retry(queue, most, lambda: policy.note("condition", "without max_attempts it is not started again"))
        elif condition == "any":
            policy.note("condition", "a job has ended when its program has; on-failure with max_attempts starts it again")
        elif condition != "none":
            policy.wrong("condition", f"is {condition[:40]!r}", "it is none, on-failure or any")
        policy.value("max_attempts")
        policy.unused({"delay": "the pause between two attempts is the queue's", "window": "it has no effect"})
        policy.done()
    resources = deploy.table("resources")
    limits, reserved = resources.table("limits"), resources.table("reservations")
    _one(options, "cpus", (table, "cpus"), (limits, "cpus"))
    _one(options, "memory", (table, "mem_limit"), (limits, "memory"))
    _one(options, "pids", (table, "pids_limit"), (limits, "pids"))
    _one(options, "memory_low", (table, "mem_reservation"), (reserved, "memory"))
    cores = math.ceil(round(reserved.number("cpus") * 1000, 6)) / 1000 if reserved.has("cpus") else 0.0  # as the queue counts them
    gpus = _gpus(table, reserved)
    for one in (limits, reserved, resources, deploy):
        one.done()
    return gpus, count, cores


def _one(options: dict[str, Any], keyword: str, *places: tuple[Table, str]) -> None:
    """One thing that can be said in two places."""
    said = [(table, key, table.text(key)) for table, key in places if table.has(key)]
    if len({text for _, _, text in said}) > 1:
        said[-1][0].wrong(said[-1][1], f"is {said[-1][2][:20]}, and {said[0][1]} of the service is {said[0][2][:20]}", "say it once")
    if said and said[0][2] not in ("0", "0.0"):
        options[keyword] = said[0][2]


def _gpus(table: Table, reserved: Table) -> str:
    found: list[tuple[Table, str, str]] = []
    if table.has("gpus"):
        if isinstance(table.value("gpus"), str):
            table.text("gpus", like="all", hint="write all, or a list of devices")
            found.append((table, "gpus", "all"))
        else:
            found += [(table, "gpus", one) for entry in table.entries("gpus") if (one := _request(entry, gpu=True))]
    found += [(reserved, "devices", one) for entry in reserved.entries("devices") if (one := _request(entry, gpu=False))]
    for entry in reserved.entries("generic_resources"):
        kind = entry.table("discrete_resource_spec")
        kind.required("kind", "value")
        if kind.text("kind").lower() not in ("nvidia-gpu", "gpu", "nvidia_gpu", "nvidia.com/gpu"):
            kind.wrong("kind", f"is {kind.text('kind')[:40]!r}", "GPUs are what there is: NVIDIA-GPU")
            continue
        value = kind.value("value")
        # Swarm names GPUs one by one, too: NVIDIA-GPU=UUID
        found.append((reserved, "generic_resources", str(value) if isinstance(value, str) and value else str(kind.whole("value"))))
        kind.done()
        entry.done()
    wishes = {wish for _, _, wish in found} - {"0"}
    if len(wishes) > 1:
        found[-1][0].wrong(found[-1][1], "and another place ask for different GPUs", "say it once")
    return next(iter(wishes), "")


def _request(entry: Table, *, gpu: bool) -> str:
    said = [str(one) for group in entry.items("capabilities") for one in (group if isinstance(group, list) else [group])]
    capabilities = [one.removeprefix("nvidia-") for one in said]
    if not gpu and "gpu" not in capabilities and capabilities == said:
        entry.wrong("capabilities", f"are {', '.join(capabilities)[:60] or 'none'}", "GPUs are what there is: capabilities: [gpu]")
        return "0"
    if entry.text("driver", "nvidia") not in ("nvidia", "cdi"):
        entry.wrong("driver", f"is {entry.text('driver')[:40]!r}", "leave it out")
    if entry.has("options"):
        entry.note("options", "it has no effect")
    ids = entry.texts("device_ids")
    if ids and entry.has("count"):
        entry.wrong("count", "stands beside device_ids", "give one of them")
    more = [one for one in capabilities if one != "gpu"]
    if unknown := [one for one in more if one not in CAPABILITIES]:
        entry.wrong("capabilities", f"has {unknown[0][:40]!r}, which no GPU has", f"there are gpu, {', '.join(sorted(CAPABILITIES))}")
    wanted = "all" if not entry.has("count") or entry.value("count") in ("all", -1) else str(entry.whole("count", most=10_000))
    entry.done()
    if not all(re.fullmatch("[A-Za-z0-9:/_.=-]{1,120}", one) for one in ids):
        entry.wrong("device_ids", "has a name that no GPU has", "give indices or UUIDs")
    found = f"device={','.join(one.removeprefix('nvidia.com/gpu=') for one in ids)}" if ids else wanted
    return f"{found},capabilities={','.join(more)}" if more else found
