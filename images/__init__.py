"""Images: loaded, verified, unpacked once, shared. Useful without any sandbox.

::

    from dockless.images import Store
    image, = Store().load("busybox.tar")
    image = Store().pull("python:3.12")
    image.config.env, image.layers, image.read_file("/etc/passwd")

What can be loaded: an OCI layout (directory or tar) or a docker-save archive, compressed or not, with one image or several. Names are
imported when they are first used, so that importing this package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dockless.images.config import ImageConfig
    from dockless.images.digest import Digest
    from dockless.images.image import Image, host_image
    from dockless.images.limits import UnpackLimits
    from dockless.images.progress import Progress
    from dockless.images.reference import Reference
    from dockless.images.store import Store

__all__ = ["Digest", "Image", "ImageConfig", "Progress", "Reference", "Store", "UnpackLimits", "host_image"]

_HOME = {
    "Digest": "digest",
    "Image": "image",
    "ImageConfig": "config",
    "Progress": "progress",
    "Reference": "reference",
    "Store": "store",
    "UnpackLimits": "limits",
    "host_image": "image",
}


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"dockless.images.{home}"), name)
