"""The one way of starting, below foreground and detached sandboxes.

::

    find_image, occupy, make_cgroup     the image, the directory with its lock, the cgroup with its limits
    collect                             the plan, and every descriptor that its slots expect
    carry_out                           the process

Whoever starts undoes what was made when a later step fails: a foreground sandbox with its own stack, a detached one by ``remove``.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Mapping, Sequence
from functools import partial

from dockless import native
from dockless.base import paths
from dockless.base.dataclass import dataclass, replace
from dockless.base.path import Path
from dockless.base.typing import TYPE_CHECKING
from dockless.base.units import format_duration
from dockless.cgroups import Cgroup, Delegation, Limits, find_delegation, users
from dockless.errors import LimitUnavailable, Unsupported
from dockless.sandbox.plan.plan import SLOT_DOOR, SLOT_HELD, SLOT_LOCK, SLOT_RESTART, SLOT_STATE, filled_in
from dockless.sandbox.resolve import UNTRUSTED_PIDS
from dockless.sandbox.run import process
from dockless.sandbox.run.documents import Document, boot_id
from dockless.sandbox.run.joining import JoinedNetwork, join
from dockless.sandbox.run.places import DOOR, make_door
from dockless.sandbox.run.prepared import Prepared, prepared
from dockless.sandbox.run.process import Process
from dockless.sandbox.spec import Spec

if TYPE_CHECKING:
    from socket import socket

    from dockless.images import Image
    from dockless.native.userns import SharedNetwork
    from dockless.sandbox.network.preview import Steps


def new_id() -> str:
    """A fresh sandbox id."""
    return "s-" + os.urandom(5).hex()


def find_image(reference: str) -> Image:
    """The image of a spec: the store's, or the pseudo-image ``host``. ``UnknownImage``"""
    from dockless import images

    return images.host_image() if reference == "host" else images.Store().get(reference)


@dataclass(frozen=True, slots=True)
class Place:
    """A sandbox's directory, and the descriptors of it that the keeper gets. ``removed``: the name by which the keeper removes it at the
    end from the directory in SLOT_STATE; empty where it stays."""

    directory: Path
    slots: dict[int, int]
    removed: str = ""


@dataclass(frozen=True, slots=True)
class StartInputs:
    """What is about to be carried out. ``joined``: the network that it enters by its spec."""

    place: Place
    ready: Prepared
    slots: dict[int, int]
    group: Cgroup | None = None
    joined: JoinedNetwork | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """Of its networks."""
        return self.joined.warnings if self.joined is not None else ()


def occupy(directory: Path, opened: contextlib.ExitStack, *, kept: bool, removed: bool = False, door: bool = True) -> Place | None:
    """Make a sandbox's directory and lock it: None, with nothing changed, where there is one. ``removed``: by its keeper. ``door``: whether
    others may enter it. ``Unwritable``"""
    if not paths.make_new(directory):
        return None
    try:
        return hold(directory, opened, kept=kept, removed=removed, door=door)
    except BaseException:
        with contextlib.suppress(OSError):  # by their names: there may be no descriptor to be had
            for name in ("lock", DOOR):
                (directory / name).unlink(missing_ok=True)
            directory.rmdir()
        raise


def hold(directory: Path, opened: contextlib.ExitStack, *, kept: bool, removed: bool, door: bool = True) -> Place:
    """The same for a directory that is there, and in which nothing lives.

    The lock lasts as long as the keeper, which inherits it, or as we who start it. ``kept``: for whoever comes later, and the lock is a
    file in it; else it is the directory itself. flock(2)
    """
    with paths.writing("the directory of a sandbox", directory):
        lock = directory / "lock" if kept else directory
        slots = {SLOT_LOCK: os.open(lock, (os.O_RDWR | os.O_CREAT if kept else os.O_RDONLY | os.O_DIRECTORY) | os.O_CLOEXEC, 0o600)}
        opened.callback(os.close, slots[SLOT_LOCK])
        # Waits only for those who are just asking (a shared lock, for microseconds): nobody else ever takes this one.
        fcntl.flock(slots[SLOT_LOCK], fcntl.LOCK_EX)
        slots[SLOT_STATE] = os.open(directory if kept else directory.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        opened.callback(os.close, slots[SLOT_STATE])
    if door:
        slots[SLOT_DOOR] = make_door(directory)
        opened.callback(os.close, slots[SLOT_DOOR])
    return Place(directory, slots, directory.name if removed or not kept else "")


def collect(
    spec: Spec,
    image: Image,
    place: Place,
    group: Cgroup | None,
    stdio: Sequence[int],
    opened: contextlib.ExitStack,
    *,
    owner: int | None = None,
    leased: Sequence[socket] = (),
    network: SharedNetwork | None = None,
) -> StartInputs:
    """The plan, and the descriptors for all of its slots, open until ``opened`` is closed. ``leased``: the lease of its GPUs; without one
    they are taken here. ``network``: what it enters instead of what its spec says. Errors: ``resolve``'s and
    ``compile_plan``'s, ``NotEnoughGpus``, and those of ``joining.join``."""
    held = pins(image, opened)
    if spec.gpus:
        from dockless.sandbox.gpus.lease import take

        held += [(one if leased else opened.enter_context(one)).fileno() for one in leased or take(spec.gpus)]
    ready = prepared(spec, image, owner=owner, has_cgroup=group is not None, shared_network=network is not None)
    if spec.gpus or spec.cdi:
        from dockless.sandbox.gpus.extra_layer import pin

        held += pin(ready.resolved.layers, opened)
    if spec.gpus:
        from dockless.sandbox.gpus import own_nodes

        for device in ready.resolved.devices:
            own_nodes.make(device, opened)
    own = join(ready, place.directory, owner, opened) if network is None else None
    held += own.held if own is not None else ()
    slots = dict(enumerate(stdio)) | place.slots | held_open(held, opened)
    return StartInputs(place, ready, slots | ready.slots(group, opened, network or own), group, own)


def carry_out(
    start: StartInputs, name: str, *, cgroup: str = "", times: bool = False, detached: bool = False, size: tuple[int, int] | None = None
) -> Process:
    """The process, with its program exec'd. ``name``: what the host shows as the keeper's command line. ``cgroup``: the group's name, where
    the keeper removes it if we die. Errors: ``LaunchFailed`` and its relatives."""
    raw = start.ready.raw(times=times, detached=detached)
    filled = _filled(start, raw, cgroup, size)
    return process.start(start.ready.plan, filled, start.slots, _launcher(start, name), detached=detached)


def prepare(start: StartInputs, name: str, *, cgroup: str = "") -> Process:
    """The same for one whose plan has a BARRIER: it begins, and ``Process.give`` gives it its program."""
    return process.prepare(start.ready.plan, _filled(start, start.ready.raw(), cgroup, None), start.slots, _launcher(start, name))


def _filled(start: StartInputs, raw: bytes, cgroup: str, size: tuple[int, int] | None) -> bytearray:
    place, restarts = start.place, SLOT_RESTART in start.slots
    return filled_in(raw, directory=str(place.directory), removed=place.removed, cgroup=cgroup, terminal=size, restarts=restarts)


def _launcher(start: StartInputs, name: str) -> process.Launch:
    return partial(_launch, users.above(start.group.text) if start.group is not None else "", name)


def _launch(users_group: str, name: str, fds: Mapping[int, int]) -> native.Launched:
    """The keeper, in the group of the user's keepers, where its sandbox lies in a user's group: what it does is done for her."""
    if not users_group:
        return native.launch(fds, name=name)
    return users.launch_keeper(users_group, lambda group: native.launch(fds, name=name, cgroup_fd=group))


def pins(image: Image, opened: contextlib.ExitStack) -> list[int]:
    """Of the image, which stays in the store as long as they are open."""
    if image.is_host:
        return []
    from dockless import images

    fd = images.Store().pin(image)
    opened.callback(os.close, fd)
    return [fd]


def held_open(fds: Sequence[int], opened: contextlib.ExitStack) -> dict[int, int]:
    """The slot of what the keeper holds for as long as it lives: pins, and leases of GPUs."""
    if not fds:
        return {}
    return {SLOT_HELD: fds[0] if len(fds) == 1 else _bundle(fds, opened)}


def _bundle(fds: Sequence[int], opened: contextlib.ExitStack) -> int:
    """A descriptor that keeps all of these open: a socket to which they were sent, and that nobody reads. 253 at most, unix(7)."""
    import socket

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    opened.enter_context(theirs)
    with ours:
        socket.send_fds(ours, [b"held"], fds)
    return theirs.fileno()


def keep_layers(start: StartInputs, opened: contextlib.ExitStack) -> None:
    """Its keeper holds the mounts of its layers, too, for as long as it lives: of one that outlives us."""
    if layers := [start.slots[slot] for slot in start.ready.plan.held]:
        start.slots[SLOT_HELD] = _bundle([start.slots[SLOT_HELD], *layers], opened)


def note_layers(start: StartInputs, keeper: int) -> None:
    """Others find them there: ``images.layers.mounts``."""
    for place, (slot, layer) in enumerate(start.ready.plan.held.items(), 2):  # the first is what it holds besides
        from dockless.images.layers import erofs

        erofs.note_keeper(layer.path, *layer.tars, fd=start.slots[slot], keeper=keeper, socket=SLOT_HELD, place=place)


def document_of(asked: Document, image: Image, start: StartInputs, group: Cgroup | None, warnings: tuple[str, ...]) -> Document:
    """What is written down about it, of what was ``asked`` and what has become of that."""
    return replace(
        asked,
        boot_id=boot_id(),
        cgroup=str(group.path) if group else "",
        warnings=warnings,
        image=image.digest,
        stop_signal=start.ready.plan.stop_signal,
        identity=start.ready.resolved.identity,
        ends=time.time() + asked.spec.ttl if asked.spec.ttl else 0.0,
    )


def make_cgroup(spec: Spec, name: str, user: int | None = None, controllers: Sequence[str] = ()) -> Cgroup | None:
    """The cgroup of a sandbox with its limits, or None where there is no place and nothing was asked for. ``user``: in whose group it lies.
    ``controllers``: as in ``Cgroup.create``. ``LimitUnavailable``"""
    asked = spec.limits != Limits()
    place = find_delegation(ask_systemd=asked)
    limits = _limits(spec, place)
    if place.path is None:
        if asked and not spec.best_effort:
            missing = next((w.controller for w in limits.writes()), "")
            raise LimitUnavailable(f"limits cannot be enforced: {place.why}", controller=missing, hint=place.hint)
        if spec.namespaces.pid == "host":
            raise Unsupported(
                "a shared PID namespace needs a cgroup, to end what is left", subject="pid namespace", hint=place.hint or place.why
            )
        return None
    return Cgroup.create(name, limits, delegation=place, best_effort=spec.best_effort, user=user, controllers=controllers)


def _limits(spec: Spec, place: Delegation) -> Limits:
    """What was asked for, and the process cap of ``untrusted`` where it can be had."""
    if spec.profile == "untrusted" and spec.limits.pids_max is None and "pids" in place.controllers:
        return replace(spec.limits, pids_max=UNTRUSTED_PIDS)
    return spec.limits


def bound_disk(spec: Spec, directory: Path) -> tuple[str, ...]:
    """See ``project.bound``."""
    if not spec.disk:
        return ()
    from dockless.sandbox.run import project

    return project.bound(spec, directory)


def warnings_of(spec: Spec, cgroup: Cgroup | None) -> tuple[str, ...]:
    """What this host does not enforce: limits under ``best_effort``, and the process cap that ``untrusted`` brings where it can be had."""
    place = find_delegation(ask_systemd=False)
    warnings = tuple(cgroup.warnings) if cgroup else ()
    if cgroup is None and spec.limits != Limits():
        warnings += (f"no limit is enforced: {place.why}",)
    if spec.profile == "untrusted" and spec.limits.pids_max is None and "pids" not in place.controllers:
        warnings += ("the untrusted profile's process cap is not enforced: this host has no pids controller in cgroup v2",)
    return warnings


def explain(spec: Spec) -> Prepared:
    """What a start of the spec on this host would carry out, without starting anything."""
    return prepared(spec, find_image(spec.image), has_cgroup=find_delegation(ask_systemd=False).path is not None)


def besides(ready: Prepared) -> list[str]:
    """What holds such a sandbox and is no operation of its plan, in plain words: limits, the device filter, the timeout."""
    resolved, plan, spec = ready.resolved, ready.plan, ready.resolved.spec
    said = [f"limit {w.file} to {w.value}" for w in _limits(resolved.spec, find_delegation(ask_systemd=False)).writes()]
    if ready.rules and resolved.has_cgroup:
        said.append("allow these devices alone: " + ", ".join(map(str, ready.rules)))
    for seconds, when in (
        (plan.timeout, "after {}"),
        (spec.idle_timeout, "after {} without anybody"),
        (spec.ttl, "after {} unless extended"),
    ):
        if seconds:
            after = when.format(format_duration(seconds))
            asked = f"send signal {plan.stop_signal} {after}, and {format_duration(plan.grace)} later " if plan.grace else ""
            said.append(f"{asked}kill everything inside" + ("" if asked else f" {after}"))
    if resolved.health is not None:
        every, command = format_duration(resolved.health.interval), " ".join(resolved.health.argv)
        said.append(f"run {command!r} inside every {every} to see whether it is healthy")
    return said


def network_steps(ready: Prepared) -> Steps:
    """What is asked of the kernel for its networks before its keeper begins."""
    spec = ready.resolved.spec
    if not spec.endpoints or os.geteuid() != 0:
        return ()
    from dockless.sandbox.network.preview import preview

    return preview(spec)
