"""The image store as programs use it: images are loaded, pulled, pushed, named, kept, removed. What it holds is ``catalog``'s."""

from __future__ import annotations

import os
from collections.abc import Callable

from dockless.base import paths
from dockless.base.checks import checked
from dockless.base.path import Path
from dockless.base.paths import StrPath
from dockless.base.typing import TYPE_CHECKING
from dockless.errors import BadDigest, BadImage, BadInput, UnknownImage
from dockless.images.catalog.catalog import Catalog
from dockless.images.catalog.image import Image
from dockless.images.files import explained
from dockless.images.progress import Progress
from dockless.images.pull_policy import PullPolicy

if TYPE_CHECKING:
    from dockless.images.catalog.disk_usage import DiskUsage, ImageUse
    from dockless.images.catalog.pruning import Freed
    from dockless.images.check import Report
    from dockless.images.transfer.push import Pushed


class Store(Catalog):
    """The store at ``root`` (``paths.store()`` by default). Nothing is created before something is to be stored.

    ``index``: whether layers are indexed rather than written (see ``catalog.unpacking``); None: where this kernel and this user can.
    """

    @checked
    def load(self, source: StrPath, *, name: str | None = None, progress: Callable[[Progress], None] | None = None) -> list[Image]:
        """Load every image of ``source``: an OCI layout (directory or tar) or a docker-save archive, in any compression.

        ``name`` replaces the reference of a source with one image. Layers that the store has are not unpacked again. Tags are set when
        everything is there. Raises ``BadInput``, ``BadImage``, ``BadDigest``, ``UnsafeLayer``, ``ImageError``; the store stays sound.
        """
        from dockless.images.archive.load import load

        return load(self, Path(source), self.check_name(name) if name is not None else None, progress)

    @checked
    def pull(
        self, ref: str, *, platform: str | None = None, policy: PullPolicy = "always", progress: Callable[[Progress], None] | None = None
    ) -> Image:
        """The image that ``ref`` means, brought from its registry as far as the store lacks it. See ``pull.pull``."""
        from dockless.images.transfer.pull import pull

        return pull(self, ref, platform=platform, policy=policy, progress=progress)

    @checked
    def push(self, ref: str, destination: str | None = None, *, progress: Callable[[Progress], None] | None = None) -> Pushed:
        """Send the image ``ref`` to a registry. See ``push.push``."""
        from dockless.images.transfer.push import push

        return push(self, ref, destination, progress=progress)

    @checked
    def get(self, ref: str) -> Image:
        """The image of a reference, a digest (``sha256:…``), or the beginning of one (8 digits or more); ``host`` is the host itself. One
        that root has pulled or loaded becomes a user's own without a network. ``UnknownImage``"""
        try:
            return super().get(ref)
        except UnknownImage:
            adopted = self._adopt(ref)
            if adopted is None:
                raise
            return adopted

    def _adopt(self, ref: str) -> Image | None:
        """From root's store; None where that cannot help."""
        shared = Store(paths.shared_store(), limits=self.limits)
        if os.geteuid() == 0 or shared.root == self.root or not os.access(shared.list_path, os.R_OK):
            return None
        from dockless.images.archive.ingest import ingest, stored

        try:
            image = shared.find(ref)
            return ingest(self, [stored(shared, image.digest, (image.reference,) if image.reference else ())])[0]
        except (UnknownImage, BadImage, BadDigest):
            return None

    @checked
    def tag(self, ref: str, name: str) -> str:
        """Give the image ``ref`` another name; its full form. It moves from where it was. ``BadInput``, ``UnknownImage``"""
        full, image = self.check_name(name), self.get(ref)
        if image.is_host:
            raise BadInput("the pseudo-image 'host' cannot be tagged", subject=ref, hint="commit a sandbox to get an image")
        with explained(f"cannot tag {ref}", ref, f"the store {self.root} belongs to one user"):
            self.register({}, {full: image.digest})
        return full

    @checked
    def remove(self, ref: str, *, force: bool = False) -> Freed:
        """Take a tag away, and with its last tag the image. See ``pruning.remove``."""
        from dockless.images.catalog.pruning import remove

        return remove(self, ref, force=force)

    @checked
    def prune(
        self,
        *,
        all_images: bool = False,
        unused_for: float | None = None,
        keep_last: int | None = None,
        blobs: bool = False,
        dry_run: bool = False,
    ) -> Freed:
        """Remove what is not needed. See ``pruning.prune``."""
        from dockless.images.catalog.pruning import prune

        return prune(self, all_images=all_images, unused_for=unused_for, keep_last=keep_last, blobs=blobs, dry_run=dry_run)

    def disk_usage(self) -> DiskUsage:
        """What takes how much of the disk. See ``disk_usage.DiskUsage``."""
        from dockless.images.catalog.disk_usage import disk_usage

        return disk_usage(self)

    def last_uses(self) -> dict[str, tuple[float, bool]]:
        """When each image was last used, and whether it is in use. See ``disk_usage.last_uses``."""
        from dockless.images.catalog.disk_usage import last_uses

        return last_uses(self)

    def use(self, image: Image) -> ImageUse | None:
        """What ``image`` takes, and when it was used; None where it is listed no more. See ``disk_usage.use``."""
        from dockless.images.catalog.disk_usage import use

        return use(self, image.digest)

    def pin(self, image: Image) -> int:
        """Keep ``image`` until the returned descriptor and its copies are closed. ``UnknownImage``. See ``pins.pin``."""
        from dockless.images.catalog.pins import pin

        with explained(
            f"cannot keep {image.name}", image.name, f"check that the image store {self.root} is on a writable file system with room"
        ):
            return pin(self, image)

    def keep(self, image: Image, link: Path) -> None:
        """Keep ``image``, which is pinned, as long as the file ``link`` exists too. ``OSError``. See ``pins.keep``."""
        from dockless.images.catalog.pins import keep

        keep(self, image, link)

    @checked
    def check(self, *, repair: bool = False, tell: Callable[[str], None] | None = None) -> Report:
        """Whether everything is what its name says. See ``check.check``."""
        from dockless.images.check import check

        return check(self, repair=repair, tell=tell)
