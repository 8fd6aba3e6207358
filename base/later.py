"""What is imported when something of it is first used: a start that uses nothing of it is over before it would have been read."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dockless.base.typing import TYPE_CHECKING

if TYPE_CHECKING:
    import base64 as base64
    import re as re
    import zlib as zlib
else:

    class _Later:
        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, name: str) -> object:
            return getattr(__import__(self._name), name)

    base64, re, zlib = _Later("base64"), _Later("re"), _Later("zlib")


def names_of(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """The ``__getattr__`` of a package whose names lie in these of its modules. PEP 562"""

    def fetched(name: str) -> object:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(__import__(f"{package}.{home}", fromlist=[name]), name)  # importlib takes longer to import than some of them

    return fetched
