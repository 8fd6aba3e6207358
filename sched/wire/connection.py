"""The client's side of a connection to the daemon: opened at the first request, and again where the daemon has closed it."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType

from dockless.base.path import Path
from dockless.base.typing import TYPE_CHECKING, Any
from dockless.base.waits import Pause
from dockless.errors import BadInput, DaemonUnavailable, SchedError
from dockless.sched.wire import protocol

if TYPE_CHECKING:
    from typing import Self


class Connection:
    """A client's connection to the socket at ``path``; a context manager. ``timeout``: seconds for connecting, and for an answer."""

    def __init__(self, path: Path, timeout: float) -> None:
        self.path = path
        self.timeout = timeout
        self._socket: socket.socket | None = None
        self._buffer = bytearray()

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._buffer.clear()

    def fileno(self) -> int:
        """What is readable when there is something to receive."""
        assert self._socket is not None
        return self._socket.fileno()

    def _call(self, op: str, **fields: Any) -> dict[str, Any]:
        self._anew()
        self._send(op, fields)
        return self._receive(self.timeout)

    def _stream(self, op: str, **fields: Any) -> Iterator[dict[str, Any] | Pause]:
        self._anew()
        self._send(op, fields)
        finished = False
        try:
            while not finished:
                if b"\n" not in self._buffer:
                    yield Pause(self.fileno(), None)
                message = self._receive(self.timeout)
                finished = bool(message.get("end"))
                yield message
        finally:
            if not finished:  # the reader went away in the middle: what follows on this connection belongs to nobody
                self.close()

    def _anew(self) -> None:
        """On another connection where the daemon has closed this one: it closes silent ones where it needs their places."""
        if self._socket is not None and not self._buffer and _hung_up(self._socket):
            self.close()

    def _open(self) -> None:
        if self._socket is not None:
            return
        protocol.check_address(self.path)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        # In a blocking connect(2) the kernel waits for a place among the calls that the daemon has not taken yet; others fail at once.
        seconds = max(self.timeout, 0.001)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(seconds), int(seconds % 1 * 1e6)))
        try:
            connection.connect(str(self.path))
        except OSError as error:
            connection.close()
            reason = {2: "no socket there", 11: "it takes no call in time", 111: "nobody listens", 13: "it is not yours"}.get(
                error.errno or 0, str(error)
            )
            raise DaemonUnavailable(
                f"no daemon answers at {self.path}: {reason}",
                subject=str(self.path),
                hint="start one with `dockless daemon` (it serves you alone), or ask the administrator for root's",
            ) from None
        self._socket = connection

    def _send(self, op: str, fields: dict[str, Any]) -> None:
        self._send_line(op, request(op, fields))

    def _answered(self, op: str, line: bytes) -> dict[str, Any]:
        self._send_line(op, line)
        return self._receive(self.timeout)

    def _send_line(self, op: str, line: bytes) -> None:
        if len(line) > protocol.MAX_REQUEST:
            raise BadInput(
                f"the request has {len(line)} bytes, at most {protocol.MAX_REQUEST} are taken", subject=op, hint="submit in parts"
            )
        self._open()
        assert self._socket is not None
        try:
            self._socket.settimeout(self.timeout)
            self._socket.sendall(line)
        except (BrokenPipeError, ConnectionResetError):
            pass  # a daemon that refuses a caller says so and hangs up, maybe before it was asked: what it said is there to be read
        except OSError as error:
            self.close()
            raise self._lost(error) from None

    def _receive(self, timeout: float | None) -> dict[str, Any]:
        assert self._socket is not None
        searched = 0
        try:
            self._socket.settimeout(timeout)
            while (end := self._buffer.find(b"\n", searched)) < 0:
                searched = len(self._buffer)
                chunk = self._socket.recv(1 << 18)
                if not chunk:
                    self.close()
                    raise self._lost(None)
                self._buffer += chunk
        except OSError as error:
            self.close()
            raise self._lost(error) from None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        message = protocol.decode(line)
        if not message.get("ok"):
            protocol.raise_error(dict(message.get("error") or {}))
        return message

    def _lost(self, error: OSError | None) -> SchedError:
        why = "it closed the connection" if error is None else "no answer in time" if isinstance(error, TimeoutError) else str(error)
        return DaemonUnavailable(
            f"the daemon at {self.path} went away: {why}",
            subject=str(self.path),
            hint="running jobs go on without it; start it again with `dockless daemon`",
        )


def request(op: str, fields: dict[str, Any]) -> bytes:
    return protocol.encode({"v": protocol.VERSION, "op": op, **{k: v for k, v in fields.items() if v is not None}})


def _hung_up(connection: socket.socket) -> bool:
    """Whether the other end is closed, and nothing is left to be read."""
    connection.settimeout(0)
    with suppress(OSError):
        return not connection.recv(1, socket.MSG_PEEK)
    return False
