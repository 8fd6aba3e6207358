"""Reading an ordinary user's upper and layers: a process of its own enters a user namespace with the sandbox's id map, where it has the
rights over every file in them and sees owners as the sandbox does, and sends back what it reads.

::

    host                                       reader
     │ native.inside.start                       │
     │──────────────────────────────────────────►│ walk the upper and the layers
     │◄ freeze, thaw: where it runs ────────────►│
     │◄───────────────── the tar, on stdout ─────│
     │◄── how it went, as JSON, on a pipe ───────│
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from dockless import errors
from dockless.base.idmaps import IdMap
from dockless.base.typing import IO, Any
from dockless.errors import ImageError
from dockless.images.archive import capture, diff, export
from dockless.images.archive.capture import Frozen
from dockless.images.archive.diff import Change, Upper, WrittenLayer
from dockless.images.archive.tarwriter import Writable
from dockless.images.layers.layers import Layer
from dockless.native.inside import start
from dockless.native.userns import namespace_fd

_PIECE = 1 << 20
_FREEZE, _THAW = b"f", b"t"


def changes(upper: Upper, base: Sequence[Layer]) -> list[Change]:
    """As ``diff.changes``."""
    result = _ask("changes", upper, base, upper.idmap, None, lambda stdout: None)
    return [Change(kind, path) for kind, path in result["changes"]]


def write_layer(upper: Upper, base: Sequence[Layer], out: Writable, clamp: int | None) -> WrittenLayer:
    """As ``diff.write_layer``."""
    return _write("layer", upper, base, upper.idmap, out, clamp)


def write_running(
    upper: Upper, base: Sequence[Layer], out: Writable, clamp: int | None, spool: int, frozen: Frozen, what: str
) -> WrittenLayer:
    """As ``capture.write_running``: the reader asks us to freeze the sandbox."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        request = {"running": theirs.fileno(), "spool": spool, "what": what}

        def take(stdout: IO[bytes]) -> None:
            theirs.close()
            _serve(stdout.fileno(), ours, out, frozen)

        result = _ask("running", upper, base, upper.idmap, clamp, take, request, (theirs.fileno(), spool))
    return WrittenLayer(result["members"], result["size"], tuple(result["warnings"]))


def _serve(stdout: int, asks: socket.socket, out: Writable, frozen: Frozen) -> None:
    """Until the reader has closed its output."""
    waits = select.poll()
    waits.register(stdout, select.POLLIN)
    waits.register(asks, select.POLLIN)
    with contextlib.ExitStack() as thawing:
        while True:
            for fd, _ in waits.poll():
                if fd == stdout:
                    piece = os.read(stdout, _PIECE)
                    if not piece:
                        return
                    out.write(piece)
                    continue
                order = asks.recv(1)
                if order == _FREEZE:
                    thawing.enter_context(frozen())
                elif order == _THAW:
                    thawing.close()
                else:
                    waits.unregister(asks)
                    continue
                asks.sendall(order)


def write_root(layers: Sequence[Layer], out: Writable, upper: Upper | None, idmap: IdMap, clamp: int | None) -> WrittenLayer:
    """As ``export.write_root``."""
    return _write("root", upper, layers, idmap, out, clamp)


def _write(kind: str, upper: Upper | None, layers: Sequence[Layer], idmap: IdMap | None, out: Writable, clamp: int | None) -> WrittenLayer:
    def take(stdout: IO[bytes]) -> None:
        while piece := stdout.read(_PIECE):
            out.write(piece)

    result = _ask(kind, upper, layers, idmap, clamp, take)
    return WrittenLayer(result["members"], result["size"], tuple(result["warnings"]))


def _ask(
    kind: str,
    upper: Upper | None,
    layers: Sequence[Layer],
    idmap: IdMap | None,
    clamp: int | None,
    take: Callable[[IO[bytes]], None],
    more: Mapping[str, Any] = {},
    fds: Sequence[int] = (),
) -> dict[str, Any]:
    assert idmap is not None
    what = upper.what if upper is not None else "the image"
    reader, writer = os.pipe2(os.O_CLOEXEC)
    with open(reader, "rb") as answer:
        with open(writer, "wb"), _parent_of(upper) as parent:
            request = {
                "answer": writer,
                "kind": kind,
                "upper": (parent, upper.path.name, what) if upper is not None else None,
                "layers": [str(layer.path) for layer in layers],
                "clamp": clamp,
                **more,
            }
            inherited = (writer, *fds, *([parent] if upper is not None else ()))
            process = start(namespace_fd(idmap), __name__, request, fds=inherited, stdout=subprocess.PIPE)
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


@contextlib.contextmanager
def _parent_of(upper: Upper | None) -> Iterator[int]:
    """The directory that an upper lies in: the reader is given no paths that mean something to this process alone, or not for long."""
    if upper is None:
        yield -1
        return
    with diff.reading(upper):
        fd = os.open(upper.path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


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
    upper = None
    if request["upper"] is not None:
        parent, directory, name = request["upper"]
        upper = Upper(Path(f"/proc/self/fd/{parent}/{directory}"), name=name, userxattr=True)
    if request["kind"] == "changes":
        assert upper is not None
        return {"changes": [(change.kind, change.path) for change in diff.changes(upper, layers)]}
    with open(1, "wb", buffering=0, closefd=False) as raw:
        out = _Whole(raw)
        if request["kind"] == "layer":
            assert upper is not None
            written = diff.write_layer(upper, layers, out, clamp=request["clamp"])
        elif request["kind"] == "running":
            assert upper is not None
            with socket.socket(fileno=request["running"]) as keeps:
                frozen = partial(_frozen, keeps)
                written = capture.write_running(upper, layers, out, request["spool"], frozen, what=request["what"], clamp=request["clamp"])
        else:
            written = export.read_root(layers, out, upper=upper, clamp=request["clamp"], userxattr=True)
    return {"members": written.members, "size": written.size, "warnings": written.warnings}


@contextlib.contextmanager
def _frozen(keeps: socket.socket) -> Iterator[None]:
    _tell(keeps, _FREEZE)
    try:
        yield
    finally:
        _tell(keeps, _THAW)


def _tell(keeps: socket.socket, order: bytes) -> None:
    keeps.sendall(order)
    if keeps.recv(1) != order:
        raise BrokenPipeError("whoever asked is gone")


class _Whole:
    """A pipe that is written to until all is written."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._raw.write(view) :]
