"""A small real image from this host's own programs: no download, standard library only. For the demo.

The programs are the host's static busybox where there is one (Debian: busybox-static), else copies of a few programs with their
libraries. The result is an OCI layout directory, https://github.com/opencontainers/image-spec/blob/main/image-layout.md
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

from dockless.base.typing import Any
from dockless.errors import DocklessError

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PROGRAMS = ("sh", "cat", "echo", "env", "grep", "hostname", "id", "ls", "sed", "sleep", "sort", "test", "[", "true", "uname", "wc")
_NEEDED = ("sh", "cat", "ls", "sleep")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_TYPE = "application/vnd.oci.image."


def build(directory: Path, reference: str, *, env: Sequence[str] = (), cmd: Sequence[str] = ("/bin/sh",)) -> tuple[Path, str]:
    """Write the layout to ``directory``; it, and in words what the programs are. ``DocklessError`` on a host without any."""
    files, links, kind = _programs()
    layer = _layer(files, links)
    machine = os.uname().machine
    config = {
        "architecture": _ARCHITECTURES.get(machine, machine),
        "os": "linux",
        "created": "2023-11-14T22:13:20Z",
        "config": {"Env": [f"PATH={PATH}", *env], "Cmd": list(cmd), "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
    }
    blobs = directory / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_TYPE}manifest.v1+json",
        "config": _add(blobs, _json(config), "config.v1+json"),
        "layers": [_add(blobs, layer, "layer.v1.tar")],
    }
    entry = _add(blobs, _json(manifest), "manifest.v1+json") | {"annotations": {"org.opencontainers.image.ref.name": reference}}
    (directory / "oci-layout").write_bytes(_json({"imageLayoutVersion": "1.0.0"}))
    (directory / "index.json").write_bytes(_json({"schemaVersion": 2, "mediaType": f"{_TYPE}index.v1+json", "manifests": [entry]}))
    return directory, kind


def _programs() -> tuple[dict[str, str], dict[str, str], str]:
    """Files (path in the image → path here) and links."""
    busybox = shutil.which("busybox", path=PATH)
    if busybox is not None and _is_static(busybox):
        has = set(subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split())
        return {"bin/busybox": busybox}, {f"bin/{name}": "busybox" for name in PROGRAMS if name in has}, "the host's static busybox"
    files: dict[str, str] = {}
    for name in PROGRAMS:
        path = shutil.which(name, path=PATH)
        if path is not None:
            files[f"bin/{name}"] = path
            files |= {library.lstrip("/"): library for library in _libraries(path)}
    missing = [name for name in _NEEDED if f"bin/{name}" not in files]
    if missing:
        raise DocklessError(f"this host has no {', '.join(missing)} to build an image from", hint="apt-get install busybox-static")
    return files, {}, "copies of the host's sh and coreutils, with their libraries"


def _is_static(path: str) -> bool:
    # A dynamic executable names its loader near the start of the file.
    with open(path, "rb") as stream:
        head = stream.read(4096)
    return b"/ld-linux" not in head and b"/ld-musl" not in head and b"/ld64" not in head


def _libraries(path: str) -> list[str]:
    found = subprocess.run(["ldd", path], capture_output=True, text=True)
    return re.findall(r"(?:=> |^\s*)(/\S+) \(0x", found.stdout, re.MULTILINE) if found.returncode == 0 else []


def _layer(files: dict[str, str], links: dict[str, str]) -> bytes:
    users = b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
    folders = {"bin", "dev", "etc", "proc", "root", "run", "sys", "tmp", "usr", "var"}
    folders |= {str(parent) for name in files for parent in Path(name).parents} - {"."}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(folders):
            _member(archive, name, kind=tarfile.DIRTYPE, mode=0o1777 if name == "tmp" else 0o755)
        _member(archive, "etc/passwd", users)
        _member(archive, "etc/group", b"root:x:0:\nnogroup:x:65534:\n")
        _member(archive, "etc/os-release", b'ID=dockless-demo\nPRETTY_NAME="dockless demo image"\n')
        for name, path in files.items():
            _member(archive, name, Path(path).read_bytes(), mode=0o755)
        for name, target in links.items():
            _member(archive, name, kind=tarfile.SYMTYPE, mode=0o777, link=target)
    return buffer.getvalue()


def _member(
    archive: tarfile.TarFile, name: str, data: bytes = b"", *, kind: bytes = tarfile.REGTYPE, mode: int = 0o644, link: str = ""
) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.size, info.linkname, info.mtime = kind, mode, len(data), link, 1_700_000_000
    archive.addfile(info, io.BytesIO(data))


def _add(blobs: Path, data: bytes, kind: str) -> dict[str, Any]:
    digest = _digest(data)
    (blobs / digest.partition(":")[2]).write_bytes(data)
    return {"mediaType": _TYPE + kind, "digest": digest, "size": len(data)}


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _json(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
