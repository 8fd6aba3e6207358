"""Where a job file says a keyword of ``dockless.run`` or ``dockless.submit``: each format has words of its own for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dockless.sched.formats.jobfile import JobFile, Role
from dockless.sched.formats.tables import Path, Source, dotted

_WORDS: Mapping[str, Mapping[str, str]] = {
    "dockless": {"command": "command script"},
    "openpai": {
        "name": "jobName", "role": "name", "env": "jobEnvs", "mounts": "dataDir outputDir codeDir", "gpus": "gpuNumber",
        "gpu_class": "gpuType gpuNumber", "cpus": "cpuNumber", "memory": "memoryMB", "shm_size": "shmMB memoryMB", "ports": "portList",
        "retries": "retryCount",
    },
    "openpai-2": {
        "image": "dockerImage prerequisites", "command": "commands", "mounts": "data output prerequisites",
        "gpus": "resourcePerInstance.gpu", "cpus": "resourcePerInstance.cpu", "memory": "resourcePerInstance.memoryMB",
        "shm_size": "extraContainerOptions.shmMB resourcePerInstance.memoryMB", "ports": "resourcePerInstance.ports",
        "retries": "jobRetryCount",
    },
    "compose": {
        "env": "environment", "mounts": "volumes configs secrets", "secrets": "", "tmpfs": "tmpfs volumes", "add_hosts": "extra_hosts",
        "gpus": "gpus deploy.resources.reservations.devices deploy.resources.reservations.generic_resources runtime",
        "cpus": "cpus deploy.resources.limits.cpus", "memory": "mem_limit deploy.resources.limits.memory",
        "reserve_cpus": "deploy.resources.reservations.cpus",
        "memory_low": "mem_reservation deploy.resources.reservations.memory", "pids": "pids_limit deploy.resources.limits.pids",
        "workdir": "working_dir", "health": "healthcheck", "grace": "stop_grace_period", "pull": "pull_policy",
        "network": "network_mode networks ports", "publish": "ports", "dns_options": "dns_opt",
        "profile": "privileged", "root": "read_only", "interactive": "stdin_open",
        "namespaces": "pid ipc uts userns_mode cgroup", "retries": "restart deploy.restart_policy",
    },
    "dlc": {
        "env": "envs", "mounts": "data_sources", "gpus": "gpu", "gpu_class": "gpu_type gpu", "cpus": "cpu",
        "shm_size": "shared_memory", "time_limit": "job_max_running_time_minutes",
    },
    "sbatch": {
        "name": "job-name", "image": "container-image", "mounts": "container-mounts", "workdir": "container-workdir chdir",
        "env": "export", "gpus": "gpus gres gpus-per-node gpus-per-task", "gpu_class": "gres gpus gpus-per-node gpus-per-task",
        "cpus": "cpus-per-task cpus-per-gpu", "memory": "mem mem-per-cpu mem-per-gpu", "time_limit": "time", "after": "dependency",
        "warn": "signal", "notify": "mail-type", "notify_to": "mail-user", "on_reboot": "requeue", "priority": "priority nice",
    },
}  # fmt: skip
"""What is not among them is called as dockless calls it."""


def place_of(file: JobFile, role: Role, keyword: str) -> tuple[int, str]:
    """The line of a keyword of a role, 0 where nobody knows, and what it stands in, for formats that call it otherwise."""
    source, above = file.source, _above(file, role)
    if source is None:
        return 0, ""
    found = _place(file, source, role, keyword) or above
    inside = above and found[: len(above)] == above and file.format != "dockless" and source.line(above)
    return source.line(found), f"{dotted(above)}: " if inside else ""


def in_its_words(file: JobFile, role: Role, keyword: str, why: str) -> str:
    """``why``, what is wrong, with the format's own word for the keyword where it begins with the keyword and the file says it."""
    if file.source is None or file.format == "dockless" or not why.startswith(f"{keyword} ") or why.startswith(f"{keyword} are "):
        return why
    found, above = _place(file, file.source, role, keyword), _above(file, role)
    return dotted(found[len(above) if found[: len(above)] == above else 0 :]) + why.removeprefix(keyword) if found else why


def _place(file: JobFile, source: Source, role: Role, keyword: str) -> Path:
    """Empty where nothing is there."""
    return next((path for path in _paths(file, role, keyword) if source.line(path)), ())


def is_unread(file: JobFile, role: Role, keyword: str) -> bool:
    """Whether the file was found wrong where it says this: what the role has of it stands for a value that could not be read."""
    if file.source is None:
        return False
    wrong = file.source.wrong_at
    if keyword == "role" and _above(file, role) in wrong:
        return True
    return any(one[: len(path)] == path for path in _paths(file, role, keyword) for one in wrong)


def _above(file: JobFile, role: Role) -> Path:
    """Where a role's own keys are; empty where all are at the top."""
    if file.format == "openpai":
        return ("taskRoles", next((at for at, one in enumerate(file.roles) if one.name == role.name), 0))
    table = {"dockless": "roles", "openpai-2": "taskRoles", "compose": "services"}.get(file.format)
    return (table, role.name) if table else ()


def _paths(file: JobFile, role: Role, keyword: str) -> Iterator[Path]:
    """The places where it can stand: the role's own first, then those for all roles. ``keyword``: also ``env.NAME``, a part of one."""
    above = _above(file, role)
    name, *part = keyword.split(".")
    words: list[Path] = [tuple(word.split(".")) for word in _WORDS[file.format].get(name, name).split()]
    words = [(*word, *part) for word in words] + (words if part else [])
    if above and keyword != "name":
        yield from ((*above, *word) for word in words)
    if file.format == "dlc":
        yield from ((f"{role.name}_{word[0]}",) for word in words)
    if file.format == "sbatch":
        yield from ((f"--{word[0]}",) for word in words)
    elif keyword != "role":
        yield from words
