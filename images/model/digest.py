"""Digests: ``sha256:<64 hex>`` or ``sha512:<128 hex>``, checked before they ever touch a path (attack A16).

A ``Digest`` can only be made by ``parse`` or ``of``, so ``digest.algorithm`` and ``digest.hex`` are always safe as path components. Upper
case, other algorithms and anything with a slash are refused, as the image specification asks.

https://github.com/opencontainers/image-spec/blob/main/descriptor.md#digests
"""

from __future__ import annotations

import sys

from dockless.base.dataclass import dataclass
from dockless.base.typing import TYPE_CHECKING
from dockless.errors import BadDigest

if TYPE_CHECKING:
    from hashlib import _Hash

_own_left = 64 << 10
"""Bytes that are hashed without ``hashlib``: it loads OpenSSL, which is ten times as fast and takes 4 ms to load."""
_HEX_LENGTH = {"sha256": 64, "sha512": 128}
_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class Digest:
    """An algorithm and a value in lower-case hex; both safe as a path component."""

    algorithm: str
    hex: str

    def __str__(self) -> str:
        return f"{self.algorithm}:{self.hex}"

    def hasher(self) -> _Hash:
        """A fresh hash object of this digest's algorithm."""
        return _new(self.algorithm)


def parse(text: object, what: str = "digest") -> Digest:
    """``text`` as a digest, else ``BadDigest``."""
    if isinstance(text, str):
        algorithm, _, value = text.partition(":")
        if len(value) == _HEX_LENGTH.get(algorithm, -1) and _HEX.issuperset(value):
            return Digest(algorithm, value)
    raise BadDigest(
        f"{what} {str(text)[:100]!r} is not a digest",
        subject=str(text)[:100],
        hint="only sha256:<64 hex> and sha512:<128 hex>, in lower case, are accepted",
    )


def of(data: bytes, algorithm: str = "sha256") -> Digest:
    """The digest of ``data``."""
    own = _own_sha256(data) if algorithm == "sha256" else None
    return Digest(algorithm, own or _new(algorithm, data).hexdigest())


def _new(algorithm: str, data: bytes = b"") -> _Hash:
    import hashlib

    return hashlib.new(algorithm, data)


def _own_sha256(data: bytes) -> str | None:
    """By Python's own function, for the few documents that a start has to check; None once there was more to hash."""
    global _own_left
    _own_left -= len(data)
    if _own_left < 0:
        return None
    try:
        own = __import__("_sha2" if sys.version_info >= (3, 12) else "_sha256")
    except ImportError:  # an interpreter that was built without it
        return None
    return str(own.sha256(data).hexdigest())


def check(data: bytes, expected: Digest, what: str) -> None:
    """``BadDigest`` unless ``data`` is what ``expected`` says."""
    verdict(of(data, expected.algorithm), expected, what)


def verdict(found: Digest, expected: Digest, what: str) -> None:
    """``BadDigest`` unless the two are equal."""
    if found != expected:
        raise BadDigest(
            f"{what}: its bytes have the digest {found}, expected {expected}",
            subject=str(expected),
            hint="the source is damaged or was tampered with; fetch or build it again",
        )


def chain(diff_ids: tuple[Digest, ...]) -> tuple[Digest, ...]:
    """The chain id of each layer: what identifies it *together with all layers below it*.

    https://github.com/opencontainers/image-spec/blob/main/config.md#layer-chainid
    """
    found: list[Digest] = []
    for diff_id in diff_ids:
        found.append(of(f"{found[-1]} {diff_id}".encode()) if found else diff_id)
    return tuple(found)
