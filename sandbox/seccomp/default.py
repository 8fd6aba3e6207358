"""dockless's own filters, as they were compiled when dockless was built: a start reads a kilobyte instead of compiling for milliseconds.

They hold for the capabilities that a profile keeps and for every kernel that dockless runs on. Other capabilities are compiled for.
"""

from __future__ import annotations

import functools
import os

from dockless.sandbox.capabilities import PROFILES

_OLDEST_KERNEL = (5, 14)
_BUILT = os.path.join(os.path.dirname(__file__), "built")


@functools.lru_cache(maxsize=64)
def default_filter(untrusted: bool, capabilities: frozenset[str], arch: str) -> bytes:
    """The filter of dockless's own profile, or of the stricter one, for a process with these capabilities, as ``struct sock_filter[]``."""
    name = "untrusted" if untrusted else "default"
    if capabilities == PROFILES[name]:
        try:
            with open(f"{_BUILT}/{name}.{arch}", "rb") as stream:
                return stream.read()
        except FileNotFoundError:
            pass  # sources that were never built for this machine
    from dockless.sandbox.seccomp import seccomp

    return seccomp.compile_profile(seccomp.default_profile(untrusted), capabilities, arch)


def build(directory: str = _BUILT) -> None:
    """Compile them for every machine. For ``setup.py``."""
    from dockless.sandbox.seccomp import seccomp

    os.makedirs(directory, exist_ok=True)
    for arch in seccomp.ARCHES:
        for untrusted, name in ((False, "default"), (True, "untrusted")):
            program = seccomp.compile_profile(seccomp.default_profile(untrusted), PROFILES[name], arch, _OLDEST_KERNEL)
            with open(f"{directory}/{name}.{arch}", "wb") as stream:
                stream.write(program)
