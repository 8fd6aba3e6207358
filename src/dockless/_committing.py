"""``dockless.diff`` and ``dockless.commit``: what a sandbox changed of its image, and an image made of it.

::

    box = detached.start(…); box.wait()            or: with dockless.Sandbox(…) as box
    dockless.diff(box.id)                          [Change("A", "/etc/new"), …]
    dockless.commit(box.id, "mine:1", changes=['CMD ["python"]'])
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Sequence

from dockless._box import Sandbox
from dockless.base.checks import checked
from dockless.base.typing import TYPE_CHECKING, Any
from dockless.images.archive.packing import Compression
from dockless.sandbox.run.box import Box

if TYPE_CHECKING:
    from dockless.images import Image
    from dockless.images.archive.diff import Change
    from dockless.sandbox.commit import Changes


@checked
def diff(sandbox: str | Box | Sandbox[Any], *, pause: bool = True) -> list[Change]:
    """Added (A), changed (C) and deleted (D) paths, sorted.

    ``sandbox``: a detached one or its id, also after its end; or a ``Sandbox`` that runs. ``pause``: it is paused meanwhile, if it runs.
    Raises ``SandboxGone``, ``Unsupported`` where there is no private root on disk, ``ImageError``."""
    with _changes(sandbox) as of_it:
        return of_it.changes(pause=pause)


@checked
def commit(
    sandbox: str | Box | Sandbox[Any],
    reference: str | None = None,
    *,
    changes: Sequence[str] = (),
    author: str = "",
    message: str = "",
    compression: Compression = "gzip",
    level: int | None = None,
    created: float | datetime.datetime | None = None,
    pause: bool = True,
) -> Image:
    """The sandbox's image and what it changed as a new image of the store, tagged ``reference``.

    ``changes``: Dockerfile instructions (CMD, ENTRYPOINT, ENV, LABEL, USER, WORKDIR, VOLUME, EXPOSE, STOPSIGNAL). ``created``: seconds
    since 1970 or a time with a zone, else ``SOURCE_DATE_EPOCH``, else now; with a given time the same changes give the same digest.
    ``pause``: it is paused at the end of the copy, if it runs, ``paused`` seconds of the result. Raises what ``diff``
    raises, and ``BadInput``."""
    from dockless.images.archive.assemble import Edit

    edit = Edit.parse(changes, author=author, comment=message)
    with _changes(sandbox) as of_it:
        return of_it.commit(reference, edit=edit, compression=compression, level=level, created=created, pause=pause)


def _changes(sandbox: str | Box | Sandbox[Any]) -> contextlib.AbstractContextManager[Changes]:
    from dockless.sandbox.commit import find

    return sandbox._changes() if isinstance(sandbox, Sandbox) else find(sandbox)
