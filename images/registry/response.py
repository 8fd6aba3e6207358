"""An answer whose body is read piece by piece. What goes wrong on the way is ``RegistryUnavailable``: the rest may be asked for again."""

from __future__ import annotations

import time
from types import TracebackType

from dockless.base.typing import TYPE_CHECKING
from dockless.base.url import urlsplit
from dockless.errors import RegistryError, RegistryUnavailable
from dockless.images.registry.connection import Timeouts
from dockless.images.registry.deadline import Rate, TooSlow, within
from dockless.images.registry.errors import TOO_SLOW, printable
from dockless.images.registry.http import BadHttp

if TYPE_CHECKING:
    from dockless.images.registry.encoding import Decoder
    from dockless.images.registry.http import Answer

_FRAME_MAX = 256 << 10
"""Bytes beside the body that one read may bring: sizes of chunks, trailers, what is buffered."""


class Response:
    """``status``, ``headers`` (names in any case), ``url`` (after redirects; without a query, which may hold a signature) and the body.

    A ``Content-Encoding`` is undone while reading; ``encoded`` says that there was one, and then byte ranges of the answer are not byte
    ranges of what is read: such a body cannot be resumed.
    """

    def __init__(self, raw: Answer, url: str, what: str, timeouts: Timeouts) -> None:
        self.status = raw.status
        self.headers = raw.headers
        self.url = url.partition("?")[0]
        self.what = what
        self._raw = raw
        self._timeouts = timeouts
        self._rate = Rate(timeouts.read, "the body of the answer")
        try:
            self._decoder = _decoder(raw.headers.get("Content-Encoding"), what)
        except RegistryError:
            self.close()
            raise
        self.encoded = self._decoder is not None

    @property
    def length(self) -> int | None:
        """Bytes of the body as the answer says, None where it does not or where they are encoded."""
        text = self.headers.get("Content-Length")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 20 and not self.encoded else None

    def read(self, size: int) -> bytes:
        """Up to ``size`` bytes, b"" at the end. ``RegistryUnavailable`` where the body is cut, stalls, comes at less than ``SLOWEST`` bytes
        a second or is not in the encoding it says."""
        since = time.monotonic()
        try:
            with within(self._timeouts.read, "the next part of the body"):
                data = self._read(size) if self._decoder is None else self._decoder.read(self._read, size)
            if data:
                self._rate.moved(len(data), time.monotonic() - since)
        except TooSlow as error:
            raise self._broken(error, TOO_SLOW) from None
        return data

    def _read(self, size: int) -> bytes:
        try:
            # read1: what has come is given at once, so that a stall or a reset does not take it away again.
            with within(self._timeouts.read, "the next part of the body", most=size + _FRAME_MAX):
                return self._raw.read1(size)
        except (BadHttp, OSError) as error:
            raise self._broken(error, "run it again: it goes on where it stopped") from None

    def _broken(self, error: Exception, hint: str) -> RegistryUnavailable:
        self.close()
        host = urlsplit(self.url).netloc
        return RegistryUnavailable(
            f"{self.what}: the transfer from {host} broke: {printable(str(error))}", status=self.status, subject=self.what, hint=hint
        )

    def read_all(self, limit: int) -> bytes:
        """The whole body, which must be small and come soon; ``RegistryError`` above ``limit`` bytes."""
        pieces, left = [], limit + 1
        with within(self._timeouts.answer, "the body of the answer"):
            while left > 0 and (piece := self.read(min(left, 256 << 10))):
                pieces.append(piece)
                left -= len(piece)
        if left <= 0:
            self.close()
            raise RegistryError(
                f"{self.what} is larger than {limit} bytes", subject=self.what, hint="this is more than any registry should serve"
            )
        self.close()
        return b"".join(pieces)

    def close(self) -> None:
        """Done with it. The connection is kept where the body was read to its end, else closed."""
        self._raw.close()

    def abort(self) -> None:
        """From any thread: end the transfer, so that a ``read`` which waits for bytes fails at once."""
        self._raw.abort()

    def __enter__(self) -> Response:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _decoder(encoding: str, what: str) -> Decoder | None:
    if not encoding:
        return None
    from dockless.images.registry.encoding import decoder

    return decoder(encoding, what)
