"""The image of a run or a job: in the store, or brought there first, as its ``PullPolicy`` says.

A job's image is pulled by whoever submits it, before it is queued: nothing holds a GPU while bytes travel.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from dockless.errors import BadInput, DocklessError, UnknownImage

if TYPE_CHECKING:
    from dockless.images.progress import Progress
    from dockless.images.transfer.pull_policy import PullPolicy
    from dockless.sched.wire.protocol import DaemonInfo

Tell = Callable[["Progress"], None]
_ID = re.compile(r"sha256:[0-9a-f]{8,64}\Z|[0-9a-f]{64}\Z")


def present(image: str, policy: PullPolicy = "missing", progress: Tell | None = None) -> str:
    """The name or digest by which the store has ``image`` now. Errors are those of a pull, and ``UnknownImage``."""
    if image == "host" or policy == "never":
        return image
    from dockless.images import Store

    store = Store()
    missing = None
    if policy == "missing":
        try:
            store.get(image)
            return image
        except UnknownImage as error:
            missing = error
    if _ID.match(image):  # the id of an image that is not there: no registry could be asked for it
        if missing is None:
            return image
        raise missing
    try:
        return store.pull(image, policy=policy, progress=progress).name
    except DocklessError as error:
        if missing is not None:
            error.add_note(f"the store has no image {image!r}, so it was to be pulled")
        raise


def present_for(daemon: DaemonInfo, image: str, policy: PullPolicy = "missing", progress: Tell | None = None) -> str:
    """The same for a job of this daemon, as far as its store is ours to pull into."""
    if daemon.owner_uid == os.geteuid():
        return present(image, policy, progress)
    if policy in ("always", "newer") and image != "host":
        raise BadInput(
            f"the pull policy {policy!r} cannot be kept: the daemon takes images from the store of {_owner(daemon)}",
            subject=image,
            hint=f"ask {_owner(daemon)} to run: dockless pull {image}",
        )
    return image


@contextmanager
def told_whose_store(daemon: DaemonInfo, image: str) -> Iterator[None]:
    """An unknown image is told with whose store it is missing from: pulling into one's own would not help."""
    try:
        yield
    except UnknownImage as error:
        if daemon.owner_uid == os.geteuid():
            from dockless.images import Store

            with suppress(DocklessError):
                Store().find(image)
                error.hint = f"the daemon at {daemon.socket} has another DOCKLESS_HOME: start it with ours, or pull the image there"
        else:
            owner = _owner(daemon)
            error.hint = f"the daemon takes images from the store of {owner}; ask {owner} to run: dockless pull {image}"
        raise


def _owner(daemon: DaemonInfo) -> str:
    import pwd

    try:
        return pwd.getpwuid(daemon.owner_uid).pw_name
    except KeyError:
        return f"user {daemon.owner_uid}"
