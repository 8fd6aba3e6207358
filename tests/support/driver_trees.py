"""Trees of whole drivers by the names that their packages have: small files instead of NVIDIA's own, which may not be handed on.

The names are in ``tests/golden/driver-files``, one list for each driver with where it is from; ``{version}`` stands for the version, a line
with ``->`` is a link.
"""

from __future__ import annotations

import re
from pathlib import Path

from support.elf_files import library

_LISTS = Path(__file__).parent.parent / "golden/driver-files"
_SONAMES = {
    "libEGL_nvidia": 0, "libGLESv1_CM_nvidia": 1, "libGLESv2_nvidia": 2, "libGLX_nvidia": 0, "libnvidia-nvvm": 4, "libnvidia-nvvm70": 4,
}  # fmt: skip
_WITHOUT_NUMBER = re.compile(
    r"libnvidia-(eglcore|glcore|glsi|glvkspirv|gpucomp|pkcs11(-openssl3)?|present|rtcore|tileiras|tls|gtk[23]|wayland-client)\Z"
)
"""Libraries whose SONAME is the name of their file."""


def make(root: Path, version: str, layout: str) -> Path:
    """``layout``: the name of a list: ``debian-535``, ``debian-550``, ``rpm-580``, ``rpm-615``."""
    root.mkdir(mode=0o755)
    for line in (_LISTS / f"{layout}.txt").read_text().replace("{version}", version).splitlines():
        path, _, target = line.partition(" -> ")
        if not line or line.startswith("#"):
            continue
        if target:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).symlink_to(target)  # a whole path is one of this root: openat2(2), RESOLVE_IN_ROOT
        elif (found := re.match(r"(lib[^/]*)\.so\.(.*)\Z", Path(path).name)) and "/firmware/" not in path:
            library(root / path, _soname(found[1], Path(path).name))
        else:
            _write(root / path)
    return root


def _soname(base: str, file: str) -> str:
    if base in ("libglxserver_nvidia", "libnvidia-vulkan-producer"):
        return ""
    return file if _WITHOUT_NUMBER.match(base) else f"{base}.so.{_SONAMES.get(base, 1)}"


def _write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
