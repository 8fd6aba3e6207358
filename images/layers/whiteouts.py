"""How a layer says that something below it is gone.

::

                            in a tar            on disk, as overlayfs has it
    whiteout of x           .wh.x, empty        x, a character device 0:0; or an empty file with the xattr <prefix>whiteout
                                                in a directory whose <prefix>opaque is x
    opaque directory d      d/.wh..wh..opq      d, whose <prefix>opaque is y: nothing of what lies below it shows

``<prefix>`` is ``trusted.overlay.`` in what root mounts, and ``user.overlay.`` in what an ordinary user does. The one form becomes the
other in ``native/layer/layer_whiteouts.c``, where a layer is unpacked, and in ``images/archive/diff.py``, where one is made.

https://github.com/opencontainers/image-spec/blob/main/layer.md#whiteouts, https://docs.kernel.org/filesystems/overlayfs.html
"""

from __future__ import annotations

import os
import stat
from collections.abc import Container

IN_TAR = b".wh."
OPAQUE_IN_TAR = b".wh..wh..opq"
HIDES = b"y"
"""Value of ``<prefix>opaque``: a directory that hides those below."""
HAS_MARKED = b"x"
"""The same: whiteouts in it may be files that are marked."""
_PREFIXES = (b"trusted.overlay.", b"user.overlay.")


def prefix(*, userxattr: bool) -> bytes:
    return _PREFIXES[userxattr]


def is_whiteout(info: os.stat_result) -> bool:
    """Whether it is the device; for a file see ``is_marked``."""
    return stat.S_ISCHR(info.st_mode) and info.st_rdev == 0


def is_marked(info: os.stat_result, xattrs: Container[bytes], prefix: bytes) -> bool:
    """Whether a file with these xattrs is a whiteout, in a directory that has such."""
    return stat.S_ISREG(info.st_mode) and info.st_size == 0 and prefix + b"whiteout" in xattrs


def is_opaque(fd: int) -> bool:
    """Whether the directory ``fd`` hides those below, whoever mounts it."""
    return any(opaque(fd, prefix) == HIDES for prefix in _PREFIXES)


def opaque(fd: int, prefix: bytes) -> bytes:
    """``HIDES``, ``HAS_MARKED``, or anything else where the directory ``fd`` is not marked."""
    try:
        return os.getxattr(fd, prefix + b"opaque")
    except OSError:
        return b""
