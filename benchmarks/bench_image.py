"""The image that ``images.py`` measures with: Debian with a Python environment for numbers, made here from package registries.

::

    base       mmdebstrap --variant=minbase, or debootstrap
    python     apt-get install python3 python3-venv, in a chroot
    packages   a virtual environment with numpy, scipy, pandas and their neighbours, compiled
    app        a few files, package lists and caches of the layers below removed (whiteouts)
    next       in place of "app", for the second image, which shares the three layers below

Each step works on an overlay over the steps before it; its upper becomes a layer. The layout is kept in ``~/.cache/dockless-bench``
(``DOCKLESS_BENCH_CACHE``) under the digest of the recipe and never made twice. Making it needs root, a network and some ten minutes.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import platform
import shutil
import stat
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

SUITE = "bookworm"
PACKAGES = ["python3", "python3-venv"]
WHEELS = [
    "numpy==2.2.6", "scipy==1.15.3", "pandas==2.2.3", "scikit-learn==1.6.1", "matplotlib==3.10.3", "sympy==1.14.0", "statsmodels==0.14.4",
]  # fmt: skip
STEPS = ("base", "python", "packages", "app")
RECIPE = {"version": 1, "suite": SUITE, "packages": PACKAGES, "wheels": WHEELS, "gzip": 6, "machine": platform.machine()}
TAG, NEXT = "bench", "next"


class CannotBuild(Exception):
    """Why there is no image."""


@dataclass(frozen=True, slots=True)
class BenchImage:
    """``place`` holds an OCI layout per tag, ``bench`` and ``next``, which share blobs. ``facts``: sizes and counts."""

    place: Path
    facts: dict[str, Any]

    def layout(self, tag: str = TAG) -> Path:
        return self.place / tag

    def blobs(self, tag: str = TAG) -> list[Path]:
        """The layers' blobs, bottom first."""
        return [self.layout(tag) / "blobs" / layer["digest"].replace(":", "/") for layer in self.layers(tag)]

    def layers(self, tag: str = TAG) -> list[dict[str, Any]]:
        """What is known of each layer, bottom first: step, digest, diff_id, size, unpacked, members."""
        found: list[dict[str, Any]] = self.facts["images"][tag]
        return found


def cache() -> Path:
    return Path(os.environ.get("DOCKLESS_BENCH_CACHE") or Path.home() / ".cache" / "dockless-bench")


def bench_image(say: Callable[[str], None] = lambda line: print(line, file=sys.stderr)) -> BenchImage:
    """The image, made if the cache lacks it. ``CannotBuild``, or the error of a failed program."""
    key = hashlib.sha256(json.dumps(RECIPE, sort_keys=True).encode()).hexdigest()[:12]
    place = cache() / key
    if not (place / "facts.json").exists():
        if os.geteuid():
            raise CannotBuild("making the image needs root (chroot, overlays); made once, anybody may measure with it")
        began = time.monotonic()
        work = cache() / f"{key}.making-{os.getpid()}"
        work.mkdir(parents=True)
        try:
            _make(work, say)
            os.rename(work / "result", place)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        say(f"image: made in {time.monotonic() - began:.0f} s, kept in {place}")
    return BenchImage(place, json.loads((place / "facts.json").read_text()))


def _make(work: Path, say: Callable[[str], None]) -> None:
    builders: dict[str, Callable[[Path, Path], None]] = {"python": _python, "packages": _packages, "app": _app, "next": _next}
    result = work / "result"
    blobs = work / "blobs"
    blobs.mkdir()
    result.mkdir()
    say(f"image: {SUITE} with {'mmdebstrap' if shutil.which('mmdebstrap') else 'debootstrap'}")
    _base(work / "base")
    made = {"base": _layer("base", work / "base", blobs)}
    below = [work / "base"]
    for step in ("python", "packages"):
        say(f"image: {step}")
        with _overlay(work, step, below) as root:
            builders[step](root, work)
        made[step] = _layer(step, work / step, blobs)
        below.insert(0, work / step)
    for step in ("app", "next"):
        with _overlay(work, step, below) as root:
            builders[step](root, work)
        made[step] = _layer(step, work / step, blobs)
    images = {TAG: [made[step] for step in STEPS], NEXT: [made[step] for step in (*STEPS[:-1], "next")]}
    for tag, layers in images.items():
        _layout(result / tag, tag, layers, blobs)
    facts = {"recipe": RECIPE, "images": images}
    facts |= {key: sum(layer[key] for layer in images[TAG]) for key in ("size", "unpacked", "members", "files")}
    (result / "facts.json").write_text(json.dumps(facts, indent=1) + "\n")


# -- steps -------------------------------------------------------------------------------------------------------------------------------


def _base(root: Path) -> None:
    if shutil.which("mmdebstrap"):
        _run(["mmdebstrap", "--variant=minbase", "--mode=root", SUITE, root])
    elif shutil.which("debootstrap"):
        _run(["debootstrap", "--variant=minbase", SUITE, root])
    else:
        raise CannotBuild("neither mmdebstrap nor debootstrap is installed (apt-get install mmdebstrap)")


def _python(root: Path, work: Path) -> None:
    """The package lists stay in this layer, for a later one to remove, as in many a Dockerfile."""
    _chroot(root, "apt-get", "update")
    _chroot(root, "apt-get", "install", "--yes", "--no-install-recommends", *PACKAGES)


def _packages(root: Path, work: Path) -> None:
    """Wheels come by the pip we run with, which is configured for this machine; installed inside."""
    wheels = work / "wheels"
    version = ["--python-version", "3.11", "--only-binary=:all:"]
    _run([sys.executable, "-m", "pip", "--quiet", "download", *version, "--dest", wheels, *WHEELS])
    inside = root / "wheels"
    shutil.copytree(wheels, inside)
    _chroot(root, "python3", "-m", "venv", "/opt/venv")
    _chroot(root, "/opt/venv/bin/pip", "--quiet", "install", "--no-index", "--find-links=/wheels", *WHEELS)
    shutil.rmtree(inside)


_PROGRAM = "import numpy, scipy, pandas\nprint('bench', numpy.eye(2).sum(), len(pandas.DataFrame({'a': [1, 2]})))\n"


def _app(root: Path, work: Path) -> None:
    """Removes files of two layers, replaces a directory by a new one of its name (an opaque mark), adds a program."""
    for path in (root / "var/lib/apt/lists").iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.rmtree(root / "usr/share/doc")
    (root / "usr/share/doc").mkdir()
    (root / "usr/share/doc/README").write_text("removed\n")
    (root / "app").mkdir()
    (root / "app/main.py").write_text(_PROGRAM)


def _next(root: Path, work: Path) -> None:
    """A second application: some 16 MB of new files and nothing else."""
    for number in range(400):
        folder = root / f"srv/app/{number % 20:02}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:04}.dat").write_bytes(hashlib.shake_256(str(number).encode()).digest(20_000) + b"0123456789abcdef" * 1250)


@contextmanager
def _overlay(work: Path, step: str, below: list[Path]) -> Iterator[Path]:
    """``work/step`` as the upper over ``below`` (top first), with what a package manager wants to find mounted."""
    upper, scratch, root = work / step, work / f"{step}.work", work / f"{step}.root"
    for path in (upper, scratch, root):
        path.mkdir()
    upper.chmod(0o755)
    lower = ":".join(map(str, below))
    options = f"lowerdir={lower},upperdir={upper},workdir={scratch},redirect_dir=off,metacopy=off,index=off"
    _run(["mount", "-t", "overlay", "-o", options, "overlay", root])
    kept = (root / "etc/resolv.conf").read_bytes() if (root / "etc/resolv.conf").exists() else None
    try:
        _run(["mount", "-t", "proc", "proc", root / "proc"])
        _run(["mount", "--bind", "/dev", root / "dev"])
        if step == "python":
            (root / "etc/resolv.conf").write_bytes(Path("/etc/resolv.conf").read_bytes())
        yield root
        if step == "python":
            (root / "etc/resolv.conf").write_bytes(kept or b"")
    finally:
        for place in (root / "dev", root / "proc", root):
            subprocess.run(["umount", "--lazy", place], stderr=subprocess.DEVNULL)


def _chroot(root: Path, *words: str) -> None:
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive", "HOME": "/root"}
    env |= {key: value for key, value in os.environ.items() if key.lower().endswith("_proxy")}
    _run(["chroot", root, *words], env=env)


def _run(argv: list[str | Path], env: dict[str, str] | None = None) -> None:
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
    if done.returncode:
        raise CannotBuild(f"{' '.join(map(str, argv[:3]))} … failed:\n" + "\n".join(done.stdout.splitlines()[-8:]))


# -- layers ------------------------------------------------------------------------------------------------------------------------------


class _Counted:
    """What is written is hashed and counted on its way to ``into``."""

    def __init__(self, into: Any) -> None:
        self.into, self.size, self.hash = into, 0, hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.size += len(data)
        self.hash.update(data)
        self.into.write(data)
        return len(data)

    def flush(self) -> None:
        self.into.flush()

    @property
    def digest(self) -> str:
        return "sha256:" + self.hash.hexdigest()


def _layer(step: str, tree: Path, blobs: Path) -> dict[str, Any]:
    """``tree`` as a gzip layer among ``blobs``, overlay's whiteouts as the archive has them."""
    temporary = blobs / "making"
    with open(temporary, "wb") as file:
        packed = _Counted(file)
        with gzip.GzipFile(fileobj=_writer(packed), mode="wb", compresslevel=RECIPE["gzip"], mtime=0, filename="") as inner:  # type: ignore[call-overload]
            plain = _Counted(inner)
            with tarfile.open(fileobj=_writer(plain), mode="w|", format=tarfile.PAX_FORMAT) as tar:
                counts = _members(tar, tree)
    temporary.rename(blobs / packed.digest.partition(":")[2])
    return {"step": step, "digest": packed.digest, "diff_id": plain.digest, "size": packed.size, "unpacked": plain.size, **counts}


def _writer(counted: _Counted) -> BinaryIO:
    return counted  # type: ignore[return-value]


def _members(tar: tarfile.TarFile, tree: Path) -> dict[str, int]:
    counts = {"members": 0, "files": 0}

    def add(member: tarfile.TarInfo, path: Path | None = None) -> None:
        counts["members"] += 1
        counts["files"] += member.isreg()
        if path is not None and member.isreg():
            with open(path, "rb") as content:
                tar.addfile(member, content)
        else:
            tar.addfile(member)

    for folder, folders, names in os.walk(tree):
        folders.sort()
        here = Path(folder)
        relative = here.relative_to(tree)
        if here != tree:
            add(_info(tar, here, relative))
        if _opaque(here):
            add(_whiteout(str(relative / ".wh..wh..opq")))
        for name in sorted([*names, *(f for f in folders if (here / f).is_symlink())]):
            path = here / name
            found = path.lstat()
            if stat.S_ISSOCK(found.st_mode):
                continue
            if stat.S_ISCHR(found.st_mode) and found.st_rdev == 0:
                add(_whiteout(str(relative / f".wh.{name}")))
            else:
                add(_info(tar, path, relative / name), path)
    return counts


def _info(tar: tarfile.TarFile, path: Path, name: Path) -> tarfile.TarInfo:
    info = tar.gettarinfo(path, str(name))
    info.mtime = int(info.mtime)
    return info


def _whiteout(name: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.mode = 0
    return info


def _opaque(path: Path) -> bool:
    try:
        return os.getxattr(path, "trusted.overlay.opaque") == b"y"
    except OSError:
        return False


# -- documents ---------------------------------------------------------------------------------------------------------------------------

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_OCI = "application/vnd.oci.image"


def _layout(layout: Path, tag: str, layers: list[dict[str, Any]], blobs: Path) -> None:
    """The image of ``layers`` as an OCI layout of its own, its layers hard links to ``blobs``."""
    (layout / "blobs/sha256").mkdir(parents=True)
    for layer in layers:
        name = layer["digest"].partition(":")[2]
        os.link(blobs / name, layout / "blobs/sha256" / name)
    config = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Env": [f"PATH=/opt/venv/bin:{_PATH}"], "Cmd": ["python3", "/app/main.py"]},
        "rootfs": {"type": "layers", "diff_ids": [layer["diff_id"] for layer in layers]},
        "history": [{"created_by": layer["step"]} for layer in layers],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_OCI}.manifest.v1+json",
        "config": _document(layout, config, f"{_OCI}.config.v1+json"),
        "layers": [{"mediaType": f"{_OCI}.layer.v1.tar+gzip", "digest": layer["digest"], "size": layer["size"]} for layer in layers],
    }
    described = _document(layout, manifest, f"{_OCI}.manifest.v1+json")
    described["annotations"] = {"org.opencontainers.image.ref.name": tag}
    (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [described]}))
    (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')


def _document(layout: Path, content: dict[str, Any], media_type: str) -> dict[str, Any]:
    data = json.dumps(content, separators=(",", ":")).encode()
    hexadecimal = hashlib.sha256(data).hexdigest()
    (layout / "blobs/sha256" / hexadecimal).write_bytes(data)
    return {"mediaType": media_type, "digest": f"sha256:{hexadecimal}", "size": len(data)}


if __name__ == "__main__":
    print(json.dumps(bench_image().facts, indent=1))
