"""``pathlib.Path``, quick to import.

The standard module imports twelve others, of which ``re``, ``ipaddress`` and ``urllib`` take longer than a sandbox lives (Python 3.13 has
let go of some). What a start does with a path is done here, on its text; for everything else the standard class is asked, which gives paths
of its own. Both are equal, have one hash, and go together in every expression.
"""

from __future__ import annotations

import os
import sys

from dockless.base.typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path as Path
else:

    class Path:
        __slots__ = ("__weakref__", "_text")

        def __init__(self, first: str | os.PathLike[str] = "", *more: str | os.PathLike[str]) -> None:
            self._text = _plain(os.path.join(first, *more) if more else os.fspath(first))

        @property
        def _standard(self) -> Any:
            import pathlib

            return pathlib.Path(self._text)

        def __fspath__(self) -> str:
            return self._text

        __str__ = __fspath__

        def __repr__(self) -> str:
            return f"PosixPath({self._text!r})"

        def __truediv__(self, other: str | os.PathLike[str]) -> Path:
            if type(other) is str and other not in ("", ".") and "/" not in other and self._text[-1] not in "/.":
                below = Path.__new__(Path)
                below._text = f"{self._text}/{other}"
                return below
            return Path(self._text, other)

        def __rtruediv__(self, other: str | os.PathLike[str]) -> Path:
            return Path(other, self._text)

        def __eq__(self, other: object) -> bool:
            return self._text == other._text if isinstance(other, Path) else self._standard == other

        def __hash__(self) -> int:
            if sys.version_info >= (3, 12):
                return hash(self._text)
            root = self._text[: len(self._text) - len(self._text.lstrip("/"))]
            parts = self._text[len(root) :].split("/") if self._text not in (root, ".") else []
            return hash((root, *parts) if root else tuple(parts))

        def __lt__(self, other: Any) -> bool:
            return self._standard < _standard(other)

        def __gt__(self, other: Any) -> bool:
            return self._standard > _standard(other)

        def __reduce__(self) -> tuple[type[Path], tuple[str]]:
            return Path, (self._text,)

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return getattr(self._standard, name)

        @property
        def name(self) -> str:
            return "" if self._text == "." else self._text.rpartition("/")[2]

        @property
        def parent(self) -> Path:
            head, slash, _ = self._text.rpartition("/")
            if head and head != "/":
                above = Path.__new__(Path)
                above._text = head
                return above
            return Path("//" if head == "/" else head or slash or ".")  # a root may be written with two slashes

        def joinpath(self, *others: str | os.PathLike[str]) -> Path:
            return Path(self._text, *others)

        def exists(self) -> bool:
            return os.path.exists(self._text)

        def is_dir(self) -> bool:
            return os.path.isdir(self._text)

        def is_file(self) -> bool:
            return os.path.isfile(self._text)

        def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
            return os.stat(self._text, follow_symlinks=follow_symlinks)

        def absolute(self) -> Path:
            return self if self._text[:1] == "/" else Path(os.getcwd(), self._text)

        def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
            if parents:
                return self._standard.mkdir(mode, parents, exist_ok)
            try:
                os.mkdir(self._text, mode)
            except OSError:
                if not exist_ok or not self.is_dir():
                    raise

        def rmdir(self) -> None:
            os.rmdir(self._text)

        def unlink(self, missing_ok: bool = False) -> None:
            try:
                os.unlink(self._text)
            except FileNotFoundError:
                if not missing_ok:
                    raise

        def read_bytes(self) -> bytes:
            with open(self._text, "rb") as stream:
                return stream.read()

        def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
            with open(self._text, encoding=encoding, errors=errors) as stream:
                return stream.read()


def _plain(text: str) -> str:
    """As the standard class writes it: without what changes nothing."""
    if text == "/" or (
        text and "//" not in text and "/./" not in text and text[:2] != "./" and not text.endswith(("/", "/.")) and text != "."
    ):
        return text
    import pathlib

    return str(pathlib.PurePosixPath(text))


def _standard(path: Any) -> Any:
    return getattr(path, "_standard", path)
