"""What the kernel's overlayfs shows of our layers is what the layers say."""

import os
import random
import subprocess

from support import make_image as make
from support.layers import load, tree
from support.requires import requires

from dockless.errors import BadImage
from dockless.images import Store

SHOW = r"""
cd "$1" && shift && mkdir -p merged empty && mount -t overlay overlay -o "ro,lowerdir=$1:empty" merged && cd merged &&
find . -mindepth 1 \( -type d -printf '%P\0dir\0' -o -type l -printf '%P\0link:%l\0' -o \
    -type f -printf '%P\0file:' -exec cat {} \; -printf '\0' -o -printf '%P\0other\0' \)
"""


def kernel_view(image, place) -> dict[str, str]:
    """The layers mounted by the kernel, in a mount namespace of their own."""
    place.mkdir(exist_ok=True)
    lower = ":".join(os.path.relpath(layer.path, place) for layer in reversed(image.layers))
    raw = subprocess.run(["unshare", "-m", "sh", "-c", SHOW, "sh", place, lower], capture_output=True, check=True).stdout
    words = raw.decode().split("\0")[:-1]
    return dict(zip(words[::2], words[1::2], strict=True))


def some_layer(dice: random.Random) -> list[make.Entry]:
    def path(low: int = 1) -> str:
        return "/".join(dice.choice("abc") for _ in range(dice.randint(low, 3)))

    makers = [
        lambda: make.directory(path()),
        lambda: make.file(path(), dice.choice("12")),
        lambda: make.file(path(), dice.choice("12")),
        lambda: make.symlink(path(2), dice.choice(["../a", "/b/c", "nowhere", "."])),
        lambda: make.whiteout(path()),
        lambda: make.opaque(path(0)),
    ]
    return [dice.choice(makers)() for _ in range(dice.randint(0, 7))]


@requires("root", "overlay", "program:unshare")
def test_random_layers_as_the_kernel_shows_them(tmp_path):
    dice, shown = random.Random(7), 0
    while shown < 40:
        try:
            image = load(tmp_path, [some_layer(dice) for _ in range(dice.randint(1, 4))])
        except BadImage as error:
            assert "is a file, but entries lie below it" in str(error) or "symbolic links" in str(error)
            continue
        shown += 1
        assert kernel_view(image, tmp_path / "mnt") == tree(image.layers)


@requires("root", "overlay", "program:unshare")
def test_owners_capabilities_and_devices_are_kept(tmp_path):
    capability = b"\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00".decode("latin-1")
    image = load(
        tmp_path,
        [
            [
                make.file("ping", "x", 0o755, uid=3, gid=4, pax={"SCHILY.xattr.security.capability": capability}),
                make.device("null", 1, 3, mode=0o640),
                make.device("disk", 8, 0, block=True),
            ]
        ],
    )
    root = image.layers[0].path
    assert os.getxattr(root / "ping", "security.capability") == capability.encode("latin-1")
    assert ((root / "ping").stat().st_uid, (root / "ping").stat().st_gid) == (3, 4)
    assert (root / "null").stat().st_rdev == os.makedev(1, 3)
    assert (root / "null").stat().st_mode & 0o7777 == 0o640
    assert (root / "disk").stat().st_rdev == os.makedev(8, 0)


@requires("root", "overlay", "program:unshare", "busybox")
def test_a_program_runs_from_an_overlay_of_our_layers(tmp_path):
    path = make.make_oci_layout(tmp_path / "image", [make.rootfs_entries(), [make.file("etc/motd", "two layers")]], make.config())
    (image,) = Store(index=False).load(path)
    lower = ":".join(str(layer.path) for layer in reversed(image.layers))
    script = 'mount -t overlay overlay -o "ro,lowerdir=$1" "$2" && exec chroot "$2" /bin/cat /etc/motd'
    (tmp_path / "m").mkdir()
    result = subprocess.run(["unshare", "-m", "sh", "-c", script, "sh", lower, tmp_path / "m"], capture_output=True, text=True, check=True)
    assert result.stdout == "two layers"
