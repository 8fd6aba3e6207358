"""A view of the machine for root's hunt in which a true finding hurts nothing but the hunt's own files.

A mount namespace of its own; device nodes of its own in it; and secrets in an /etc and an /opt that only it sees.
"""

from __future__ import annotations

import os
from pathlib import Path

from support import own_devices

SECRETS = ("/etc/hunt-secret", "/opt/hunt/secret")


def enter(base: Path) -> None:
    """Leave the machine's mounts for a private copy of them. ``base``: where the changes to /etc and /opt are kept."""
    own_devices.enter(base / "dev")
    for place in ("/etc", "/opt"):
        upper, work = (base / "over" / place[1:] / name for name in ("upper", "work"))
        upper.mkdir(parents=True)
        work.mkdir()
        own_devices.mount("overlay", place, "overlay", data=f"lowerdir={place},upperdir={upper},workdir={work}")


def put_secret(place: str, text: str) -> None:
    """A new file, with the rights of a secret, where the old one was: what a package or an administrator does."""
    Path(place).parent.mkdir(exist_ok=True)
    new = f"{place}.new"
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as stream:
        stream.write(text)
    os.replace(new, place)
