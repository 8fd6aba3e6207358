"""A question to NVML that this driver or GPU need not know."""

from __future__ import annotations

from dockless.base.typing import Any


def attempt(default: Any, function: Any, *args: Any) -> Any:
    """``function(*args)``, or ``default`` where there is no answer: a symbol is missing, it is not supported, not found, or lost."""
    import pynvml  # type: ignore[import-untyped]

    try:
        return function(*args)
    except (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError):
        return default
