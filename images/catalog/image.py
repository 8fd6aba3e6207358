"""An image that can be run: its configuration and its layers. And the host's own root as an image."""

from __future__ import annotations

from dockless.base.dataclass import dataclass
from dockless.errors import BadImage, NotRunnable
from dockless.images.files import explained
from dockless.images.layers.layers import Layer
from dockless.images.model import platforms
from dockless.images.model.config import ImageConfig

HOST = "host"
_HOST_FILES = frozenset({"/etc/passwd", "/etc/group"})


@dataclass(frozen=True, slots=True)
class Image:
    """``layers``: bottom first, each as overlayfs takes it. ``digest``: of the manifest; ``config_digest``: what Docker calls the image
    id. ``size``: bytes of all layers, unpacked. ``warnings``: what could not be kept (devices and capabilities, for an ordinary user).
    ``merged``: one index of all layers, where they are indexed and many. ``paused``: seconds that a running sandbox was paused when this
    was made of it; of what ``commit`` and ``snapshot`` return."""

    reference: str | None
    digest: str
    config: ImageConfig
    layers: tuple[Layer, ...]
    architecture: str = ""
    os: str = ""
    size: int = 0
    variant: str = ""
    config_digest: str = ""
    created: str = ""
    warnings: tuple[str, ...] = ()
    merged: Layer | None = None
    paused: float = 0.0

    @property
    def name(self) -> str:
        """The reference, or the digest where it has none."""
        return self.reference or self.digest

    @property
    def is_host(self) -> bool:
        return self.reference == HOST and not self.layers

    @property
    def platform(self) -> platforms.Platform:
        return platforms.Platform(self.os, self.architecture, self.variant)

    def check_runnable(self) -> None:
        """``NotRunnable`` unless this host can run the image: its operating system, its architecture, at least one layer."""
        if self.is_host:
            return
        here = platforms.host()
        if not self.os or not self.architecture:
            raise NotRunnable(
                f"image {self.name} does not say which operating system and architecture it is for",
                subject=self.name,
                hint=f"build it with a platform, for this host {here}",
            )
        if platforms.rank(self.platform, here) is None:
            raise NotRunnable(
                f"image {self.name} is for {self.platform}, this host is {here}",
                subject=self.name,
                hint=f"load or build the image for {here.os}/{here.architecture}",
            )
        if not self.layers:
            raise NotRunnable(
                f"image {self.name} has no layers, so there is nothing to run", subject=self.name, hint="build it with a file system"
            )

    @property
    def top_first(self) -> tuple[Layer, ...]:
        """The layers as ``layers.merged`` takes them, where names are looked up: one index of all where there is one, which is mounted once
        for every start."""
        one = self.merged
        return (one,) if one is not None and one.path.is_file() else tuple(reversed(self.layers))

    def read_file(self, path: str, limit: int = 1 << 20) -> bytes | None:
        """The file ``path`` as the merged image shows it, None if there is none. ``BadImage`` if it is no regular file or has more than
        ``limit`` bytes (attack A35)."""
        if not self.is_host:
            from dockless.images.layers import merged

            with explained(f"cannot read {path} in image {self.name}", self.name, "dockless images check"):
                return merged.read_file(self.top_first, path, limit)
        if path not in _HOST_FILES:
            return None
        try:
            with open(path, "rb") as stream:
                data = stream.read(limit + 1)
        except FileNotFoundError:
            return None
        if len(data) > limit:
            raise BadImage(f"{path} is larger than {limit} bytes", subject=path)
        return data


def host_image() -> Image:
    """The pseudo-image ``host``: no layers, the host's root is the lowest. Its environment is a sound PATH, never the caller's."""
    from dockless.images.model.config import DEFAULT_PATH

    here = platforms.host()
    config = ImageConfig(env=(("PATH", DEFAULT_PATH),), cmd=("/bin/sh",))
    return Image(HOST, "", config, (), here.architecture, "linux", variant=here.variant)
