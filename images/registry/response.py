"""An answer whose body is read piece by piece. What goes wrong on the way is ``RegistryUnavailable``: the rest may be asked for again."""

from __future__ import annotations

import contextlib
import socket
import time
from types import TracebackType
from typing import TYPE_CHECKING

from dockless.errors import RegistryError, RegistryUnavailable

if TYPE_CHECKING:
    from urllib3._collections import HTTPHeaderDict
    from urllib3.response import BaseHTTPResponse

SMALL_TIMEOUT = 120.0
"""Seconds that a whole small body (a manifest, a token, a list) may take."""
DRAINED_MAX = 64 << 10


class Response:
    """``status``, ``headers`` (names in any case), ``url`` (after redirects; without a query, which may hold a signature) and the body.

    A ``Content-Encoding`` is undone while reading; ``encoded`` says that there was one, and then byte ranges of the answer are not byte
    ranges of what is read: such a body cannot be resumed.
    """

    def __init__(self, raw: BaseHTTPResponse, url: str, what: str) -> None:
        from dockless.images.registry.encoding import decoder

        self.status = raw.status
        self.headers: HTTPHeaderDict = raw.headers
        self.url = url.partition("?")[0]
        self.what = what
        self._raw = raw
        self._socket = getattr(raw, "dockless_socket", None)
        try:
            self._decoder = decoder(raw.headers.get("Content-Encoding", ""), what)
        except RegistryError:
            self.abandon()
            raise
        self.encoded = self._decoder is not None

    @property
    def length(self) -> int | None:
        """Bytes of the body as the answer says, None where it does not or where they are encoded."""
        text = self.headers.get("Content-Length", "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 20 and not self.encoded else None

    def read(self, size: int) -> bytes:
        """Up to ``size`` bytes, b"" at the end. ``RegistryUnavailable`` where the body is cut, stalls or is not in the encoding it says."""
        if self._decoder is not None:
            return self._decoder.read(self._read, size)
        return self._read(size)

    def _read(self, size: int) -> bytes:
        from http.client import HTTPException

        from urllib3.exceptions import HTTPError

        try:
            # read1: what has come is given at once, so that a stall or a reset does not take it away again.
            return self._raw.read1(size, decode_content=False)
        except (HTTPError, HTTPException, OSError, ValueError) as error:
            self.abandon()
            raise RegistryUnavailable(
                f"{self.what}: the transfer broke: {error}",
                status=self.status,
                subject=self.what,
                hint="run it again: it goes on where it stopped",
            ) from None

    def read_all(self, limit: int) -> bytes:
        """The whole body, which must be small and come soon; ``RegistryError`` above ``limit`` bytes."""
        if self._socket is not None:
            self._socket.deadline = time.monotonic() + SMALL_TIMEOUT
        try:
            pieces, room = [], limit + 1
            while room > 0 and (piece := self.read(min(room, 256 << 10))):
                pieces.append(piece)
                room -= len(piece)
        finally:
            if self._socket is not None:
                self._socket.deadline = None
        if room <= 0:
            self.abandon()
            raise RegistryError(
                f"{self.what}: the answer is larger than {limit} bytes", subject=self.what, hint="no such document may be this large"
            )
        self.close()
        return b"".join(pieces)

    def close(self) -> None:
        """Done with it. The connection is kept where the body was read to its end, else closed."""
        if self._raw.closed:
            self._raw.release_conn()
        else:
            self.abandon()

    def abandon(self) -> None:
        """Close the connection, whatever is still on its way."""
        self._raw.close()
        self._raw.release_conn()

    def abort(self) -> None:
        """From any thread: end the transfer, so that a ``read`` which waits for bytes fails at once."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                # Not the TLS object's own method, which would pull its state from under the thread that reads.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def __enter__(self) -> Response:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
