"""Modules of the standard library that are imported when something of them is first used: a start that uses nothing of them is over before
they would have been read."""

from __future__ import annotations

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
