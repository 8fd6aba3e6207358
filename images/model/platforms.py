"""Which platform this host is, which of an index's images suits it best, and whether an image can run here at all.

Order of preference: the host's architecture with the highest variant that the processor has, then what the processor runs besides
(386 on amd64, arm on arm64). Names are those of Go, as the image specification asks.

https://github.com/opencontainers/image-spec/blob/main/image-index.md, containerd/platforms
"""

from __future__ import annotations

import functools
import os

from dockless.base.dataclass import dataclass
from dockless.base.text import is_name

_MACHINES = {
    "x86_64": ("amd64", ""),
    "aarch64": ("arm64", "v8"),
    "armv7l": ("arm", "v7"),
    "armv6l": ("arm", "v6"),
    "i686": ("386", ""),
    "i386": ("386", ""),
    "ppc64le": ("ppc64le", ""),
    "s390x": ("s390x", ""),
    "riscv64": ("riscv64", ""),
    "loongarch64": ("loong64", ""),
}
_ALIASES = {"x86_64": "amd64", "x86-64": "amd64", "aarch64": "arm64", "i386": "386", "i686": "386", "armhf": "arm", "armel": "arm"}
_AMD64_LEVELS = (
    ("v2", {"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"}),
    ("v3", {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"}),
    ("v4", {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
)


@dataclass(frozen=True, slots=True)
class Platform:
    """Operating system, architecture and variant, normalised: ``linux``, ``amd64``, ``v2``."""

    os: str
    architecture: str
    variant: str = ""

    def __str__(self) -> str:
        return "/".join(part for part in (self.os or "?", self.architecture or "?", self.variant) if part)


def normal(os_name: object, architecture: object, variant: object = "") -> Platform:
    """A platform from what a document says; anything that is no name counts as not said."""
    system, machine, kind = (
        value.lower() if isinstance(value, str) and is_name(value, "._+-", 40) else "" for value in (os_name, architecture, variant)
    )
    if machine == "armhf" and not kind:
        kind = "v7"
    machine = _ALIASES.get(machine, machine)
    if (machine == "arm64" and kind in ("8", "v8")) or (machine == "amd64" and kind == "v1"):
        kind = ""
    if machine == "arm":
        kind = {"": "v7", "5": "v5", "6": "v6", "7": "v7", "8": "v8"}.get(kind, kind)
    return Platform(system, machine, kind)


def parse(text: str) -> Platform:
    """``linux/amd64``, ``linux/arm/v7`` or only ``arm64`` as a person writes it; ``BadInput`` if it is none of these."""
    parts = text.split("/")
    if not 1 <= len(parts) <= 3 or not all(part.isalnum() and part.isascii() for part in parts):
        from dockless.errors import BadInput

        hint = "write os/architecture[/variant]: linux/arm64, linux/arm/v7"
        raise BadInput(f"{text[:60]!r} is not a platform", subject=text[:60], hint=hint)
    return normal("linux", *parts) if len(parts) == 1 else normal(*parts)


@functools.cache
def host() -> Platform:
    """This host. For amd64 the variant is the micro-architecture level that its flags allow."""
    machine = os.uname().machine
    architecture, variant = _MACHINES.get(machine, (machine, ""))
    if architecture == "amd64":
        variant = amd64_level(_cpu_flags())
    elif architecture == "arm64":
        variant = ""
    return Platform("linux", architecture, variant)


def amd64_level(flags: frozenset[str]) -> str:
    """``""`` (v1) to ``v4`` for the flags of /proc/cpuinfo."""
    level = ""
    for name, needed in _AMD64_LEVELS:
        if not needed <= flags:
            break
        level = name
    return level


def _cpu_flags() -> frozenset[str]:
    try:
        with open("/proc/cpuinfo") as stream:
            for line in stream:
                if line.startswith("flags"):
                    return frozenset(line.partition(":")[2].split())
    except OSError:
        pass
    return frozenset()


def rank(platform: Platform, at: Platform) -> int | None:
    """How well ``platform`` runs on ``at``: higher is better, None not at all."""
    if platform.os != at.os:
        return None
    own, there = _number(platform.variant), _number(at.variant)
    if platform.architecture == at.architecture:
        if at.architecture == "arm64":
            return 100 if own in (0, 8) else 90
        return 100 + own if own <= there else None
    if (platform.architecture, at.architecture) == ("386", "amd64"):
        return 10
    if (platform.architecture, at.architecture) == ("arm", "arm64") and own <= 8:
        return 10 + own
    return None


def _number(variant: str) -> int:
    digits = variant.removeprefix("v")
    return int(digits) if digits.isdecimal() and len(digits) < 3 else (0 if not variant else 99)
