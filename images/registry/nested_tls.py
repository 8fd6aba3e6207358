"""TLS within TLS: what is said to a registry, inside what is said to a proxy that is itself reached over https."""

from __future__ import annotations

import functools
import ssl
from collections.abc import Callable

from dockless.base.typing import Any

_PIECE = 64 << 10


class NestedTls:
    """As much of a socket as a ``Connection`` uses. ``beneath``: the TLS socket to the proxy."""

    def __init__(self, beneath: Any, context: ssl.SSLContext, host: str) -> None:
        self.beneath = beneath
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname=host)
        self._do(self._tls.do_handshake)

    def recv_into(self, buffer: Any) -> int:
        try:
            return int(self._do(functools.partial(self._tls.read, len(buffer), buffer)))
        except ssl.SSLZeroReturnError:
            return 0

    def sendall(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            at += self._do(functools.partial(self._tls.write, data[at : at + _PIECE]))

    def fileno(self) -> int:
        return int(self.beneath.fileno())

    def close(self) -> None:
        self.beneath.close()

    def _do(self, step: Callable[[], Any]) -> Any:
        """One step of TLS, with whatever that has to be sent and received for it."""
        while True:
            try:
                result = step()
            except ssl.SSLWantReadError:
                self._flush()
                data = self.beneath.recv(_PIECE)
                self._in.write(data) if data else self._in.write_eof()
                continue
            self._flush()
            return result

    def _flush(self) -> None:
        if data := self._out.read():
            self.beneath.sendall(data)
