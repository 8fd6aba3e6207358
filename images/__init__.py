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

from dockless.base.later import names_of
from dockless.base.typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dockless.images.catalog.image import Image, host_image
    from dockless.images.layers.limits import UnpackLimits
    from dockless.images.model.config import ImageConfig
    from dockless.images.model.digest import Digest
    from dockless.images.model.reference import Reference
    from dockless.images.progress import Progress
    from dockless.images.store import Store

__all__ = ["Digest", "Image", "ImageConfig", "Progress", "Reference", "Store", "UnpackLimits", "host_image"]

_HOME = {
    "Digest": "model.digest",
    "Image": "catalog.image",
    "ImageConfig": "model.config",
    "Progress": "progress",
    "Reference": "model.reference",
    "Store": "store",
    "UnpackLimits": "layers.limits",
    "host_image": "catalog.image",
}

__getattr__ = names_of(__name__, _HOME)
