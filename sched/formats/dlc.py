"""Parameter files of Alibaba's PAI DLC: ``dlc create job --params_file`` (Lingjun) and ``dlc submit pytorchjob --job_file`` (public cloud).

A line is ``key=value``, and the value is all behind the first ``=``: there are no quotes. Memory without a unit is GiB. The keys of a role
have its name in front, ``worker_cpu``; ``workers`` and ``worker_count`` are the same.
https://www.alibabacloud.com/help/en/pai/user-guide/commands-used-to-submit-jobs
"""

from __future__ import annotations

from dockless.base.dataclass import replace
from dockless.base.later import re
from dockless.base.text import shown
from dockless.base.typing import Any
from dockless.errors import BadInput
from dockless.sched.formats.jobfile import JobFile, Role, host_path, mounts_of
from dockless.sched.formats.tables import Source, Table

_KINDS = ("PyTorchJob", "TFJob", "MPIJob", "XGBoostJob", "ElasticBatchJob", "RayJob", "SlurmJob", "DataJuicerJob", "ReplicaJob", "Custom")
_ROLES = ("chief", "master", "ps", "worker", "evaluator", "graphlearn")
_MEMORY = r"([0-9]{1,9}(?:\.[0-9]{1,3})?)(?:(Ki|Mi|Gi|Ti|K|M|G|T)B?)?"
_OF_A_CLUSTER = {
    **dict.fromkeys(("workspace_id", "resource_id", "node_names", "vpc_id", "switch_id", "security_group_id", "region", "endpoint"),
                    "it names something of a cluster"),
    **dict.fromkeys(("code_source", "code_branch", "code_commit", "config"),
                    "nothing is fetched or mounted for it: mount a directory of this host, or put it into the image"),
    **dict.fromkeys(("thirdparty_libs", "thirdparty_lib_dir"), "nothing is installed for it: install it in the command, or in the image"),
    **dict.fromkeys(("oversold_type", "tags", "description", "user_vpc", "job_file", "params_file", "access_key", "protocol"),
                    "it has no effect"),
}  # fmt: skip


def values(text: str, source: Source) -> dict[str, Any]:
    """The lines of a file by their keys."""
    found: dict[str, Any] = {}
    lines: dict[tuple[str | int, ...], int] = {}
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip()
        if not line or line[0] == "#":
            continue
        key, equals, value = line.partition("=")
        key = key.strip().removeprefix("--").replace("-", "_")
        if not equals or not re.fullmatch("[A-Za-z_]{1,64}", key):
            source.add(
                BadInput(
                    f"{source.what}:{number}: {shown(line[:40])} is not key=value",
                    subject=source.what,
                    hint="write key=value, without blanks in the key",
                )
            )
            continue
        if key in found:
            source.add(BadInput(f"{source.what}:{number}: {key} is there twice", subject=key, hint="remove one of them"))
            continue
        lines[(key,)] = number
        found[key] = value.strip()
    source.find_lines = lambda: lines
    return found


def parse(text: str, source: Source) -> JobFile:
    """``BadInput``"""
    top = Table(source, values(text, source))
    kind = top.text("kind") or top.text("job_type") or "PyTorchJob"
    if kind not in _KINDS:
        top.wrong("kind" if top.text("kind") else "job_type", f"is {kind[:40]!r}", f"known are {', '.join(_KINDS)}")
    top.required("command")
    command = ("sh", "-c", top.text("command"))
    env = _variables(top)
    policy = top.text("success_policy")
    if policy not in ("", "AllWorkers", "ChiefWorker"):
        top.wrong("success_policy", f"is {policy[:40]!r}", "it is ChiefWorker or AllWorkers")
    mounts = _data_sources(top)
    roles = tuple(role for name in _ROLES if (role := _role(top, name, command, env, mounts)) is not None)
    roles = _that_decide(top, policy, roles)
    if not roles and not source.errors:
        top.wrong("worker_count", "is missing", "say how many workers there are: worker_count=1")
    queue: dict[str, Any] = {}
    if minutes := _number(top, "job_max_running_time_minutes"):
        queue["time_limit"] = minutes * 60
    if _number(top, "priority") > 1:
        top.note("priority", "it is not taken over: who may go ahead is decided on this host (submit --priority)")
    if top.text("interactive", "false").lower() not in ("false", "no", "0"):
        top.note("interactive", "it has no effect: submit -t -i gives a job a terminal")
    top.unused(_OF_A_CLUSTER)
    name = top.text("name")
    top.done([f"{role}_{key}" for role in _ROLES for key in ("count", "cpu", "gpu", "memory", "shared_memory", "image")])
    return JobFile("dlc", name, roles, queue, {}, tuple(source.notes), True, source)


def _number(top: Table, key: str, unread: int = 0) -> int:
    """``unread``: what is returned for a value that is no number."""
    text = top.text(key, "0", like="[0-9]{1,9}", hint="give a whole number")
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else unread


def _variables(top: Table) -> dict[str, str]:
    found = {}
    for pair in filter(None, top.text("envs").split(",")):
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            top.wrong("envs", f"has {shown(pair[:40])}, which is not NAME=value", "write envs=A=1,B=2")
        found[name.strip()] = value
    return found


def _data_sources(top: Table) -> list[str]:
    """Directories of this host, written to, too; what names something of the cloud is noted."""
    said = [one.strip() for one in top.text("data_sources").split(",") if one.strip()]
    found = [path for one in said if (path := host_path(one))]
    if len(found) < len(said):
        top.note("data_sources", "nothing is fetched for it: give the paths of directories of this host")
    return mounts_of((), found)


def _role(top: Table, name: str, command: tuple[str, ...], env: dict[str, str], mounts: list[str]) -> Role | None:
    said = [key for key in top.values if key.startswith(f"{name}_") or key in (f"{name}s", name)]
    counts = [key for key in (f"{name}_count", f"{name}s") if top.has(key)]
    if not said:
        return None
    if not counts:
        top.wrong(said[0], f"stands without {name}_count", f"say how many there are: {name}_count=1")
    if len(counts) > 1:
        top.wrong(counts[1], f"stands beside {counts[0]}", "give one of them")
    count = _number(top, counts[0], 1) if counts else 1

    def of(key: str) -> str:
        """The role's own, else what is for all."""
        text = top.text(f"{name}_{key}")
        return text or top.text(key)

    def place(key: str) -> str:
        """The key of which ``of`` returns the value."""
        return key if top.text(key) and not top.text(f"{name}_{key}") else f"{name}_{key}"

    options: dict[str, Any] = {"env": env} if env else {}
    if mounts:
        options["mounts"] = mounts
    if cores := of("cpu"):
        options["cpus"] = top.number(place("cpu")) if cores != "0" else None
    for key, keyword in (("memory", "memory"), ("shared_memory", "shm_size")):
        if text := of(key):
            match = re.fullmatch(_MEMORY, text)
            if match is None:
                top.wrong(place(key), f"{text[:40]!r} is no size", "give GiB, or a number with a unit: 64, 64Gi, 512Mi")
                continue
            options[keyword] = f"{match[1]}{(match[2] or 'G')[0]}"
    gpus = of("gpu")
    if gpus and not re.fullmatch("[0-9]{1,4}", gpus):
        top.wrong(place("gpu"), f"{gpus[:40]!r} is no number of GPUs", "give a whole number")
    if of("spec"):
        top.note(place("spec"), "it names a machine of the cloud: say worker_cpu, worker_memory and worker_gpu")
    if (model := of("gpu_type")) and gpus.strip("0"):
        options["gpu_class"] = model
    image = of("image")
    if not count:
        return None
    if not image:
        top.wrong(f"{name}_image", "is missing", "say in which image it runs")
    return Role(
        name,
        count,
        image,
        command,
        gpus.lstrip("0"),
        {key: value for key, value in options.items() if value is not None},
    )


def _that_decide(top: Table, policy: str, roles: tuple[Role, ...]) -> tuple[Role, ...]:
    """The roles, of which one says when the job has succeeded, as ``success_policy`` asks. Without a chief that is the first worker."""
    chief = next((role.name for role in roles if role.name in ("chief", "master")), "")
    workers = next((role.count for role in roles if role.name == "worker"), 0)
    names = {role.name for role in roles}
    if not policy or not (workers or chief) or (policy == "AllWorkers" and names <= {"worker", chief}):
        return roles  # all have to end
    if policy == "ChiefWorker" and not chief and workers > 1:
        top.note("success_policy", "there is no chief, and the first worker does not decide alone: all workers have to succeed")
    if policy == "AllWorkers" and chief and workers:
        top.note("success_policy", f"the {chief} ends with the workers, when all of them have succeeded")
    decides = chief if chief and (policy == "ChiefWorker" or not workers) else "worker"
    return tuple(replace(role, min_succeeded=role.count) if role.name == decides else role for role in roles)
