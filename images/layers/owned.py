"""Layers with their owners, for an ordinary user: written inside a user namespace with the ids that her sandboxes have.

Her store holds files of her subordinate ids, one fixed map for all sandboxes and so no owner ever has to be changed at a start. Outside the
namespace she may not even remove them; a process inside may (see ``subid``). Where she has a single id everything is hers and
none of this is needed.

::

    feed() ──► stdin ──► LayerWriter, as root of the namespace
    set_lower() ──► descriptors over a socket ──► set_lower()
    finish() ◄── how it went, as JSON, on stdout
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

from dockless.base.idmaps import IdMap
from dockless.base.locks import in_use
from dockless.base.typing import Any
from dockless.errors import ImageError
from dockless.images import subid
from dockless.images.files import RESERVE
from dockless.images.layers.layer import Unpacked, explained
from dockless.images.layers.layers import Layer, opened
from dockless.images.layers.limits import UnpackLimits
from dockless.images.layers.pipeline import GivenUp
from dockless.native import inside, userns
from dockless.native.layers import Fault

_FDS_AT_ONCE = 200


class OwnedWriter:
    """As ``layer.Writer``, by a process inside. ``scratch``: the temporary directory around ``target``; the process keeps it in use, for it
    lives on for a moment where we are killed."""

    def __init__(self, idmap: IdMap, scratch: Path, target: Path, what: str, limits: UnpackLimits) -> None:
        self._what = what
        self._aborted = False
        self._control, control = socket.socketpair()
        use = in_use(scratch)
        fd = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        request = {
            "op": "write",
            "target": fd,
            "control": control.fileno(),
            "size_max": limits.size,
            "entries_max": limits.entries,
            "reserve": RESERVE,
        }
        try:
            self._process = inside.start(
                userns.namespace_fd(idmap),
                subid.INSIDE,
                request,
                fds=(use, fd, control.fileno()),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        except OSError as error:
            self._control.close()
            raise ImageError(f"{what}: cannot start the layer's writer: {error.strerror}", subject=what) from error
        finally:
            os.close(fd)
            os.close(use)
            control.close()

    def set_lower(self, lower: Sequence[Layer]) -> None:
        """The layers below, bottom first, are there now."""
        # Where nobody listens any more the writer has failed already, and says so itself.
        with opened(reversed(lower)) as fds, contextlib.suppress(OSError):
            self._control.sendall(len(fds).to_bytes(4, "little"))
            for at in range(0, len(fds), _FDS_AT_ONCE):
                socket.send_fds(self._control, [b"f"], fds[at : at + _FDS_AT_ONCE])

    def feed(self, data: bytes) -> None:
        assert self._process.stdin is not None
        view = memoryview(data)
        try:
            while view:
                view = view[self._process.stdin.write(view) or 0 :]
        except BrokenPipeError:
            self._answer()
            raise ImageError(f"{self._what}: the layer's writer went away", subject=self._what) from None

    def finish(self) -> Unpacked:
        """After the last byte. Nothing is flushed to the disk yet."""
        answer = self._answer()
        return Unpacked(answer["size"], answer["entries"], tuple(answer["warnings"]))

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        raw = self._process.stdout.read()
        if self._aborted:
            raise GivenUp(f"{self._what}: given up", subject=self._what)
        if not raw:
            raise ImageError(f"{self._what}: the layer's writer ended with {self._process.wait()}", subject=self._what)
        answer: dict[str, Any] = json.loads(raw)
        if answer.get("errno") == errno.EINVAL:
            raise ImageError(
                f"{self._what}: {answer['text']}: it belongs to an id outside of your subordinate ranges",
                subject=self._what,
                hint="ask the administrator for a larger range in /etc/subuid and /etc/subgid",
            )
        if "fault" in answer:
            with explained(self._what):
                raise Fault(answer["fault"], answer["text"], answer["errno"], answer["missing"])
        return answer

    def abort(self) -> None:
        """A writer that waits fails now."""
        self._aborted = True
        self._process.kill()

    def close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        self._process.kill()
        self._process.wait()
        self._control.close()
