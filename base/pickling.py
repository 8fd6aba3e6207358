"""What pickle cannot pass on."""

from __future__ import annotations

from dockless.base.typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import NoReturn


class Unpicklable:
    """It holds processes, locks and descriptors of this program. ``pickle`` and ``copy`` of it are a ``TypeError`` that says what to do."""

    _instead = "pass the id of the sandbox, and use Sandbox.open(id) there"

    def __reduce__(self) -> NoReturn:
        kind = type(self).__name__
        raise TypeError(f"{kind} objects cannot be pickled or copied: {self._instead}")
