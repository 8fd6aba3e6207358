"""User spaces of real NVIDIA drivers, from Debian's non-free section, each unpacked below a directory of its own in the user's cache
or in $DOCKLESS_DRIVERS.

Their licence forbids handing them on, so they are fetched where a test needs them; nothing is installed. Without a kernel driver their
libcuda still says which CUDA it is for, and their nvidia-smi that it cannot communicate. Another C library than this host's is here, too.
"""

from __future__ import annotations

import functools
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

_CACHE = Path(os.environ.get("DOCKLESS_DRIVERS") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dockless-tests")
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_NAMES = "libcuda1 libnvidia-ml1 nvidia-smi libnvidia-ptxjitcompiler1 libnvidia-encode1 libnvcuvid1 nvidia-opencl-icd"
_GRAPHICS = "libcuda1 libnvidia-ml1 libegl-nvidia0 libglx-nvidia0 libgles-nvidia2 libnvidia-allocator1 libnvidia-eglcore libnvidia-glcore"
_GRAPHICS += " libnvidia-glvkspirv nvidia-egl-common nvidia-vulkan-common"
_FAMILIES = {
    "535": ("bookworm", _NAMES),
    "550": ("trixie", _NAMES),
    "mps": ("bookworm", "libcuda1 libnvidia-ml1 nvidia-cuda-mps"),
    "470": ("bookworm", "libnvidia-tesla-470-cuda1 libnvidia-tesla-470-ml1 nvidia-tesla-470-smi libnvidia-tesla-470-ptxjitcompiler1"),
    "graphics-535": ("bookworm", _GRAPHICS),
    "graphics-550": ("trixie", f"{_GRAPHICS} libnvidia-gpucomp"),
    "glibc-2.41": ("trixie", "libc6 libc-bin"),
}
CUDA = {"535": 12020, "550": 12040, "470": 11040}
"""What cuDriverGetVersion of each answers."""
VERSIONS = {"graphics-535": "535.261.03", "graphics-550": "550.163.01"}


@functools.cache
def missing(family: str) -> str:
    """Why it cannot be had; "" when it can: it lies at ``root(family)`` then."""
    place = root(family)
    if place.is_dir():  # dockless takes no driver from another user
        return "" if place.stat().st_uid in (0, os.geteuid()) else f"{place} is another user's"
    if platform.machine() != "x86_64" or not (shutil.which("apt-get") and shutil.which("dpkg-deb") and os.path.exists(_KEYRING)):
        return "no apt-get, dpkg-deb or keyring of Debian, or another architecture"
    suite, packages = _FAMILIES[family]
    try:
        _CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_CACHE) as fresh:
            _fetch(Path(fresh), suite, packages.split())
            os.chmod(f"{fresh}/root", 0o755)
            os.rename(f"{fresh}/root", place)
    except subprocess.CalledProcessError as error:
        return "" if place.is_dir() else f"the driver's packages cannot be had: {error.stderr.decode(errors='replace')[-200:]}"
    except (OSError, subprocess.SubprocessError) as error:
        return "" if place.is_dir() else f"the driver's packages cannot be had: {error}"
    return ""


def root(family: str) -> Path:
    return _CACHE / f"nvidia-{family}"


def _fetch(where: Path, suite: str, packages: list[str]) -> None:
    for name in ("lists/partial", "cache/archives/partial", "debs"):
        (where / name).mkdir(parents=True)
    (where / "sources.list").write_text(f"deb [signed-by={_KEYRING}] http://deb.debian.org/debian {suite} main non-free\n")
    options = {
        "Dir::Etc::SourceList": where / "sources.list", "Dir::Etc::SourceParts": "/nonexistent", "Dir::State::Lists": where / "lists",
        "Dir::Cache": where / "cache", "APT::Architecture": "amd64", "APT::Architectures": "amd64", "APT::Sandbox::User": "",
        "Acquire::Retries": 1, "Acquire::http::Timeout": 15,
    }  # fmt: skip
    apt = ["apt-get", "-q", *(f"-o{key}={value}" for key, value in options.items())]
    subprocess.run([*apt, "update", "--error-on=any"], check=True, capture_output=True, timeout=90)
    subprocess.run([*apt, "download", *packages], cwd=where / "debs", check=True, capture_output=True, timeout=180)
    for package in sorted((where / "debs").glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", str(package), str(where / "root")], check=True, capture_output=True, timeout=60)
