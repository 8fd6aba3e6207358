"""The daemon reads its settings, and which GPUs there are: when it starts, on SIGHUP, and when an administrator asks for it."""

from __future__ import annotations

import os

from dockless.base import paths
from dockless.base.settings import unknown_names
from dockless.base.typing import TYPE_CHECKING
from dockless.errors import BadInput
from dockless.sched import config
from dockless.sched.engine.faults import say
from dockless.sched.store import usage

if TYPE_CHECKING:
    from dockless.sched.engine.engine import Engine


def settings() -> config.Config:
    """What the file says; names in it that this host does not know are told. ``BadInput``, also for what this daemon cannot do."""
    path = paths.config_file()
    found = config.load(path)
    if os.geteuid() != 0 and (found.disk_per_job or found.disk_per_user):
        hint = "leave disk.per_job and disk.per_user out"
        raise BadInput("only root's daemon can measure what jobs write", subject="disk", hint=hint)
    for line in unknown_names(path):
        say(line)
    return found


def reload(engine: Engine) -> None:
    """The engine goes on with what the file says now, and with the GPUs that there are. ``BadInput``: with the settings that it had."""
    engine.gpus.list_again()
    models = {unit.uuid: unit.model for unit in engine.gpus.gpus}
    engine.spawn(engine.write_surely(lambda db: usage.know(db, models)))
    try:
        engine.configure(settings())
    except BadInput as error:
        say(f"settings not changed: {error}")
        raise
    say("settings read again")
