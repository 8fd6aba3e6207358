"""Jobs of Microsoft's OpenPAI: version 1, JSON with comments, and version 2, YAML.

https://github.com/microsoft/pai/blob/v0.14.0/docs/job_tutorial.md, https://github.com/microsoft/openpai-protocol (schemas/v2).
What both give a program are the variables ``PAI_*``: those of an instance, and of its ports, are added when it starts (``sched.roles``).
Directories of this host are mounted at the same place; those on HDFS are named to it, and nothing of them is fetched.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from dockless.base.later import re
from dockless.base.typing import Any
from dockless.sched.formats.jobfile import JobFile, Role, Secret, host_path, mounts_of
from dockless.sched.formats.tables import MOST, Path, Source, Table
from dockless.sched.formats.templates import filled, secrets_in
from dockless.sched.parsing import MAX_AFTER

_NAME_1 = r"[A-Za-z0-9._~-]{1,255}"
_ROLE_1 = r"[A-Za-z0-9._~-]{1,64}"
_NAME_2 = r"[a-zA-Z0-9_-]{1,255}"
_ROLE_2 = r"[a-zA-Z_][a-zA-Z0-9_]{0,63}"
_SHM = 64
"""MiB of shared memory of a task that does not say."""
_FILES = "file://"
"""Where files are that have no other address: on this host."""
_PIECES = r'"[^"\\\n]*(?:\\.[^"\\\n]*)*"?|//[^\n]*|/\*[^*]*(?:\*(?!/)[^*]*)*(?:\*/|\Z)|[^"/]+|.'
"""Texts, comments and what is neither, each as far as it goes: one pass, whatever is missing."""
_Line = tuple[Path, str]
_NOT_FETCHED = "it is told to the program, and nothing is fetched from there"


def without_comments(text: str) -> str:
    """JSON without ``//`` and ``/* */``; every line stays where it is."""
    found = []
    for match in re.finditer(_PIECES, text):
        piece = match[0]
        found.append("\n" * piece.count("\n") if piece[:2] in ("//", "/*") and piece[:1] == "/" else piece)
    return "".join(found)


# -- version 1


def parse_1(values: Any, source: Source) -> JobFile:
    """``BadInput``"""
    top = Table(source, values)
    top.required("jobName", "image", "taskRoles")
    name = top.text("jobName", like=_NAME_1, hint="letters, digits, '-', '_', '.' and '~' make a name")
    image = top.text("image")
    env = top.variables("jobEnvs")
    read: list[str] = []
    written: list[str] = []
    env.setdefault("PAI_OUTPUT_DIR", f"{_FILES}/Output/{name}")
    for key, variable in (("dataDir", "PAI_DATA_DIR"), ("outputDir", "PAI_OUTPUT_DIR"), ("codeDir", "PAI_CODE_DIR")):
        if directory := top.text(key):
            if path := host_path(directory):
                env[variable] = path
                (written if key == "outputDir" else read).append(path)
                continue
            env[variable] = directory.replace("$PAI_DEFAULT_FS_URI", _FILES)
            top.note(
                key,
                f"{_NOT_FETCHED}; give the path of a directory of this host"
                if key != "codeDir"
                else "the code is not copied in: give the path of a directory of this host, or put it into the image",
            )
    if top.text("authFile"):
        top.note("authFile", "it is not read; log in with: dockless login REGISTRY")
    if top.text("virtualCluster", "default") not in ("", "default"):
        top.note("virtualCluster", "there are no virtual clusters; who may have how many GPUs is said in dockless.toml")
    model = top.text("gpuType")
    if top.has("extras") and top.value("extras") != {}:
        top.note("extras", "it has no effect")
    retries = top.whole("retryCount")
    mounts = mounts_of(read, written)
    roles = tuple(_role_1(entry, image, env, mounts, model) for entry in top.entries("taskRoles"))
    if not top.items("taskRoles"):
        top.wrong("taskRoles", "is empty", "give one role at least")
    _refuse_twins(roles, top)
    top.done()
    job = JobFile("openpai", name, roles, {"retries": retries} if retries else {}, {}, tuple(source.notes), True, source)
    return _with_variables(job)


def _role_1(table: Table, image: str, env: Mapping[str, str], mounts: list[str], model: str) -> Role:
    table.required("name", "taskNumber", "cpuNumber", "memoryMB", "gpuNumber", "command")
    memory = table.whole("memoryMB", least=100)
    shm = table.whole("shmMB", min(_SHM, memory), least=1)
    if shm > memory >= 100:
        table.wrong("shmMB", f"is {shm}, more than memoryMB", f"give at most {memory}")
    ports = {}
    for port in table.entries("portList"):
        port.required("label", "portNumber")
        label = port.text("label", like=r"[A-Za-z0-9._~-]{1,64}", hint="letters, digits, '-', '_', '.' and '~' make a label")
        if port.whole("beginAt", most=65535):
            port.note("beginAt", "ports are those that are free")
        ports[label] = port.whole("portNumber", least=1, most=1000)
        port.done()
    command = table.text("command")
    if not command.strip():
        table.wrong("command", "is empty", "give the line that is executed")
    # A key without a value is not the same as none: null says never, none says 1.
    never = "minFailedTaskCount" in table.values and not table.has("minFailedTaskCount")
    gpus = str(table.whole("gpuNumber", most=10_000) or "")
    count = table.whole("taskNumber", least=1, most=10_000)
    options = {
        "cpus": table.whole("cpuNumber", least=1),
        "memory": f"{memory}M",
        "shm_size": f"{shm}M",
        "env": dict(env),
        **_mounted(mounts),
    }
    found = Role(
        table.text("name", like=_ROLE_1, hint="letters, digits, '-', '_', '.' and '~' make a name"),
        count,
        image,
        _shell(command),
        gpus,
        {**options, "gpu_class": model} if model and gpus else options,
        ports,
        None if never else table.whole("minFailedTaskCount", 1, least=1),
        table.whole("minSucceededTaskCount", least=1, most=count or MOST) if table.has("minSucceededTaskCount") else None,
    )
    table.done()
    return found


def _shell(commands: str) -> tuple[str, ...]:
    work = 'export PAI_WORK_DIR="$PWD"\n' if "PAI_WORK_DIR" in commands else ""
    return ("bash", "-c", work + commands)


def _mounted(mounts: list[str]) -> dict[str, Any]:
    return {"mounts": mounts} if mounts else {}


def _refuse_twins(roles: tuple[Role, ...], top: Table) -> None:
    names = [role.name for role in roles]
    for name in names:
        if name and names.count(name) > 1:
            top.wrong("taskRoles", f"has two roles {name!r}", "give each role a name of its own")


# -- version 2


def parse_2(values: Any, source: Source) -> JobFile:
    """``BadInput``"""
    top = Table(source, values)
    top.required("protocolVersion", "name", "type", "taskRoles")
    if top.text("protocolVersion") not in ("2", "2.0"):
        top.wrong("protocolVersion", "is not 2", "jobs of version 1 are JSON")
    if top.text("type") != "job":
        top.wrong("type", "is not job", "give a job; components are part of one")
    name = top.text("name", like=_NAME_2, hint="letters, digits, '-' and '_' make a name")
    for key in ("version", "contributor", "description"):
        top.text(key)
    secrets = {key: Secret(top.table("secrets").text(key)) for key in top.table("secrets").values}
    scope = {"parameters": top.value("parameters") or {}}
    top.table("parameters")
    components = _prerequisites(top, scope)
    defaults = top.table("defaults")
    chosen = defaults.text("deployment")
    if defaults.text("virtualCluster", "default") not in ("", "default"):
        defaults.note("virtualCluster", "there are no virtual clusters; who may have how many GPUs is said in dockless.toml")
    defaults.done()
    around = _deployment(top, chosen)
    retries = _retries(top)
    roles = tuple(_role_2(table, role, components, scope, around) for role, table in top.tables("taskRoles"))
    if not roles:
        top.wrong("taskRoles", "is empty", "give one role at least")
    _extras(top)
    top.done()
    used = {one for role in roles for text in (*role.command, role.image) for one in secrets_in(text)}
    for one in sorted(used - secrets.keys()):
        top.wrong("secrets", f"has no {one}", "write it down there")
    job = JobFile(
        "openpai-2",
        name,
        roles,
        {"retries": retries} if retries else {},
        {key: secret for key, secret in secrets.items() if key in used},
        tuple(source.notes),
        True,
        source,
    )
    return _with_variables(job)


def _retries(top: Table) -> int:
    """-1 and -2 are without end in real files."""
    if top.value("jobRetryCount") in (-1, -2):
        top.note("jobRetryCount", f"it is started again at most {MAX_AFTER} times")
        return MAX_AFTER
    return top.whole("jobRetryCount")


def _prerequisites(top: Table, scope: Mapping[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """By type and name. ``scope``: what their addresses may refer to."""
    found: dict[str, dict[str, dict[str, Any]]] = {"dockerimage": {}, "script": {}, "output": {}, "data": {}}
    for entry in top.entries("prerequisites"):
        entry.required("type", "uri", "name")
        kind, name = entry.text("type"), entry.text("name")
        for key in ("protocolVersion", "version", "contributor", "description", "plugin"):
            entry.text(key)
        if entry.has("require"):
            entry.note("require", "nothing is installed for it")
        if entry.has("auth"):
            entry.note("auth", "it is not used; log in with: dockless login REGISTRY")
        uri: Any
        if isinstance(entry.value("uri"), list):
            uri = [filled(text, scope, partial(entry.wrong, "uri")) for text in entry.texts("uri")]
        else:
            uri = filled(entry.text("uri"), scope, partial(entry.wrong, "uri"))
        entry.done()
        if kind not in found:
            entry.wrong("type", "is unknown", f"known are {', '.join(found)}")
            continue
        if name in found[kind]:
            entry.wrong("name", f"is that of another {kind}", "give each a name of its own")
        found[kind][name] = {**entry.values, "uri": uri}
    return found


def _deployment(top: Table, chosen: str) -> dict[str, tuple[list[_Line], list[_Line]]]:
    """What stands before and behind each role's commands."""
    found: dict[str, tuple[list[_Line], list[_Line]]] = {}
    names = []
    for entry in top.entries("deployments"):
        name = entry.text("name")
        names.append(name)
        for key in ("version", "contributor", "description"):
            entry.text(key)
        for role, table in entry.tables("taskRoles"):
            before, behind = _lines(table, "preCommands"), _lines(table, "postCommands")
            if name == chosen:
                found[role] = before, behind
            table.done()
        entry.done()
    if chosen and chosen not in names:
        top.wrong("defaults", f"names the deployment {chosen!r}, which there is not", f"there are {', '.join(names) or 'none'}")
    return found


def _role_2(
    table: Table,
    name: str,
    components: Mapping[str, Mapping[str, Mapping[str, Any]]],
    shared: Mapping[str, Any],
    around: Mapping[str, tuple[list[_Line], list[_Line]]],
) -> Role:
    if not re.fullmatch(_ROLE_2, name):
        table.wrong("", "is no name of a role", "letters, digits and '_' make one, with no digit in front")
    table.required("dockerImage", "resourcePerInstance", "commands")
    scope = dict(shared)
    chosen = {"dockerimage": table.text("dockerImage"), **{kind: table.text(kind) for kind in ("data", "output", "script")}}
    for kind, component in chosen.items():
        if component and component not in components[kind]:
            key = "dockerImage" if kind == "dockerimage" else kind
            table.wrong(key, f"is {component!r}, of which there is no {kind}", f"prerequisites has {', '.join(components[kind]) or 'none'}")
            continue
        if component and kind != "dockerimage":
            scope[kind] = dict(components[kind][component])
    used = {kind: [name] for kind, name in chosen.items() if name in components[kind]}
    for at, prerequisite in enumerate(table.texts("prerequisites")):
        for kind, of in components.items():
            if prerequisite in of:
                used.setdefault(kind, []).append(prerequisite)
        if not any(prerequisite in of for of in components.values()):
            table.source.wrong((*table.path, "prerequisites", at), "is not among the prerequisites", "write it down there")
    read, written = ([path for name in used.get(kind, ()) for path in _paths(components[kind][name])] for kind in ("data", "output"))
    resources, extra = table.table("resourcePerInstance"), table.table("extraContainerOptions")
    resources.required("cpu", "memoryMB", "gpu")
    memory = resources.whole("memoryMB", least=1)
    if extra.flag("infiniband"):
        extra.note("infiniband", "no such devices are given")
    if table.whole("taskRetryCount"):
        table.note("taskRetryCount", "a task is not started again alone; jobRetryCount starts the job again")
    before, behind = around.get(name, ([], []))

    lines = [
        filled(line.removesuffix("\n"), scope, partial(table.source.wrong, path))
        for path, line in (*before, *_lines(table, "commands"), *behind)
    ]
    completion, instances = table.table("completion"), table.whole("instances", 1, least=1, most=10_000)
    ports = resources.table("ports")
    for key in ("minFailedTaskCount", "minSucceededTaskCount"):
        if completion.has(key):
            completion.note(key, f"it has no effect: {key.replace('TaskCount', 'Instances')} is its name here")
    found = Role(
        name,
        instances,
        str(components["dockerimage"].get(chosen["dockerimage"], {}).get("uri", "")),
        _shell("\n".join(lines)),
        str(resources.whole("gpu", most=10_000) or ""),
        {
            "cpus": resources.whole("cpu", least=1),
            "memory": f"{memory}M",
            "shm_size": f"{extra.whole('shmMB', min(_SHM, memory), least=1)}M",
            **_mounted(mounts_of(read, written)),
        },
        {label: ports.whole(label, most=1000) or 1 for label in ports.values},
        _or_all(completion, "minFailedInstances", 1, MOST),
        _or_all(completion, "minSucceededInstances", instances, MOST if table.wrong_at("instances") else instances),
    )
    for one in (resources, extra, completion, table):
        one.done()
    return found


def _lines(table: Table, key: str) -> list[_Line]:
    """Commands, each with its place."""
    return [((*table.path, key, at), line) for at, line in enumerate(table.texts(key))]


def _paths(component: Mapping[str, Any]) -> list[str]:
    """The directories of this host that it names."""
    said = component["uri"]
    return [path for address in (said if isinstance(said, list) else [said]) if (path := host_path(str(address)))]


def _or_all(table: Table, key: str, default: int | None, most: int) -> int | None:
    """None for -1: never, or when all have ended."""
    if not table.has(key):
        return default
    return None if table.value(key) == -1 else table.whole(key, least=1, most=most, beside="-1 or ")


def _extras(top: Table) -> None:
    extras = top.table("extras")
    extras.flag("gangAllocation")
    extras.text("submitFrom")
    for plugin in extras.entries("com.microsoft.pai.runtimeplugin"):
        name = plugin.text("plugin", "?")
        plugin.note("plugin", f"there is no plugin {name[:40]!r}")
    if extras.has("hivedScheduler"):
        extras.note("hivedScheduler", "cells and their priorities are of another scheduler: give a priority, submit --priority")
    for key in extras.values:
        if key not in ("gangAllocation", "submitFrom", "com.microsoft.pai.runtimeplugin", "hivedScheduler"):
            extras.note(str(key), "it has no effect")


# -- what both tell a program


def _with_variables(job: JobFile) -> JobFile:
    """Those that are the same for every instance of a role; those of an instance are added at its start."""
    from dockless.base.dataclass import replace

    common = {
        "PAI_JOB_NAME": job.name,
        "PAI_DEFAULT_FS_URI": _FILES,
        "PAI_TASK_ROLE_COUNT": str(len(job.roles)),
        "PAI_TASK_ROLE_LIST": ",".join(role.name for role in job.roles),
    }
    for role in job.roles:
        size = {key: str(role.options[key]).removesuffix("M") for key in ("cpus", "memory", "shm_size")}
        common |= {
            f"PAI_TASK_ROLE_TASK_COUNT_{role.name}": str(role.count),
            f"PAI_RESOURCE_{role.name}": f"{role.gpus or 0},{size['cpus']},{size['memory']},{size['shm_size']}",
            f"PAI_MIN_FAILED_TASK_COUNT_{role.name}": str(role.min_failed or -1),
            f"PAI_MIN_SUCCEEDED_TASK_COUNT_{role.name}": str(role.min_succeeded or -1),
        }
    return replace(
        job,
        roles=tuple(
            replace(
                role,
                options={
                    **role.options,
                    "env": {
                        **role.options.get("env", {}),
                        **common,
                        "PAI_CURRENT_TASK_ROLE_NAME": role.name,
                    },
                },
            )
            for role in job.roles
        ),
    )
