"""An image with the host's Python of /usr: its program, its standard library, what ldd(1) names, and packages from a directory."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from support.make_image import Entry, config, directory, file, make_oci_layout, rootfs_entries, symlink

from dockless.images import Store

PYTHON = Path("/usr/bin/python3")
_LEFT_OUT = {"test", "tests", "idlelib", "lib2to3", "turtledemo", "tkinter", "ensurepip"}


def version() -> str:
    """``python3.11``"""
    return PYTHON.resolve().name


def _tree(source: Path, target: str) -> list[Entry]:
    found: list[Entry] = [directory(target)]
    for path in sorted(source.rglob("*")):
        inside = path.relative_to(source)
        if _LEFT_OUT & {*inside.parts} or path.suffix == ".a":
            continue
        name = f"{target}/{inside}"
        if path.is_symlink():
            if path.is_file():
                found.append(file(name, path.read_bytes(), 0o755))
        elif path.is_dir():
            found.append(directory(name))
        elif path.is_file():
            about = path.stat()  # with its time, by which Python knows that what it has compiled is of this file
            found.append(file(name, path.read_bytes(), about.st_mode & 0o777, mtime=int(about.st_mtime)))
    return found


def _libraries(programs: list[Path]) -> dict[str, Path]:
    said = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True, check=False).stdout
    return {word: Path(word) for line in said.splitlines() for word in line.split() if word.startswith("/") and not word.endswith(":")}


def entries(packages: Path | None = None) -> list[Entry]:
    """Files of a layer. ``packages``: a directory as ``pip install --target`` makes it."""
    library = Path("/usr/lib", version())
    own = _tree(library, f"usr/lib/{version()}")
    binaries = [PYTHON.resolve(), *library.rglob("*.so")]
    if packages is not None:
        binaries += packages.rglob("*.so")
        own += _tree(packages, f"usr/local/lib/{version()}/dist-packages")
    named = {name: path for name, path in _libraries(binaries).items() if str(path).startswith(("/lib", "/usr/lib"))}
    made = [directory(name) for name in ("usr", "usr/bin", "usr/lib", "usr/local", "usr/local/lib")]
    made += [file(f"usr/bin/{version()}", PYTHON.resolve().read_bytes(), 0o755), symlink("usr/bin/python3", version())]
    made += [file(name.removeprefix("/"), path.read_bytes(), 0o755) for name, path in named.items()]
    names = {entry.name for entry in made + own}
    return [*(item for item in rootfs_entries() if item.name not in names), *made, *own]


def load(
    where: Path, name: str = "python:test", packages: Path | None = None, more: Iterable[Entry] = (), env: Mapping[str, str] | None = None
) -> str:
    """Its name in the store. ``more``: files of a second layer. ``env``: its variables, besides PATH."""
    layers = [entries(packages), *([[*more]] if more else [])]
    layout = make_oci_layout(where / "layout-python", layers, config(env=env), name, compression="none")
    Store().load(layout)
    return name
