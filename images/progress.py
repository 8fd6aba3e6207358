"""What a load, pull, push or save tells its caller while it runs."""

from __future__ import annotations

from dockless.base.dataclass import dataclass
from dockless.base.typing import Literal


@dataclass(frozen=True, slots=True)
class Progress:
    """One layer of one image. ``layer`` counts from 1; ``done`` bytes of the source have been read, of ``total`` (None: not known).

    ``state``: ``downloading`` and ``unpacking``, which for one layer come in turns, each with a count of its own; ``uploading`` (a push, of
    blobs), ``saving`` (into a file); ``verifying`` (the store has the layer, these bytes are only checked); ``shared`` (nothing to do);
    ``done``.
    """

    image: str
    layer: int
    layers: int
    digest: str
    done: int
    total: int | None
    state: Literal["downloading", "uploading", "unpacking", "saving", "verifying", "shared", "done"]
