"""What runs inside a user's namespace for ``layers.owned`` and ``subid``: it imports little, because it is started for every layer."""

from __future__ import annotations

import json
import os
import socket
import threading

from dockless.base.descriptors import received
from dockless.base.typing import Any
from dockless.native.layers import Fault, LayerWriter

_PIECE = 256 * 1024
_FDS_AT_MOST = 253  # of one message, unix(7)


def main(request: dict[str, Any]) -> None:
    """What the process does."""
    if request["op"] == "remove":
        from pathlib import Path

        from dockless.images.files import remove_tree

        try:
            remove_tree(Path(request["tree"]))
        except OSError as error:
            os.write(1, str(error.errno).encode())
    else:
        os.write(1, json.dumps(_write(request)).encode())


def _write(request: dict[str, Any]) -> dict[str, Any]:
    control = socket.socket(fileno=request["control"])
    most = {key: request[key] for key in ("size_max", "entries_max", "reserve")}
    writer = LayerWriter(request["target"], as_root=True, **most)
    threading.Thread(target=_take_below, args=(control, writer), daemon=True).start()
    try:
        buffer = bytearray(_PIECE)
        while count := os.readv(0, [buffer]):
            writer.feed(memoryview(buffer)[:count])
        written = writer.finish()
    except Fault as fault:
        return {"fault": fault.kind, "text": fault.text, "errno": fault.errno, "missing": fault.missing}
    return {"size": written.size, "entries": written.entries, "warnings": written.warnings}


def _take_below(control: socket.socket, writer: LayerWriter) -> None:
    try:
        fds = _receive(control)
    except OSError:  # whoever wanted this layer is gone
        writer.abort()
        return
    writer.set_lower(fds)
    for fd in fds:
        os.close(fd)


def _receive(control: socket.socket) -> list[int]:
    count = control.recv(4, socket.MSG_WAITALL)
    fds: list[int] = []
    while len(count) < 4 or len(fds) < int.from_bytes(count, "little"):
        data, more = received(control, 1, _FDS_AT_MOST)
        if not data:
            raise ConnectionResetError
        fds += more
    return fds
