"""The image of a run or a job, in the store or brought there as its ``PullPolicy`` says, before GPUs are leased (``_gpus``).

Nothing holds a GPU while bytes travel: a job's image is pulled by whoever submits it, before it is queued.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from dockless.base.later import re
from dockless.base.typing import TYPE_CHECKING
from dockless.errors import BadInput, DocklessError, NotRunnable, UnknownImage

if TYPE_CHECKING:
    from dockless.images import Image
    from dockless.images.progress import Progress
    from dockless.images.pull_policy import PullPolicy
    from dockless.sched.wire.protocol import DaemonInfo

Tell = Callable[["Progress"], None]
_ID = r"sha256:[0-9a-f]{8,64}\Z|[0-9a-f]{64}\Z"


def present(image: str, policy: PullPolicy = "missing", progress: Tell | None = None, platform: str | None = None) -> str:
    """The name or digest by which the store has ``image`` now. ``platform``: that it must be for. Errors are those of a pull,
    ``UnknownImage``, and ``NotRunnable`` where this host or the image is for another platform."""
    if platform is not None:
        _check_host(platform)
    if image == "host" or (policy == "never" and platform is None):
        return image
    from dockless.images import Store

    store = Store()
    missing = None
    if policy in ("missing", "never"):
        try:
            found = store.get(image)
            if platform is not None:
                _check_platform(found, platform)
            return image
        except UnknownImage as error:
            if policy == "never":
                raise
            missing = error
    if re.match(_ID, image):  # the id of an image that is not there: no registry could be asked for it
        if missing is None:
            return image
        raise missing
    try:
        return store.pull(image, platform=platform, policy=policy, progress=progress).name
    except DocklessError as error:
        if missing is not None:
            error.add_note(f"the store has no image {image!r}, so it was to be pulled")
        raise


def _check_host(platform: str) -> None:
    """Before anything is pulled that could not run."""
    from dockless.images.model import platforms

    wanted, here = platforms.parse(platform), platforms.host()
    if platforms.rank(wanted, here) is None:
        raise NotRunnable(f"this host is {here} and runs nothing for {wanted}", subject=platform, hint="leave the platform out")


def _check_platform(image: Image, platform: str) -> None:
    from dockless.images.model import platforms

    wanted = platforms.parse(platform)
    if platforms.rank(image.platform, wanted) is None:
        hint = f"dockless pull --platform {wanted} {image.name}, or run it with --pull always"
        raise NotRunnable(f"image {image.name} of the store is for {image.platform}, not for {wanted}", subject=image.name, hint=hint)


def present_for(
    daemon: DaemonInfo, image: str, policy: PullPolicy = "missing", progress: Tell | None = None, platform: str | None = None
) -> str:
    """The same for a job of this daemon, as far as its store is ours to pull into."""
    if daemon.owner_uid == os.geteuid():
        return present(image, policy, progress, platform)
    if platform is not None:
        raise BadInput(
            f"the platform {platform[:60]!r} cannot be chosen: the daemon takes images from the store of {_owner(daemon)}",
            subject="platform",
            hint=f"leave it out, or ask {_owner(daemon)} to run: dockless pull --platform PLATFORM {image}",
        )
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
