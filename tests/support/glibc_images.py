"""Images whose C library is this host's glibc or another, laid out as Debian or as Red Hat has it, with a program that opens libcuda."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from support.make_image import Entry, config, directory, file, make_oci_layout, rootfs_entries

from dockless.images import Store
from dockless.sandbox.gpus import linker_cache

Kind = Literal["debian", "rpm"]
DIRECTORY = {"debian": f"usr/lib/{platform.machine()}-linux-gnu", "rpm": "usr/lib64"}
_LIBRARIES = "libc.so.6 libm.so.6 libdl.so.2 libpthread.so.0 librt.so.1".split()
_FLAGS = linker_cache.LIBC6 | {"x86_64": linker_cache.X86_64, "aarch64": linker_cache.AARCH64}.get(platform.machine(), 0)
_PROBE = r"""
#include <dlfcn.h>
#include <stdio.h>
int main(int n, char **names) {
    void *library = dlopen(n > 1 ? names[1] : "libcuda.so.1", RTLD_NOW);
    if (!library) return printf("%s\n", dlerror()), 1;
    int version = 0, (*ask)(int *) = (int (*)(int *))dlsym(library, "cuDriverGetVersion");
    if (ask) ask(&version);
    return printf("%d\n", version), 0;
}
"""


def entries(where: Path, kind: Kind, glibc: Path | None = None) -> list[Entry]:
    """The files, for a layer: programs, the C library, ldconfig, a cache for the linker, ``probe`` where there is a compiler. ``glibc``:
    where Debian's packages of another C library are unpacked."""
    found = {item.name: item for item in rootfs_entries()}
    place = DIRECTORY[kind]
    made = [directory(name) for name in ("lib64", "sbin", "usr/lib", place)]
    loader = {"x86_64": "lib64/ld-linux-x86-64.so.2", "aarch64": "lib/ld-linux-aarch64.so.1"}[platform.machine()]
    sources = {name: Path(_host(name)) for name in _LIBRARIES} | {"loader": Path("/", loader)}
    sources["ldconfig"] = Path(shutil.which("ldconfig", path="/sbin:/usr/sbin") or "")
    if glibc is not None:
        theirs = {name: glibc / DIRECTORY["debian"] / name for name in (*_LIBRARIES, Path(loader).name)}
        sources = {**theirs, "loader": theirs[Path(loader).name], "ldconfig": glibc / "usr/sbin/ldconfig"}
    made += [file(f"{place}/{name}", sources[name].read_bytes(), 0o755) for name in _LIBRARIES]
    made.append(file(loader, sources["loader"].read_bytes(), 0o755))
    if shutil.which("gcc"):
        made.append(file("bin/probe", _compiled(where), 0o755))
    made.append(file("sbin/ldconfig", sources["ldconfig"].read_bytes(), 0o755))
    listed = [linker_cache.Entry(name.encode(), f"/{place}/{name}".encode(), _FLAGS) for name in _LIBRARIES]
    made += [file("etc/ld.so.cache", linker_cache.encode(linker_cache.Cache(tuple(listed)))), file("etc/ld.so.conf", f"/{place}\n")]
    if kind == "debian":
        made.append(file("etc/debian_version", "12.0\n"))
    return [*(item for name, item in found.items() if name not in {entry.name for entry in made}), *made]


def load(where: Path, kind: Kind, more: Iterable[Entry] = (), *, name: str = "", glibc: Path | None = None, **configuration: Any) -> str:
    """Its name in the store of this test. ``more``: in a second layer."""
    name = name or f"{kind}:latest"
    layers: list[list[Entry]] = [entries(where, kind, glibc)]
    layers += [list(more)] if more else []
    Store().load(make_oci_layout(where / name.replace(":", "-"), layers, config(**configuration), name, compression="none"))
    return name


def _compiled(where: Path) -> bytes:
    source, program = where / "probe.c", where / "probe"
    source.write_text(_PROBE)
    subprocess.run(["gcc", "-O1", "-o", str(program), str(source), "-ldl"], check=True, capture_output=True)
    return program.read_bytes()


def _host(name: str) -> str:
    if not shutil.which("gcc"):
        return next(str(path) for place in DIRECTORY.values() if (path := Path("/", place, name)).exists())
    return subprocess.run(["gcc", f"-print-file-name={name}"], check=True, capture_output=True, text=True).stdout.strip()
