"""``signal`` without its enumerations, quick to import: signals are the kernel's numbers. Everything else is the standard module's."""

from __future__ import annotations

from dockless.base.typing import TYPE_CHECKING

if TYPE_CHECKING:
    from signal import *  # noqa: F403
else:
    from _signal import *  # noqa: F403 - what the standard module wraps

    def __getattr__(name: str) -> object:
        import signal

        return getattr(signal, name)
