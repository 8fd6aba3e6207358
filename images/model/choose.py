"""Which image of an index is meant: the platform that suits best, nested indexes followed, attestations and unknown types left out.

Where the index lies (a layout, an archive, a registry) does not matter: a ``DocumentSource`` reads documents and says which ones it has.

https://github.com/opencontainers/image-spec/blob/main/image-index.md
"""

from __future__ import annotations

from collections.abc import Sequence

from dockless.base.later import base64
from dockless.base.typing import Protocol
from dockless.errors import BadDigest, BadImage, NotRunnable
from dockless.images.model import digest, manifest, platforms
from dockless.images.model.manifest import Descriptor, Index
from dockless.images.model.platforms import Platform

NESTING_MAX = 4
_SHOWN = 12


class DocumentSource(Protocol):
    """A place that has documents."""

    @property
    def what(self) -> str: ...

    def has(self, entry: Descriptor) -> bool: ...

    def read(self, entry: Descriptor) -> bytes:
        """The document, verified."""


def known(entry: Descriptor) -> bool:
    """Is it an image or an index, by its media type?"""
    return entry.media_type in manifest.MANIFESTS or entry.media_type in manifest.INDEXES


def choose(holder: DocumentSource, entries: Sequence[Descriptor], at: Platform, *, strict: bool, depth: int = 0) -> Descriptor:
    """The manifest that suits ``at`` best. Where none does: ``NotRunnable`` if ``strict``, else the first that the holder has, so that it
    can at least be looked at. An entry that names no platform goes after all that suit."""
    usable = [entry for entry in entries if not entry.is_attestation and known(entry)]
    if not usable:
        raise BadImage(f"{holder.what}: an index lists no image for any platform", subject=holder.what)

    def order(place: int) -> tuple[int, bool, int]:
        rank = _rank(usable[place], at)
        return (-1 if rank is None else rank, rank is not None or holder.has(usable[place]), -place)

    best = usable[max(range(len(usable)), key=order)]
    if strict and _rank(best, at) is None:
        raise _none_suits(holder, usable, at)
    if best.media_type in manifest.MANIFESTS:
        return best
    if depth >= NESTING_MAX:
        raise BadImage(f"{holder.what}: its indexes are nested more than {NESTING_MAX} deep", subject=holder.what)
    inner = manifest.parse(holder.read(best), f"{holder.what}: index {best.digest}", best.media_type)
    assert isinstance(inner, Index)  # parse() refuses what contradicts its media type
    return choose(holder, inner.entries, at, strict=strict, depth=depth + 1)


def _rank(entry: Descriptor, at: Platform) -> int | None:
    return platforms.rank(entry.platform, at) if entry.platform is not None else 0


def _none_suits(holder: DocumentSource, usable: Sequence[Descriptor], at: Platform) -> NotRunnable:
    found = list(dict.fromkeys(str(entry.platform) for entry in usable))
    shown = ", ".join(found[:_SHOWN]) + (" …" if len(found) > _SHOWN else "")
    return NotRunnable(f"{holder.what} has no image for {at}", subject=holder.what, hint=f"it has {shown}; choose one with --platform")


def inline(entry: Descriptor, what: str) -> bytes | None:
    """The blob that the descriptor itself carries, verified; None where it carries none."""
    if entry.data is None:
        return None
    try:
        data = base64.b64decode(entry.data, validate=True)
    except ValueError as error:  # binascii's, or it is not even ASCII
        raise BadImage(f"{what}: its inline data is not base64", subject=what) from error
    return verified(data, entry, what)


def verified(data: bytes, entry: Descriptor, what: str) -> bytes:
    """``data`` if it is what the descriptor says, else ``BadDigest``."""
    digest.check(data, entry.digest, what)
    if len(data) != entry.size:
        raise BadDigest(f"{what} has {len(data)} bytes, expected {entry.size}", subject=str(entry.digest))
    return data
