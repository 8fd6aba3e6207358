"""Jobs that start together, each in its role: when they have ended, and what each is told of the others.

They have one network that nobody else is in, where each has an address and the name of its role; or, as an ordinary user's jobs, one with
nothing but its loopback interface, or the host's: then the address of all of them is that of loopback, and they differ by their ports.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from dockless.base.dataclass import dataclass
from dockless.errors import BadInput
from dockless.sandbox.hosts import check_name
from dockless.sched.jobs import JobOptions, State
from dockless.sched.parsing import parse_port

LOOPBACK = "127.0.0.1"
FIRST_PORT, LAST_PORT = 20_000, 29_999
"""Of those that they get: below the ports that the kernel gives to who asks for none, ip_local_port_range."""
DONE = "done"
_LONGEST = 64
"""Of the kernel's host names, uname(2)."""


@dataclass(frozen=True, slots=True)
class Member:
    """``state``: how it has ended, None while it goes on."""

    id: int
    options: JobOptions
    state: State | None = None


def ending(members: Sequence[Member]) -> str:
    """Whether all are to end, as ``JobOptions.ending`` has it."""
    for role in dict.fromkeys(member.options.role for member in members):
        ended = [member for member in members if member.options.role == role and member.state is not None]
        failed = [member.id for member in ended if member.state is not State.COMPLETED]
        rule = ended[0].options if ended else JobOptions()
        if rule.min_failed and len(failed) >= rule.min_failed:
            return f"failed:{failed[-1]}"
        if rule.min_succeeded and len(ended) - len(failed) >= rule.min_succeeded:
            return DONE
    return DONE if all(member.state is not None for member in members) else ""


def count_ports(options: JobOptions) -> int:
    """How many it gets: one of its own, and those with a label."""
    return 1 + sum(count for _, count in map(parse_port, options.labels))


def is_host_name(role: str) -> bool:
    """Whether the others may have it as a host's name."""
    try:
        check_name(role, "role")
    except BadInput:
        return False
    return True


def host_name(options: JobOptions) -> str:
    """By which the others find it, ``worker-0``; empty where its role is no host's name."""
    name = f"{options.role}-{options.role_index}"
    return name if len(name) <= _LONGEST and is_host_name(name) else ""


def environment(
    members: Sequence[JobOptions], rank: int, reached: Sequence[str], addresses: Sequence[str], *, openpai: bool
) -> dict[str, str]:
    """The variables of the one of that rank. ``reached``: by which name, or address, each is; ``addresses``: of each. ``openpai``: also
    those of OpenPAI."""
    own, first = members[rank], members[0]
    cluster: dict[str, list[str]] = {}
    for member, place in zip(members, reached, strict=True):
        if member.role.lower() != "evaluator":  # it is no part of the cluster that trains
            cluster.setdefault(member.role, []).append(f"{place}:{member.ports[0]}")
    found = {
        "MASTER_ADDR": reached[0],
        "MASTER_PORT": str(first.ports[0]),
        "RANK": str(rank),
        "LOCAL_RANK": "0",  # each has GPUs of its own, which begin with 0
        "WORLD_SIZE": str(len(members)),
        "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": own.role, "index": own.role_index}}, separators=(",", ":")),
        "DOCKLESS_ROLE": own.role,
        "DOCKLESS_ROLE_INDEX": str(own.role_index),
        "DOCKLESS_PORT": str(own.ports[0]),
    }
    if openpai:
        found |= _of_openpai(members, own, addresses)
    return found


def _of_openpai(members: Sequence[JobOptions], own: JobOptions, places: Sequence[str]) -> dict[str, str]:
    """The variables of OpenPAI's protocol 2, and two older ones that jobs still use: ``HOST_LIST`` and ``CONTAINER_HOST``."""
    found = {"PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX": str(own.role_index), "PAI_CONTAINER_HOST_IP": places[members.index(own)]}
    addresses: dict[str, list[str]] = {}
    for member, place in zip(members, places, strict=True):
        found[f"PAI_HOST_IP_{member.role}_{member.role_index}"] = place
        ports = labelled(member)
        for label, numbers in ports.items():
            found[f"PAI_PORT_LIST_{member.role}_{member.role_index}_{label}"] = ",".join(map(str, numbers))
        first = ports.get("http", member.ports)[0]
        addresses.setdefault(member.role, []).append(f"{place}:{first}")
    found |= {f"PAI_TASK_ROLE_{role}_HOST_LIST": ",".join(each) for role, each in addresses.items()}
    hers = {label: ",".join(map(str, numbers)) for label, numbers in labelled(own).items()}
    found |= {f"PAI_CONTAINER_HOST_{label}_PORT_LIST": numbers for label, numbers in hers.items()}
    return found | {"PAI_CONTAINER_HOST_PORT_LIST": "".join(f"{label}:{numbers};" for label, numbers in hers.items())}


def labelled(member: JobOptions) -> dict[str, tuple[int, ...]]:
    """The port numbers of each of its labels."""
    found, at = {}, 1
    for label, count in map(parse_port, member.labels):
        found[label] = member.ports[at : at + count]
        at += count
    return found
