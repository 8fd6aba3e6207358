"""``Content-Encoding`` undone in bounded pieces (R20). We ask for none, ``Accept-Encoding: identity``; some servers encode all the same."""

from __future__ import annotations

from collections.abc import Callable

from dockless.base.later import zlib
from dockless.base.typing import Any
from dockless.errors import RegistryError, RegistryUnavailable
from dockless.images.registry.errors import printable

_PIECE = 64 << 10


class Decoder:
    """gzip (one member after another) or deflate, never more than the size that is asked for at once, however small the input is."""

    def __init__(self, kind: str, what: str) -> None:
        self._kind = kind
        self._what = what
        self._input = b""
        self._inner: Any = None
        self._begun = False

    def read(self, source: Callable[[int], bytes], size: int) -> bytes:
        try:
            return self._next(source, size)
        except zlib.error as error:
            raise RegistryUnavailable(f"{self._what}: the answer is not {self._kind}, as it says: {error}", subject=self._what) from None

    def _next(self, source: Callable[[int], bytes], size: int) -> bytes:
        while size > 0:
            if not self._input:
                self._input = source(_PIECE)
                if not self._input:
                    # All input may be in while output is still due, where no checksum follows it.
                    if self._inner is not None and (rest := self._inner.decompress(b"", size)):
                        return bytes(rest)
                    if self._inner is not None and not self._inner.eof:
                        raise RegistryUnavailable(f"{self._what}: the {self._kind} of the answer is cut", subject=self._what)
                    return b""
            if self._inner is None:
                if self._begun and self._kind == "deflate":
                    raise zlib.error("data after its end")
                self._inner, self._begun = self._start(), True
            data: bytes = self._inner.decompress(self._input, size)
            self._input = self._inner.unconsumed_tail
            if self._inner.eof:
                self._input, self._inner = self._inner.unused_data, None
            if data:
                return data
        return b""

    def _start(self) -> Any:
        if self._kind == "gzip":
            return zlib.decompressobj(31)
        # "deflate" means zlib's format; some servers send it bare. A zlib head is a multiple of 31 with method 8.
        zlib_head = len(self._input) >= 2 and self._input[0] & 15 == 8 and int.from_bytes(self._input[:2], "big") % 31 == 0
        return zlib.decompressobj(15 if zlib_head else -15)


def decoder(value: str, what: str) -> Decoder | None:
    """What undoes an encoding, None for none, ``RegistryError`` for one that is not known here."""
    names = [name.strip().lower() for name in value.split(",") if name.strip().lower() not in ("", "identity")]
    if not names:
        return None
    kind = {"gzip": "gzip", "x-gzip": "gzip", "deflate": "deflate"}.get(names[0]) if len(names) == 1 else None
    if kind is None:
        raise RegistryError(
            f"{what}: the answer is encoded as {printable(value, 60)}, which nobody asked for",
            subject=what,
            hint="gzip and deflate are understood",
        )
    return Decoder(kind, what)
