"""Limits, accounting and the kill switch for a tree of processes: cgroup v2, useful alone.

::

    with Cgroup.create("job-7", Limits.parse(cpus="1.5", memory="4G")) as group:
        ...start something in it: clone3(CLONE_INTO_CGROUP, group.fd), or group.add(pid)
        print(group.usage().memory_peak)

``limits`` says what is asked, ``delegation`` where groups may be made, ``group`` makes them, ``watch`` waits for events, ``usage``
reads the accounts, ``devices`` builds the device filter, ``systemd`` asks a user manager for a place. Names are imported when they are
first used: what only says limits makes no group.
"""

from __future__ import annotations

from dockless.base.later import names_of
from dockless.base.typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dockless.cgroups.delegation import Delegation, find_delegation, release
    from dockless.cgroups.devices import STANDARD_DEVICES, DeviceRule
    from dockless.cgroups.group import Cgroup, unavailable
    from dockless.cgroups.limits import IoMax, Limits, Rounding, Write
    from dockless.cgroups.usage import USAGE_FILES, Pressure, Usage
    from dockless.cgroups.watch import Event, Frozen, GroupWatch, OomEvent, Populated

__all__ = [
    "STANDARD_DEVICES",
    "USAGE_FILES",
    "Cgroup",
    "Delegation",
    "DeviceRule",
    "Event",
    "Frozen",
    "GroupWatch",
    "IoMax",
    "Limits",
    "OomEvent",
    "Populated",
    "Pressure",
    "Rounding",
    "Usage",
    "Write",
    "find_delegation",
    "release",
    "unavailable",
]

_HOME = {
    "Cgroup": "group",
    "Delegation": "delegation",
    "DeviceRule": "devices",
    "Event": "watch",
    "Frozen": "watch",
    "GroupWatch": "watch",
    "IoMax": "limits",
    "Limits": "limits",
    "OomEvent": "watch",
    "Populated": "watch",
    "Pressure": "usage",
    "Rounding": "limits",
    "STANDARD_DEVICES": "devices",
    "USAGE_FILES": "usage",
    "Usage": "usage",
    "Write": "limits",
    "find_delegation": "delegation",
    "release": "delegation",
    "unavailable": "group",
}

__getattr__ = names_of(__name__, _HOME)
