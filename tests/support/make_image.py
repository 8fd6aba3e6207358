"""Small images in pure Python: OCI layouts (directory or tar) and docker-save archives, sound or, on request, hostile.

The root file system is the host's static busybox where there is one (Debian: busybox-static), else copies of a few host programs with the
libraries that ldd(1) names. Only the standard library is used (zstd: whatever module is there).

::

    busybox_image(tmp_path)                                    -> a layout directory, ready to load and run
    make_oci_layout(path, layers=[rootfs_entries()], config=config(user="app"), ref="demo:1")
    make_docker_archive(path, [Built(layers=[...], config={}, tags=["demo:1"])])
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import json
import lzma
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MTIME = 1_700_000_000
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PROGRAMS = """
    sh cat ls id sleep env true false echo test [ pwd mkdir rm cp mv ln touch chmod chown stat head tail wc sort grep sed awk cut tr
    date uname hostname mount umount ps kill dd df du find xargs seq yes tee mknod readlink realpath mktemp sync timeout nproc expr
    printf which whoami groups sha256sum od mkfifo nice ip ping
"""
PROGRAMS = tuple(_PROGRAMS.split())
_MACHINES = {
    "x86_64": "amd64",
    "aarch64": "arm64",
    "armv7l": "arm",
    "i686": "386",
    "ppc64le": "ppc64le",
    "s390x": "s390x",
    "riscv64": "riscv64",
}

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar"


def architecture() -> str:
    """This host's architecture in the images' words."""
    machine = os.uname().machine
    return _MACHINES.get(machine, machine)


# -- layers --------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """One member of a layer, written exactly as it says, however hostile."""

    name: str
    kind: bytes = tarfile.REGTYPE
    data: bytes = b""
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    mtime: float = MTIME
    link: str = ""
    device: tuple[int, int] = (0, 0)
    pax: Mapping[str, str] = field(default_factory=dict)


def file(name: str, data: bytes | str = b"", mode: int = 0o644, **more: Any) -> Entry:
    return Entry(name, data=data.encode() if isinstance(data, str) else data, mode=mode, **more)


def directory(name: str, mode: int = 0o755, **more: Any) -> Entry:
    return Entry(name, tarfile.DIRTYPE, mode=mode, **more)


def symlink(name: str, target: str, **more: Any) -> Entry:
    return Entry(name, tarfile.SYMTYPE, mode=0o777, link=target, **more)


def hardlink(name: str, target: str, **more: Any) -> Entry:
    return Entry(name, tarfile.LNKTYPE, link=target, **more)


def whiteout(name: str) -> Entry:
    """Hides ``name`` of the layers below."""
    parent, _, last = name.rpartition("/")
    return Entry(f"{parent}/.wh.{last}" if parent else f".wh.{last}")


def opaque(name: str) -> Entry:
    """Hides everything that the layers below have in the directory ``name``."""
    return Entry(f"{name}/.wh..wh..opq" if name else ".wh..wh..opq")


def device(name: str, major: int, minor: int, *, block: bool = False, mode: int = 0o666) -> Entry:
    return Entry(name, tarfile.BLKTYPE if block else tarfile.CHRTYPE, mode=mode, device=(major, minor))


def fifo(name: str, mode: int = 0o644) -> Entry:
    return Entry(name, tarfile.FIFOTYPE, mode=mode)


def layer_tar(entries: Iterable[Entry], format: int = tarfile.PAX_FORMAT) -> bytes:
    """The entries as an uncompressed tar archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format, errors="surrogateescape") as archive:
        for entry in entries:
            info = tarfile.TarInfo(entry.name)
            info.type, info.mode, info.uid, info.gid = entry.kind, entry.mode, entry.uid, entry.gid
            info.mtime, info.linkname, info.size = entry.mtime, entry.link, len(entry.data)
            info.devmajor, info.devminor = entry.device
            info.pax_headers = dict(entry.pax)
            archive.addfile(info, io.BytesIO(entry.data))
    return buffer.getvalue()


Layer = bytes | Sequence[Entry]
"""A layer: entries, or a tar archive as it is."""


def _tar(layer: Layer) -> bytes:
    return layer if isinstance(layer, bytes) else layer_tar(layer)


def compress(data: bytes, how: str) -> bytes:
    """``data`` as ``none``, ``gzip``, ``zstd``, ``xz`` or ``bzip2``."""
    if how == "gzip":
        return gzip.compress(data, 1, mtime=0)
    if how == "zstd":
        try:
            from compression import zstd
        except ImportError:
            from backports import zstd
        return zstd.compress(data)
    if how == "xz":
        return lzma.compress(data, preset=0)
    return bz2.compress(data) if how == "bzip2" else data


# -- a root file system from this host -----------------------------------------------------------------------------------------------


def rootfs_entries(programs: Sequence[str] = PROGRAMS) -> list[Entry]:
    """A root file system that runs: programs, /etc/passwd with ``root`` and ``app`` (1000:1000), the usual directories."""
    entries = [directory(name) for name in ("bin", "dev", "etc", "home", "proc", "root", "sys", "usr", "usr/bin", "var", "run")]
    entries += [directory("tmp", 0o1777), directory("home/app", uid=1000, gid=1000)]
    entries += [
        file(
            "etc/passwd", "root:x:0:0:root:/root:/bin/sh\napp:x:1000:1000:app:/home/app:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
        ),
        file("etc/group", "root:x:0:\napp:x:1000:\nstaff:x:50:app\nnogroup:x:65534:\n"),
        file("etc/os-release", 'ID=dockless-test\nPRETTY_NAME="dockless test image"\n'),
    ]
    busybox = static_busybox()
    return entries + (_from_busybox(busybox, programs) if busybox else _from_host(programs))


def static_busybox() -> str | None:
    """The host's busybox, if it needs no libraries."""
    path = shutil.which("busybox")
    if path is None:
        return None
    with open(path, "rb") as stream:
        return None if b"/ld-linux" in (content := stream.read()) or b"/ld-musl" in content else path


def _from_busybox(path: str, programs: Sequence[str]) -> list[Entry]:
    has = set(subprocess.run([path, "--list"], capture_output=True, text=True, check=True).stdout.split())
    found = [file("bin/busybox", Path(path).read_bytes(), 0o755)]
    return found + [symlink(f"bin/{name}", "busybox") for name in programs if name in has]


def _from_host(programs: Sequence[str]) -> list[Entry]:
    files: dict[str, str] = {}
    for name in programs:
        path = shutil.which(name, path=PATH)
        if path is not None:
            files[f"bin/{name}"] = path
            for library in _libraries(path):
                files[library.lstrip("/")] = library
    parents = {str(parent) for name in files for parent in Path(name).parents} - {".", "bin", "usr", "usr/bin"}
    return [directory(name) for name in sorted(parents)] + [file(name, Path(path).read_bytes(), 0o755) for name, path in files.items()]


def _libraries(path: str) -> list[str]:
    """What ldd(1) says a program needs, by absolute path; nothing for scripts and static programs."""
    result = subprocess.run(["ldd", path], capture_output=True, text=True)
    return re.findall(r"(?:=> |^\s*)(/\S+) \(0x", result.stdout, re.MULTILINE) if result.returncode == 0 else []


# -- documents -----------------------------------------------------------------------------------------------------------------------


def config(
    *,
    env: Mapping[str, str] | None = None,
    user: str = "",
    entrypoint: Sequence[str] = (),
    cmd: Sequence[str] = ("/bin/sh",),
    workdir: str = "",
    volumes: Sequence[str] = (),
    stop_signal: str = "",
    labels: Mapping[str, str] | None = None,
    healthcheck: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The part of an image configuration that says how to run it. ``healthcheck``: as Docker writes it."""
    found: dict[str, Any] = {"Env": [f"{name}={value}" for name, value in {"PATH": PATH, **(env or {})}.items()], "Cmd": list(cmd)}
    more = {
        "User": user,
        "Entrypoint": list(entrypoint),
        "WorkingDir": workdir,
        "Volumes": {path: {} for path in volumes},
        "StopSignal": stop_signal,
        "Labels": dict(labels or {}),
        "Healthcheck": dict(healthcheck or {}),
    }
    return found | {key: value for key, value in more.items() if value}


def image_config(diff_ids: Sequence[str], run: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A whole image configuration. ``more`` overrides or adds top-level fields; None removes one."""
    document = {
        "created": "2023-11-14T22:13:20Z",
        "architecture": architecture(),
        "os": "linux",
        "config": dict(run),
        "rootfs": {"type": "layers", "diff_ids": list(diff_ids)},
        **more,
    }
    return {key: value for key, value in document.items() if value is not None}


def digest_of(data: bytes, algorithm: str = "sha256") -> str:
    return f"{algorithm}:{hashlib.new(algorithm, data).hexdigest()}"


def to_json(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


class Blobs(dict[str, bytes]):
    """Blobs by digest, and the descriptors that point at them."""

    def add(self, data: bytes, media_type: str, *, algorithm: str = "sha256", **more: Any) -> dict[str, Any]:
        digest = digest_of(data, algorithm)
        self[digest] = data
        return {"mediaType": media_type, "digest": digest, "size": len(data), **more}

    def image(
        self,
        layers: Sequence[Layer],
        run: Mapping[str, Any],
        *,
        compression: str = "gzip",
        algorithm: str = "sha256",
        platform: Mapping[str, str] | None = None,
        manifest: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        """Add an image; its manifest's descriptor. ``manifest`` overrides fields of the manifest, ``more`` those of the configuration."""
        tars = [_tar(layer) for layer in layers]
        suffix = {"none": "", "gzip": "+gzip"}.get(compression, f"+{compression}")
        if platform is not None:
            more = {**platform, **more}
        raw_config = to_json(image_config([digest_of(tar, algorithm) for tar in tars], run, **more))
        document = {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": self.add(raw_config, OCI_CONFIG, algorithm=algorithm),
            "layers": [self.add(compress(tar, compression), OCI_LAYER + suffix, algorithm=algorithm) for tar in tars],
            **(manifest or {}),
        }
        extra = {"platform": dict(platform)} if platform is not None else {}
        return self.add(to_json(document), str(document["mediaType"] or OCI_MANIFEST), algorithm=algorithm, **extra)

    def index(self, entries: Sequence[Mapping[str, Any]], **more: Any) -> dict[str, Any]:
        return self.add(to_json({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": list(entries)}), OCI_INDEX, **more)

    def write(self, path: Path, entries: Sequence[Mapping[str, Any]], *, outer: str = "none", **more: Any) -> Path:
        """An OCI layout with ``entries`` in its index: a directory, or a tar if the path says so, compressed as ``outer``."""
        index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": list(entries), **more}
        files = {"oci-layout": to_json({"imageLayoutVersion": "1.0.0"}), "index.json": to_json(index)}
        files |= {f"blobs/{digest.replace(':', '/')}": data for digest, data in self.items()}
        return write_files(path, files, outer)


def write_files(path: Path, files: Mapping[str, bytes], outer: str = "none") -> Path:
    """Named files as a directory, or as a tar archive where ``.tar`` is in the name."""
    if ".tar" in path.name:
        path.write_bytes(compress(layer_tar([file(name, data) for name, data in files.items()]), outer))
        return path
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


# -- whole images --------------------------------------------------------------------------------------------------------------------


def make_oci_layout(
    path: Path,
    layers: Sequence[Layer] | None = None,
    config: Mapping[str, Any] | None = None,
    ref: str | None = "test:latest",
    *,
    compression: str = "gzip",
    outer: str = "none",
    algorithm: str = "sha256",
    **more: Any,
) -> Path:
    """An OCI layout with one image. ``path``: a directory to make, or ``*.tar*``. ``more``: fields of the image configuration."""
    blobs = Blobs()
    run = config if config is not None else _default_config()
    entry = blobs.image(layers if layers is not None else [rootfs_entries()], run, compression=compression, algorithm=algorithm, **more)
    if ref is not None:
        entry["annotations"] = {"org.opencontainers.image.ref.name": ref}
    return blobs.write(path, [entry], outer=outer)


_default_config = config


@dataclass(frozen=True)
class Built:
    """An image for a docker-save archive."""

    layers: Sequence[Layer]
    config: Mapping[str, Any] = field(default_factory=dict)
    tags: Sequence[str] = ()


def make_docker_archive(
    path: Path, images: Sequence[Built], *, style: str = "old", layer_compression: str = "none", outer: str = "none"
) -> Path:
    """What ``docker save`` writes. ``style``: ``old`` (``<id>/layer.tar``, ``<id>.json``) or ``new`` (``blobs/sha256/…``, Docker 25)."""
    files: dict[str, bytes] = {}
    entries = []
    for image in images:
        paths, diff_ids = [], []
        for layer in image.layers:
            tar = _tar(layer)
            diff_ids.append(digest_of(tar))
            data = compress(tar, layer_compression)
            hexes = digest_of(data).partition(":")[2]
            paths.append(f"blobs/sha256/{hexes}" if style == "new" else f"{hexes}/layer.tar")
            files[paths[-1]] = data
        raw = to_json(image_config(diff_ids, image.config))
        name = digest_of(raw).partition(":")[2]
        files[config_path := f"blobs/sha256/{name}" if style == "new" else f"{name}.json"] = raw
        entries.append({"Config": config_path, "RepoTags": list(image.tags) or None, "Layers": paths})
    files["manifest.json"] = to_json(entries)
    return write_files(path, files, outer)


def busybox_image(tmp_path: Path, ref: str = "busybox:latest", **knobs: Any) -> Path:
    """An OCI layout directory below ``tmp_path`` whose image runs on this host. ``knobs``: see ``config``."""
    return make_oci_layout(tmp_path / "busybox-image", [rootfs_entries()], config(**knobs), ref, compression="none")
