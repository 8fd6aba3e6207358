"""What one layer may become at most. The disk's reserve (``files.RESERVE``) stops a bomb earlier on most machines."""

from __future__ import annotations

from dockless.base.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class UnpackLimits:
    """``size``: bytes of file content, of one layer or of a decompressed archive. ``entries``: members of one layer."""

    size: int = 64 << 30
    entries: int = 5_000_000
