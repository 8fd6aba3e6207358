"""The network namespace that a sandbox enters, where it has neither one with nothing in it nor the host's: one that is connected to its
networks, or another sandbox's."""

from __future__ import annotations

import contextlib
import os

from dockless.base.dataclass import dataclass
from dockless.base.path import Path
from dockless.base.typing import TYPE_CHECKING
from dockless.errors import SandboxGone, Unsupported
from dockless.sandbox.network.asked import CONTAINER, check_routed, what_may_leave
from dockless.sandbox.network.model import DEFAULT, Lease

if TYPE_CHECKING:
    from dockless.sandbox.network.attach import Wanted
    from dockless.sandbox.run.box import Box
    from dockless.sandbox.run.prepared import Prepared
    from dockless.sandbox.spec import Spec


@dataclass(frozen=True, slots=True)
class JoinedNetwork:
    """``network``: a descriptor of the network namespace; ``user``: of the user namespace that it belongs to and that the sandbox enters
    with it, -1 where it enters none. ``held``: what its keeper holds; ``leases``: what it has on its networks; ``warnings``: what stops
    it there."""

    network: int
    user: int
    held: tuple[int, ...] = ()
    leases: tuple[Lease, ...] = ()
    warnings: tuple[str, ...] = ()


def join(ready: Prepared, directory: Path, owner: int | None, opened: contextlib.ExitStack) -> JoinedNetwork | None:
    """What its spec says; None for nothing, or the host's. Descriptors are closed with ``opened``. Errors: those of ``network.attach`` and
    ``SandboxGone``."""
    spec = ready.resolved.spec
    if not ready.resolved.shared_network:
        return None
    if spec.network.startswith(CONTAINER):
        return _of_another(spec.network.removeprefix(CONTAINER), directory, opened)
    user = ready.user_namespace(opened)
    if os.geteuid() != 0 and any(endpoint.network != DEFAULT for endpoint in spec.endpoints):
        from dockless.sandbox.run import own_networks

        return own_networks.connect(wanted(spec, directory, owner), ready.resolved, user, opened)
    if os.geteuid() != 0:
        from dockless.sandbox.run.pasta import connect

        by_pasta = connect(wanted(spec, directory, owner), ready.resolved, user, opened)
        return JoinedNetwork(by_pasta.network, user, by_pasta.held)
    from dockless.sandbox.network.attach import attach

    check_routed(spec.ports)
    found = attach(wanted(spec, directory, owner), user, opened)
    return JoinedNetwork(found.network, found.user, found.held, found.leases, found.warnings)


def leave_at_end(stack: contextlib.ExitStack, joined: JoinedNetwork | None) -> None:
    """Its addresses are free when ``stack`` is closed, and not only when somebody looks."""
    if joined is not None and joined.leases:
        from dockless.sandbox.network.attach import release

        stack.callback(release, joined.leases)


def wanted(spec: Spec, directory: Path, owner: int | None) -> Wanted:
    """What it asks for of its networks."""
    from dockless.sandbox.network.attach import Wanted

    names = tuple(dict.fromkeys(name for name in (directory.name, spec.hostname) if name))
    return Wanted(spec.endpoints, names, directory, spec.ports, what_may_leave(spec), owner or os.geteuid())


def rename_leases(box: Box) -> None:
    """One that has another name now is found by that on its networks, while it runs."""
    from dockless.sandbox.network import leases

    with contextlib.suppress(SandboxGone, OSError):
        known = box.document
        aliases = {endpoint.network: endpoint.aliases for endpoint in known.spec.endpoints}
        names = wanted(known.spec, box.directory, known.owner).names
        for lease in leases.of(box.directory) if aliases else ():
            if leases.alive(lease):
                own = tuple(dict.fromkeys((*names, *aliases.get(lease.network, ())))) if lease.names else ()
                leases.rename(lease, box.directory, own)


def _of_another(name: str, directory: Path, opened: contextlib.ExitStack) -> JoinedNetwork:
    """``directory``: of the one that joins it."""
    from dockless.sandbox.run.box import find

    box = find(name)
    if box is None:
        raise SandboxGone(f"no sandbox {name}, whose network is asked for", subject=name, hint="dockless ps lists those that run")
    found = namespaces_of(box, opened)
    if found.held:
        from dockless.sandbox.run.own_networks import tell

        tell(found.held[0], directory, found.network, found.user)
    return found


def namespaces_of(box: Box, opened: contextlib.ExitStack) -> JoinedNetwork:
    """The namespaces of a sandbox that runs, closed with ``opened``; of one on networks that an ordinary user made, ``held`` is what keeps
    these. ``SandboxGone``, ``Unsupported``"""
    from dockless.base.pidfds import hold

    init, name = box.init_pid, box.id
    if os.geteuid() != 0:
        from dockless.sandbox.run.own_networks import namespaces_of as of_own

        if (own := of_own(box.directory, opened)) is not None:
            return own
    try:
        pidfd = hold(init)
        opened.callback(os.close, pidfd)
        if not box.alive:  # nor was it when we took hold of whoever has that number
            raise ProcessLookupError
        network, user = (os.open(f"/proc/{init}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in ("net", "user"))
    except PermissionError as error:  # its init lets nobody but root look, proc(5)
        hint = "start that one on a network that you made (dockless network create), or run the program inside it: dockless exec"
        raise Unsupported(f"without root the network of sandbox {name} cannot be entered", subject=name, hint=hint) from error
    except OSError as error:
        raise SandboxGone(
            f"sandbox {name}, whose network is asked for, does not run", subject=name, hint=f"dockless start {name}"
        ) from error
    for fd in (network, user):
        opened.callback(os.close, fd)
    return JoinedNetwork(network, user)
