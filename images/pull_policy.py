"""When a pull asks the registry."""

from __future__ import annotations

from dockless.base.typing import Literal, get_args

PullPolicy = Literal["always", "missing", "newer", "never"]
"""``always``: what the tag means now; ``missing``: only for an image that the store lacks; ``newer``: as ``always`` where a registry can be
reached, else what the store has; ``never``."""
PULL_POLICIES: tuple[PullPolicy, ...] = get_args(PullPolicy)
