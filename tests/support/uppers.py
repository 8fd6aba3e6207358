"""Uppers as the kernel makes them: an overlay over given layers, mounted in a mount namespace of its own, a script inside, and the merged
tree as the kernel showed it at the end."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from support import make_image as make
from support.layers import Scene

from dockless.base.idmaps import IdMap, Range
from dockless.images.archive.diff import Upper
from dockless.images.layers.layers import Layer

SHIFT = 0x6FFF0000
_FIND = r"""find . -mindepth 1 \( -type d -printf '%P|dir\n' -o -type l -printf '%P|link:%l\n' -o -type p -printf '%P|fifo\n' \
    -o -type f -printf '%P|file:' -exec cat {} \; -printf '\n' \)"""


def lower(place: Path, *layers: Sequence[make.Entry]) -> list[Layer]:
    """Layers on disk, bottom first, by our own layer writer."""
    made: list[Layer] = []
    for number, entries in enumerate(layers):
        path = place / f"layer-{number}"
        path.mkdir()
        Scene.write(make.layer_tar(entries), path, [layer.path for layer in made])
        made.append(Layer(path))
    return made


def upper(place: Path, layers: Sequence[Layer], script: str, *, name: str = "upper", shift: int = 0) -> tuple[Upper, str]:
    """Run ``script`` in the root of the overlay; the upper, and what ``find`` saw. As an ordinary user: in a user namespace. ``shift``:
    what the files of the upper are owned by stands so much above what the image means."""
    for folder in (name, f"{name}-work", f"{name}-merged"):
        (place / folder).mkdir()
    as_root = os.geteuid() == 0
    options = f"lowerdir={':'.join(str(layer.path) for layer in reversed(layers))},upperdir={place / name},workdir={place / f'{name}-work'}"
    options += "" if as_root else ",userxattr"
    commands = f"mount -t overlay overlay -o {options} {place / f'{name}-merged'}\ncd {place / f'{name}-merged'}\n{script}\n{_FIND}\n"
    how = ["unshare", "-m"] if as_root else ["unshare", "-Urm"]
    done = subprocess.run([*how, "sh", "-euc", commands], capture_output=True, text=True, errors="surrogateescape")
    assert done.returncode == 0, done.stderr
    (place / f"{name}-work/work").chmod(0o700)  # overlay's own; it has no rights at all, and pytest wants to remove it
    shifted = (Range(0, shift, 65536),)
    return Upper(place / name, IdMap(shifted, shifted) if shift else own_map(), userxattr=not as_root), done.stdout


def own_map() -> IdMap | None:
    """None for root; for an ordinary user the map of her own id alone."""
    if os.geteuid() == 0:
        return None
    return IdMap((Range(0, os.geteuid(), 1),), (Range(0, os.getegid(), 1),), single=True)
