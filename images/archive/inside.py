"""Reading an ordinary user's upper and layers: a process of its own enters a user namespace with the sandbox's id map, where it has the
rights over every file in them and sees owners as the sandbox does, and sends back what it reads.

::

    host                                       reader
     │ native.inside.start                       │
     │──────────────────────────────────────────►│ walk the upper and the layers
     │◄───────────────── the tar, on stdout ─────│
     │◄── how it went, as JSON, on a pipe ───────│
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from dockless import errors
from dockless.base.idmaps import IdMap
from dockless.errors import ImageError
from dockless.images.archive import diff, export
from dockless.images.archive.diff import Change, Upper, Written
from dockless.images.archive.tarwriter import Output
from dockless.images.layers.layers import Layer
from dockless.native.inside import start
from dockless.native.userns import namespace_fd

_PIECE = 1 << 20


def changes(upper: Upper, base: Sequence[Layer]) -> list[Change]:
    """As ``diff.changes``."""
    result = _ask("changes", upper, base, upper.idmap, None, lambda stdout: None)
    return [Change(kind, path) for kind, path in result["changes"]]


def write_layer(upper: Upper, base: Sequence[Layer], out: Output, clamp: int | None) -> Written:
    """As ``diff.write_layer``."""
    return _write("layer", upper, base, upper.idmap, out, clamp)


def write_root(layers: Sequence[Layer], out: Output, upper: Upper | None, idmap: IdMap, clamp: int | None) -> Written:
    """As ``export.write_root``."""
    return _write("root", upper, layers, idmap, out, clamp)


def _write(kind: str, upper: Upper | None, layers: Sequence[Layer], idmap: IdMap | None, out: Output, clamp: int | None) -> Written:
    def take(stdout: IO[bytes]) -> None:
        while piece := stdout.read(_PIECE):
            out.write(piece)

    result = _ask(kind, upper, layers, idmap, clamp, take)
    return Written(result["members"], result["size"], tuple(result["warnings"]))


def _ask(
    kind: str, upper: Upper | None, layers: Sequence[Layer], idmap: IdMap | None, clamp: int | None, take: Callable[[IO[bytes]], None]
) -> dict[str, Any]:
    assert idmap is not None
    reader, writer = os.pipe2(os.O_CLOEXEC)
    request = {
        "answer": writer,
        "kind": kind,
        "upper": str(upper.path) if upper is not None else None,
        "layers": [str(layer.path) for layer in layers],
        "clamp": clamp,
    }
    what = str(upper.path) if upper is not None else "the image"
    with open(reader, "rb") as answer:
        try:
            process = start(namespace_fd(idmap), __name__, request, fds=(writer,), stdout=subprocess.PIPE)
        finally:
            os.close(writer)
        with process:
            try:
                assert process.stdout is not None
                take(process.stdout)
                result: dict[str, Any] = json.loads(answer.read() or b"{}")
            except BaseException:
                process.kill()
                raise
    if "error" in result:
        kind_of_error: type[errors.DocklessError] = getattr(errors, result["error"], ImageError)
        raise kind_of_error(result["message"], subject=result["subject"], hint=result["hint"])
    if process.returncode != 0 or not result:
        raise ImageError(f"the reader of {what} ended with {process.returncode}", subject=what)
    return result


# -- the reader ----------------------------------------------------------------------------------------------------------------------


def main(request: dict[str, Any]) -> None:
    """What the process does: read and answer."""
    try:
        result = _read(request)
    except errors.DocklessError as error:
        result = {"error": type(error).__name__, "message": str(error), "subject": error.subject, "hint": error.hint}
    except OSError as error:
        result = {"error": "ImageError", "message": f"cannot read from inside the user namespace: {error}", "subject": "", "hint": ""}
    data = json.dumps(result).encode()
    while data:
        data = data[os.write(request["answer"], data) :]


def _read(request: dict[str, Any]) -> dict[str, Any]:
    layers = [Layer(Path(path)) for path in request["layers"]]
    # Ids are the sandbox's own here, so there is nothing to shift.
    upper = Upper(Path(request["upper"]), userxattr=True) if request["upper"] is not None else None
    if request["kind"] == "changes":
        assert upper is not None
        return {"changes": [(change.kind, change.path) for change in diff.changes(upper, layers)]}
    with open(1, "wb", buffering=0, closefd=False) as raw:
        out = _Whole(raw)
        if request["kind"] == "layer":
            assert upper is not None
            written = diff.write_layer(upper, layers, out, clamp=request["clamp"])
        else:
            written = export.read_root(layers, out, upper=upper, clamp=request["clamp"], userxattr=True)
    return {"members": written.members, "size": written.size, "warnings": written.warnings}


class _Whole:
    """A pipe that is written to until all is written."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._raw.write(view) :]
