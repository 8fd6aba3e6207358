"""Programs of Debian for images: packages as they are, with the libraries they need, kept in the user's cache."""

from __future__ import annotations

import functools
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from support.make_image import Entry, directory, file, symlink

PACKAGES = {"vim": ("vim-tiny", "libc6", "libacl1", "libselinux1", "libtinfo6", "libpcre2-8-0", "ncurses-base")}
_LEFT_OUT = ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/lintian")
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dockless-tests"


@functools.cache
def missing(program: str) -> str:
    """Why it cannot be had; "" when it can: it is in the cache then."""
    place = _CACHE / program
    if place.is_dir():
        return ""
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        return "no apt-get, no dpkg-deb"
    try:
        _CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_CACHE) as fresh:
            subprocess.run(["apt-get", "download", *PACKAGES[program]], cwd=fresh, check=True, capture_output=True, timeout=120)
            for package in Path(fresh).glob("*.deb"):
                subprocess.run(["dpkg-deb", "-x", str(package), f"{fresh}/tree"], check=True, capture_output=True)
            os.rename(f"{fresh}/tree", place)
    except (OSError, subprocess.SubprocessError) as error:
        return "" if place.is_dir() else f"the packages of {program} cannot be had: {error}"
    return ""


def entries(program: str) -> Iterator[Entry]:
    """Its files, for a layer."""
    tree = _CACHE / program
    for path in sorted(tree.rglob("*")):
        name, mode = str(path.relative_to(tree)), path.lstat().st_mode
        if name.startswith(_LEFT_OUT):
            continue
        if stat.S_ISLNK(mode):
            yield symlink(name, os.readlink(path))
        elif stat.S_ISDIR(mode):
            yield directory(name, stat.S_IMODE(mode))
        elif stat.S_ISREG(mode):
            yield file(name, path.read_bytes(), stat.S_IMODE(mode))
