"""The states of a sandbox, and of its health."""

from dockless.base.typing import Literal, get_args

State = Literal["created", "starting", "running", "paused", "restarting", "exited", "vanished"]
"""``created``: it was never started; ``starting``: no program has been exec'd yet; ``paused``: its processes are frozen; ``restarting``: it
has ended, and its restart policy restarts it; ``vanished``: it ended without a sound record, or before its program began."""
STATES: tuple[State, ...] = get_args(State)
HealthStatus = Literal["starting", "healthy", "unhealthy"]
HEALTHS: tuple[HealthStatus, ...] = get_args(HealthStatus)
RUNNING = ("starting", "running", "paused")
"""It has a keeper."""
ALIVE = (*RUNNING, "restarting")
"""It has not ended, or is to be restarted."""
