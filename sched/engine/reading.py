"""The daemon reads its settings, and which GPUs there are: when it starts, on SIGHUP, and when an administrator asks for it."""

from __future__ import annotations

from collections.abc import Mapping

from dockless.base import paths
from dockless.base.path import Path
from dockless.base.settings import check_possible, load
from dockless.base.settings_told import missing_driver, unknown_classes, without_effect
from dockless.base.typing import TYPE_CHECKING, Any
from dockless.errors import BadInput
from dockless.sched import config
from dockless.sched.engine.faults import say
from dockless.sched.store import usage

if TYPE_CHECKING:
    from dockless.sched.engine.engine import Engine
    from dockless.sched.engine.gpus.hostgpus import HostGpus

_NAMED = ("quota.users", "quota.groups", "groups", "reservations")
"""Settings that are tables of named entries: a change is told with the entry's name."""
_AT_START = ("gpus.driver_root",)
"""Settings that a daemon reads once, when it starts."""


def settings() -> config.Config:
    """What the file says; names in it that this host does not know are told. ``BadInput`` as ``startable``."""
    path = paths.config_file()
    found = startable(path)
    for line in missing_driver(path) + without_effect(path):
        say(line)
    return found


def startable(path: Path) -> config.Config:
    """What the file says. ``BadInput``, also for what the caller's own daemon cannot do on this host."""
    check_possible(load(path))
    found = config.load(path)
    check_own_cores(found)
    return found


def check_own_cores(found: config.Config) -> None:
    """``BadInput`` where processors are to be set aside and this host has no cpuset controller for that."""
    from dockless.cgroups import Limits, find_delegation, unavailable

    if found.has_own_cores:
        for error in unavailable(Limits(cpuset_cpus="0"), find_delegation()):
            raise BadInput(f"host.own_cores: {error}", subject="host.own_cores", hint="leave host.own_cores out")


def tell_classes(gpus: HostGpus) -> None:
    """Log the classes in quotas of which this host has no GPU. Nothing is logged where the driver lists no GPU at all."""
    if gpus.everything:
        for line in unknown_classes(lambda name: bool(gpus.of_classes([name])[name])):
            say(line)


def changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The keys of the settings that differ. Of quotas, groups and reservations: ``groups.NAME`` for each entry that differs."""
    found = []
    for key in sorted({*old, *new}):
        before, after = old.get(key), new.get(key)
        if key in _NAMED and isinstance(before, Mapping) and isinstance(after, Mapping):
            found += [f"{key}.{name}" for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
        elif before != after:
            found.append(key)
    return found


async def reload(engine: Engine) -> tuple[list[str], list[str]]:
    """Read the settings and the GPUs again, and apply them; the keys of the settings that have changed, and of those whose change holds
    from the daemon's next start. ``BadInput`` for a wrong file: the settings stay as they were."""
    await engine.gpus.list_again()
    try:
        found = settings()
        engine.gpus.hand_out(found.devices)
        tell_classes(engine.gpus)
        engine.configure(found)
        said = load()
        every = changed(engine.said, said)
        keys, later = [key for key in every if key not in _AT_START], [key for key in every if key in _AT_START]
        engine.said = {**said, **{key: engine.said[key] for key in later}}
    except BadInput as error:
        say(f"settings not changed: {error}")
        raise
    finally:
        models = {unit.uuid: unit.model for unit in engine.gpus.everything}
        engine.spawn(engine.write_surely(lambda db: usage.know(db, models)))
    say(f"settings read again: {', '.join(keys)}" if keys else "settings read again")
    for key in later:
        say(f"{key} has changed: the change holds from the daemon's next start")
    return keys, later
