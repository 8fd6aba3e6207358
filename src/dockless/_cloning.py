"""Jobs of the queue as a job file, so that they can be read, edited and submitted again: the inverse of ``make_job``."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence

from dockless._jobfiles import unhidden
from dockless._networks import egress_words, network_words, port_words
from dockless._options import KEYWORDS, gpus_wanted
from dockless.base.dataclass import defaults_of, replace
from dockless.base.healthcheck import HealthCheck
from dockless.base.records import differences, plain
from dockless.base.typing import TYPE_CHECKING, Any
from dockless.cgroups import limits
from dockless.errors import BadInput
from dockless.sched.formats import JobFile, Role, Secret
from dockless.sched.formats.own import QUEUE
from dockless.sched.formats.templates import literal_in, secrets_in, texts_of
from dockless.sched.jobs import JobSpec
from dockless.sched.parsing import parse_port

if TYPE_CHECKING:
    from dockless.sandbox.spec import Mount, Spec

_OF_ITS_TIME = ("hold", "begin", "after")
"""What a job waited for is not asked of the next one."""
_LISTS = ("mounts", "tmpfs", "devices", "add_hosts", "group_add", "publish", "cap_add", "cap_drop")
_OF_SEVERAL = ("limits", "mounts", "tmpfs", "devices", "network", "egress")
"""Keywords that fill several fields, or share one."""
_OF_GPUS = ("gpus", "gpu_memory", "gpu_class")
_NOT_SAID = (("best_effort", False), ("seccomp", ""))
"""What the command line gives where nothing was said."""


def file_of(jobs: Sequence[JobSpec]) -> JobFile:
    """A job, or all of those that start together, by rank, as a file that says the same, but for what they waited for and the limit of an
    array. ``BadInput`` where only Python can. Variables and commands refer to secrets as those of the first file did; what looks like a
    reference to one that the job has not got stays as it is."""
    secrets = {name: Secret(value) for job in jobs for name, value in job.secrets}
    found = [(_queue(job), _role(job)) for job in jobs]
    roles = list(dict.fromkeys(job.role for job in jobs))
    counts = [len([job for job in jobs if job.role == role]) for role in roles]
    firsts = [sum(counts[:at]) for at in range(len(roles))]
    again = [found[first] for first, count in zip(firsts, counts, strict=True) for _ in range(count)]
    differ = any(secrets[name].value != value for job in jobs for name, value in job.secrets)
    if again != found or any(queue != found[0][0] for queue, _ in found) or differ or len({job.name for job in jobs}) > 1:
        hint = "submit them again from Python; `dockless requeue` submits them as they were, once they have ended"
        raise BadInput("jobs of one role that differ cannot be written in a file", subject="role", hint=hint)
    made = [replace(found[first][1], count=count) for first, count in zip(firsts, counts, strict=True)]
    texts = texts_of([(role.image, role.command, role.options) for role in made])
    literal = frozenset(written for text in texts for written in literal_in(text, secrets))
    return JobFile("dockless", jobs[0].name, tuple(made), found[0][0], secrets, together=bool(jobs[0].role), literal=literal)


def _queue(job: JobSpec) -> dict[str, Any]:
    queue = {
        name: plain(getattr(job, name))
        for name, default in defaults_of(JobSpec).items()
        if name in QUEUE and name not in _OF_ITS_TIME and getattr(job, name) != default
    }
    if job.warn_signal:
        queue["warn"] = f"{_signal(job.warn_signal)}@{job.warn_before:g}s"
    return queue


def _role(job: JobSpec) -> Role:
    role = Role(
        job.role or "main",
        1,
        job.spec.image,
        job.spec.argv,
        job.gpus,
        _keywords(job.spec),
        dict(map(parse_port, job.ports)),
        job.min_failed or None,
        job.min_succeeded or None,
        job.reserve_cpus,
    )
    return unhidden(role)


def with_options(file: JobFile, options: Mapping[str, Any], command: Sequence[str], role: str = "") -> JobFile:
    """With keywords of ``dockless.run`` in the place of what it says, None for what is not said: variables are set beside the others, and
    lists go on. Secrets to which nothing refers any more are left out. ``role``: of that one alone. ``BadInput`` where there is no role of
    that name."""
    names = [one.name for one in file.roles] if file.together else []
    if role and role not in names:
        hint = f"its roles are {', '.join(names)}" if names else "leave --role out: it is for jobs that start together"
        raise BadInput(f"there is no role {role[:60]!r}", subject="--role", hint=hint)
    roles = tuple(_changed(one, options, command) if role in ("", one.name) else one for one in file.roles)
    used = {name for one in roles for text in (*one.command, *one.options.get("env", {}).values()) for name in secrets_in(text)}
    return replace(file, roles=roles, secrets={name: secret for name, secret in file.secrets.items() if name in used})


def _changed(role: Role, options: Mapping[str, Any], command: Sequence[str]) -> Role:
    said = {name: value for name, value in options.items() if value not in (None, [], {}) and (name, value) not in _NOT_SAID}
    if options.get("allow_out") == []:  # --deny-out
        said["allow_out"] = []
    gpus = _gpus(role.gpus, {name: said.pop(name) for name in _OF_GPUS if name in said})
    if isinstance(said.get("health"), HealthCheck):
        said["health"] = differences(said["health"])
    if mounts := said.get("mounts"):  # --mount gives records
        said["tmpfs"] = [*said.get("tmpfs", []), *(_tmpfs(mount) for mount in mounts if _is_tmpfs(mount))]
        said["mounts"] = [mount if isinstance(mount, str) else _mount(mount) for mount in mounts if not _is_tmpfs(mount)]
    said |= {name: {**role.options.get(name, {}), **_pairs(said[name])} for name in ("env", "sysctls") if name in said}
    said |= {name: [*role.options.get(name, []), *said[name]] for name in _LISTS if name in said}
    return replace(role, command=tuple(command) or role.command, gpus=gpus, options={**role.options, **said})


def _gpus(before: str, said: Mapping[str, Any]) -> str:
    """How many or which, how much memory and which class: what is not said stays as it was."""
    parts = before.split(",") if before else []
    own = {name: part for name in _OF_GPUS[1:] for part in parts if part.startswith(f"{name.removeprefix('gpu_')}=")}
    kept = [part for name, part in own.items() if name not in said and f"{part.partition('=')[0]}=" not in str(said.get("gpus", ""))]
    asked = said if "gpus" in said else {"gpus": ",".join(part for part in parts if part not in own.values()) or None, **said}
    return ",".join(filter(None, (str(gpus_wanted(asked) or ""), *kept)))


def _is_tmpfs(mount: Mount | str) -> bool:
    return not isinstance(mount, str) and mount.kind == "tmpfs"


def _pairs(value: Mapping[str, str] | list[str]) -> Mapping[str, str]:
    return value if isinstance(value, Mapping) else dict(text.partition("=")[::2] for text in value)


def _keywords(spec: Spec) -> dict[str, Any]:
    """The keywords of ``dockless.run`` that make it, as plain values."""
    defaults = defaults_of(type(spec))
    found: dict[str, Any] = {}
    for row in KEYWORDS:
        if row.field and row.name not in _OF_SEVERAL and (value := getattr(spec, row.field)) != defaults.get(row.field):
            found[row.name] = _WRITE[row.name](value) if row.name in _WRITE else plain(value)
    found["tmpfs"] = [_tmpfs(mount) for mount in spec.mounts if mount.kind == "tmpfs"]
    found["mounts"] = [_mount(mount) for mount in spec.mounts if mount.kind != "tmpfs"]
    if spec.network != "none":
        found["network"] = network_words(spec.network, spec.endpoints)
    if spec.egress is not None:
        found |= egress_words(spec.egress, spec.profile)
    found["devices"] = [*(f"{one.source}:{one.target}:{one.access}" for one in spec.devices), *spec.cdi]
    for row in limits.KEYWORDS:
        if (value := getattr(spec.limits, row.field)) not in (None, ()):
            found[row.name] = _WRITE[row.name](value) if row.name in _WRITE else value
    return {name: value for name, value in found.items() if value not in ([], {}) or name == "allow_out"}


def _mount(mount: Mount) -> str:
    if ":" in mount.source or ":" in mount.target or mount.idmap is False:
        hint = "submit it again from Python"
        raise BadInput(f"the mount of {mount.target[:80]} cannot be written in a file", subject="mounts", hint=hint)
    flags = [name for name, on in (("ro", mount.readonly), ("norecursive", not mount.recursive), ("idmap", mount.idmap)) if on]
    return ":".join((mount.source, mount.target, *([",".join(flags)] if flags else [])))


def _tmpfs(mount: Mount) -> str:
    settings = [f"mode={mount.mode:o}", *(f"{name}={getattr(mount, name)}" for name in ("size", "uid", "gid") if getattr(mount, name))]
    return f"{mount.target}:{','.join((*settings, *(['noexec'] if mount.noexec else [])))}"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name.removeprefix("SIG")
    except ValueError:  # a real-time signal without a name
        return str(number)


_WRITE: dict[str, Callable[[Any], Any]] = {
    "env": dict,
    "sysctls": dict,
    "add_hosts": lambda hosts: [f"{name}:{address}" for name, address in hosts],
    "publish": lambda ports: [port_words(port) for port in ports],
    "namespaces": differences,
    "ulimits": lambda found: {limit.name: [limit.soft, limit.hard] for limit in found},
    "umask": lambda mask: f"{mask:03o}",
    "stop_signal": _signal,
    "health": lambda check: differences(check) if not check.disabled else False,
    "io": lambda disks: [f"{disk.target}:{','.join(f'{key}={value}' for key, value in disk.settings().items())}" for disk in disks],
    "hugetlb": dict,
    "dmem": dict,
}
"""How the value of a field is written where it is not as it is."""
