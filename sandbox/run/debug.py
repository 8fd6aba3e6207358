"""Programs of another image that look into a sandbox that runs, so that its own image needs no tools.

::

    tools        a sandbox of the other image, made up to its BARRIER, where it stays; it lends a clone of its root
    the door     of the sandbox that is looked into: its keeper's child enters all namespaces of it
    a look       in a copy of the mount namespace: the tools' root, /proc and /sys of the sandbox, its files in /target

What looks has the user, the capabilities and the filter of the tools, and one capability more: CAP_SYS_PTRACE. It is in the tools'
cgroup, so what it takes is not taken from the sandbox. It ends with the sandbox, as all in its PID namespace.
"""

from __future__ import annotations

import contextlib
import os

from dockless.base.descriptors import received
from dockless.base.idmaps import IdMap
from dockless.base.typing import TYPE_CHECKING
from dockless.errors import Unsupported
from dockless.sandbox.enter import TARGET, Entry, compile_look
from dockless.sandbox.plan.builder import NEW_NS
from dockless.sandbox.run import door
from dockless.sandbox.run.door import Entered, Entrance, Tools
from dockless.sandbox.run.pool import WaitingSandbox
from dockless.sandbox.run.prepared import lending
from dockless.sandbox.run.start import find_image, pins
from dockless.sandbox.spec import Spec, Tmpfs

if TYPE_CHECKING:
    from dockless.sandbox.plan.plan import Plan

_NOBODY = ("true",)
"""The command of a plan that is never given one."""
_PLACE = 4096
"""Bytes of the file system that is there for the sandbox's root to be mounted on."""


class _Lender(WaitingSandbox):
    """Tools that wait for nothing."""

    hidden = False

    def root(self) -> int:
        """A descriptor of its root and all that is mounted in it; the caller closes it. Errors: those of a start."""
        self.await_barrier()
        assert self._owner is not None
        return received(self._owner, 1)[1][0]


def enter(
    box: Entrance, target: Spec, image: str, entry: Entry, stdio: tuple[int, int, int], *, write: bool, size: tuple[int, int] | None = None
) -> Entered:
    """Start a program of ``image`` in the namespaces of a sandbox, whose spec is ``target``. As ``door.enter``. ``Unsupported`` for one
    that shares the host's processes or user namespace; errors of a start, too."""
    idmap = _own_ids(box)
    with contextlib.ExitStack() as opened:
        found = find_image(image)
        tools = _Lender(_spec(target, image))
        with contextlib.ExitStack() as pinned:
            tools.prepare(found, pins(found, pinned), lambda grouped: lending(tools.spec, found, idmap, has_cgroup=grouped))
        opened.push(tools)
        root = tools.root()
        try:
            assert tools.plan is not None and tools.identity is not None
            group = "" if tools.cgroup is None else str(tools.cgroup.path)
            entered = door.enter(box, entry, stdio, size=size, tools=Tools(tools.plan, tools.identity, root, group, write))
        finally:
            os.close(root)
        entered.needs = opened.pop_all()
    return entered


def explain(box: Entrance, target: Spec, image: str, entry: Entry, *, write: bool) -> Plan:
    """What ``enter`` would carry out among the sandbox's processes, without starting anything."""
    has_cgroup = bool(box.group)
    tools = lending(_spec(target, image), find_image(image), _own_ids(box), has_cgroup=has_cgroup)
    return compile_look(box.plan, tools.plan, entry, has_cgroup=has_cgroup, write=write)


def _own_ids(box: Entrance) -> IdMap:
    """The id map of a sandbox in which CAP_SYS_PTRACE is a right over its own processes and no others."""
    handed = next(op.x for op in box.plan.ops if op.name == "HAND_OVER")
    shared = "user namespace" if box.identity.idmap is None else "processes" if not handed & NEW_NS["pid"] else ""
    if shared or box.identity.idmap is None:
        hint = "use the host's own tools, as root: its processes are the host's"
        raise Unsupported(
            f"sandbox {box.id} shares the host's {shared}, so debug would give access to all of the host's processes",
            subject=box.id,
            hint=hint,
        )
    return box.identity.idmap


def _spec(target: Spec, image: str) -> Spec:
    """Root of a sandbox with what names of the network are for the one that is looked into."""
    said = target.network == "private" or target.profile != "untrusted"
    return Spec(
        _NOBODY,
        image,
        entrypoint=(),
        user="0:0",
        hostname=target.hostname,
        network=target.network if said else "none",
        endpoints=target.endpoints,
        dns=target.dns if said else (),
        dns_search=target.dns_search if said else (),
        dns_options=target.dns_options if said else (),
        egress=target.egress,
        hosts=target.hosts if said else (),
        cap_add=("SYS_PTRACE",),
        mounts=(Tmpfs(TARGET, size=_PLACE, mode=0o755),),
    )
