"""Capabilities: their names and numbers, and which of them a sandbox keeps. capabilities(7)

Root inside a sandbox is root of its own user namespace only, and even there it keeps just the set that a profile names::

    default     Podman's eleven: enough for package managers and servers that drop their rights, no devices, no raw sockets
    untrusted   none
    privileged  all 41

``resolve`` applies ``--cap-add`` and ``--cap-drop`` to the profile's set the way Docker and Podman do; ``mask`` turns the outcome
into the 64-bit word that capset(2), prctl(2) and ``/proc/PID/status`` use.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType

from dockless.errors import BadInput

_IN_ORDER = (
    "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE NET_BROADCAST "
    "NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE "
    "SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM "
    "BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE"
)

CAPS = MappingProxyType({f"CAP_{name}": number for number, name in enumerate(_IN_ORDER.split())})
"""Name → number, as in linux/capability.h up to CAP_CHECKPOINT_RESTORE (Linux 5.9)."""

ALL = frozenset(CAPS)

_KEPT = "CHOWN DAC_OVERRIDE FOWNER FSETID KILL NET_BIND_SERVICE SETFCAP SETGID SETPCAP SETUID SYS_CHROOT"

DEFAULT = frozenset(f"CAP_{name}" for name in _KEPT.split())
"""What Podman keeps; Docker adds MKNOD, NET_RAW and AUDIT_WRITE, which nothing on a GPU host needs."""

PROFILES = MappingProxyType({"default": DEFAULT, "untrusted": frozenset[str](), "privileged": ALL})


def parse(name: str) -> str:
    """``net_raw``, ``NET_RAW`` or ``CAP_NET_RAW`` → ``CAP_NET_RAW``. Unknown: ``BadInput``."""
    upper = name.upper()
    full = upper if upper.startswith("CAP_") else f"CAP_{upper}"
    if full not in CAPS:
        raise BadInput(f"unknown capability {name[:40]!r}", subject=name[:40], hint=_nearest(full))
    return full


def resolve(profile: str, add: Iterable[str] = (), drop: Iterable[str] = ()) -> frozenset[str]:
    """The capabilities a sandbox keeps: the profile's set, less ``drop``, with ``add``.

    ``ALL`` in ``drop`` leaves exactly ``add``; ``ALL`` in ``add`` leaves everything but ``drop``. A name in both, ``ALL`` in both, an
    unknown name or an unknown profile is ``BadInput``.
    """
    if profile not in PROFILES:
        raise BadInput(f"unknown profile {profile[:40]!r}", subject=profile[:40], hint=f"use one of {', '.join(PROFILES)}")
    add_all, added = _parse_list(add)
    drop_all, dropped = _parse_list(drop)
    both = sorted(added & dropped) or (["ALL"] if add_all and drop_all else [])
    if both:
        raise BadInput(f"{both[0]} is both added and dropped", subject=both[0], hint="name it in --cap-add or in --cap-drop, not in both")
    base = ALL if add_all else frozenset[str]() if drop_all else PROFILES[profile]
    return (base - dropped) | added


def mask(names: Iterable[str]) -> int:
    """The set as a 64-bit word, bit N for capability N. Takes what ``parse`` takes."""
    word = 0
    for name in names:
        word |= 1 << CAPS[parse(name)]
    return word


def from_mask(word: int) -> frozenset[str]:
    """The other way round; bits of capabilities newer than this table are left out."""
    return frozenset(name for name, number in CAPS.items() if word >> number & 1)


def ordered(names: Iterable[str]) -> list[str]:
    """Names in the order of their numbers, for plans and explanations that must not change from run to run."""
    return sorted(names, key=lambda name: CAPS[name])


def _parse_list(names: Iterable[str]) -> tuple[bool, frozenset[str]]:
    everything = False
    found = set()
    for name in names:
        if name.upper() in ("ALL", "CAP_ALL"):
            everything = True
        else:
            found.add(parse(name))
    return everything, frozenset(found)


def _nearest(full: str) -> str:
    import difflib

    # Without what they all begin with, which would make any two alike.
    near = difflib.get_close_matches(full.removeprefix("CAP_"), [name.removeprefix("CAP_") for name in CAPS], n=1)
    return f"did you mean CAP_{near[0]}?" if near else "capabilities(7) lists them; ALL stands for every one"
