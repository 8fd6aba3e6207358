"""Plans that are ready to start, kept: a spec that starts again costs no looking up, no compiling, no encoding.

What a plan depends on is its key: the spec, the image by its digest and layers, the host files that were read, by their stamps. A spec
whose plan depends on more (leased GPUs, devices, volumes, a profile file, another sandbox's network) is compiled anew each time. Specs that
differ in their command alone, as the jobs of a queue do by their variables, share all but that.
"""

from __future__ import annotations

import _thread
import contextlib
import os
from itertools import islice
from operator import attrgetter

from dockless.base import paths
from dockless.base.dataclass import replace
from dockless.base.typing import TYPE_CHECKING, Any
from dockless.cgroups import STANDARD_DEVICES, Cgroup, DeviceRule
from dockless.native.userns import namespace_fd, own_namespace
from dockless.sandbox import binds, features
from dockless.sandbox.compile import NETWORK_LABEL, OWNER_LABEL, USERNS_LABEL, compile_plan
from dockless.sandbox.gpus.environment import asks_for_files_alone
from dockless.sandbox.network.asked import CONTAINER
from dockless.sandbox.plan.plan import SLOT_CGROUP, Plan, Rows, encode, rows_of
from dockless.sandbox.resolve import check_shared_network, on_behalf, resolve, with_command
from dockless.sandbox.resolved import Resolved
from dockless.sandbox.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Hashable

    from dockless.base.idmaps import IdMap
    from dockless.images import Image
    from dockless.native.userns import SharedNetwork
    from dockless.sandbox.run.joining import JoinedNetwork

_KEPT, _COMMANDS = 64, 8
"""Plans that differ in more than their command, and commands of each."""
_HOST_FILES = ("/", "/etc", "/etc/subuid", "/etc/subgid", "/etc/resolv.conf", "/etc/passwd", "/etc/group")
_OF_THE_COMMAND = ("argv", "entrypoint", "env")
_others_of = attrgetter(*(name for name in Spec.__slots__ if name not in _OF_THE_COMMAND))


class Prepared:
    """A resolved spec, its plan and the plan's bytes. ``like``: one whose plan differs in its command alone. ``plan``: where another
    process has compiled it, and has started what it says."""

    def __init__(self, resolved: Resolved, like: Prepared | None = None, plan: Plan | None = None) -> None:
        self.resolved = resolved
        self.plan: Plan = plan or compile_plan(resolved) if like is None else replace(like.plan, command=resolved.command)
        self._rows = None if like is None else like.rows
        self._raw: dict[tuple[bool, bool], bytes] = {}
        self.noted = ""
        """What every record of a sandbox with this plan has in it, once it was written: ``documents.members``."""
        labelled = {label: slot for slot, label in self.plan.slots.items()} if like is None else {}
        self._userns: int = labelled.get(USERNS_LABEL, -1) if like is None else like._userns
        self._network: int = labelled.get(NETWORK_LABEL, -1) if like is None else like._network
        self.owner: int = labelled.get(OWNER_LABEL, -1) if like is None else like.owner
        """The slot of the socket by which one that waits is given its program."""
        self.shared: dict[int, int] = {}
        """Slots that are filled alike for all of its sandboxes, as a zygote's are: ``zygote.plans``."""
        self.rules: tuple[DeviceRule, ...] = self._rules() if like is None else like.rules

    def _rules(self) -> tuple[DeviceRule, ...]:
        resolved = self.resolved
        if not resolved.rootful or resolved.spec.profile == "privileged":
            return ()
        opened = [device for device in resolved.devices if device.access]
        extra = [DeviceRule("b" if device.block else "c", device.major, device.minor, device.access) for device in opened]
        return tuple(dict.fromkeys([*STANDARD_DEVICES, *extra]))

    def raw(self, *, times: bool = False, detached: bool = False) -> bytes:
        """The plan as the launcher reads it."""
        key = (times, detached)
        raw = self._raw.get(key)
        if raw is None:
            raw = self._raw[key] = encode(self.plan, times=times, detached=detached, rows=self.rows)
        return raw

    @property
    def rows(self) -> Rows:
        """The plan's operations as the launcher reads them."""
        if self._rows is None:
            self._rows = rows_of(self.plan.ops)
        return self._rows

    def user_namespace(self, opened: contextlib.ExitStack) -> int:
        """A descriptor of the user namespace that it enters, -1 for none. ``IdMapError``"""
        if self._userns < 0:
            return -1
        if self._userns in self.shared:
            return self.shared[self._userns]
        assert self.resolved.idmap is not None
        if not self.resolved.reaches_others:
            return namespace_fd(self.resolved.idmap)
        own = own_namespace(self.resolved.idmap)
        opened.callback(os.close, own)
        return own

    def slots(
        self, cgroup: Cgroup | None, opened: contextlib.ExitStack, network: JoinedNetwork | SharedNetwork | None = None
    ) -> dict[int, int]:
        """The fds that the plan expects to find, the cgroup's with its device filter on. ``network``: where it was prepared for one.
        What is only for this start is closed with ``opened``. ``ImageError`` for a layer that cannot be mounted."""
        fds = dict(self.shared)
        if cgroup is not None:
            fds[SLOT_CGROUP] = cgroup.fd
            if self.rules:
                cgroup.allow_devices(self.rules)
        if self._userns >= 0:
            fds[self._userns] = network.user if network is not None and self._userns not in self.shared else self.user_namespace(opened)
        if self._network >= 0:
            assert network is not None
            fds[self._network] = network.network
        for slot, idmap in self.plan.maps.items():
            fds[slot] = namespace_fd(idmap)
        for slot, layer in self.plan.held.items():
            fds[slot] = layer.open()
            opened.callback(os.close, fds[slot])
        return fds


_kept: dict[Hashable, dict[Hashable, Prepared]] = {}
"""By what a plan depends on besides its command, and then by that. The first one of each is the one that the others are like."""
_lock = _thread.allocate_lock()


def prepared(spec: Spec, image: Image, *, owner: int | None = None, has_cgroup: bool = False, shared_network: bool = False) -> Prepared:
    """The plan of a spec, from the cache where it can be. ``shared_network``: it enters one instead of having its own. Errors:
    ``resolve``'s and ``compile_plan``'s."""
    if spec.network.startswith(CONTAINER):
        from dockless.sandbox.run.on_network import whose_network

        spec = replace(spec, network=CONTAINER + whose_network(spec.network.removeprefix(CONTAINER)))
    if shared_network:
        check_shared_network(spec)
    if shared_network or not _keepable(spec) or asks_for_files_alone((*image.config.env, *spec.env)):
        resolved = resolve(spec, image, features.probe(), owner=owner, has_cgroup=has_cgroup)
        return Prepared(replace(resolved, shared_network=True) if shared_network else resolved)
    read = (*_HOST_FILES, *(f"{paths.state()}/networks/{endpoint.network}/network.json" for endpoint in spec.endpoints))
    place = (image.digest, image.layers, image.merged, on_behalf(owner), has_cgroup, os.geteuid(), *map(_stamp, read))
    shared = (_others_of(spec), place, binds.grants(spec, owner))
    command = (spec.argv, spec.entrypoint, spec.env)
    alike = _kept.get(shared)
    if alike is None:
        found = Prepared(resolve(spec, image, features.probe(), owner=owner, has_cgroup=has_cgroup))
        with _lock:
            _put(_kept, shared, {command: found}, _KEPT)
        return found
    known = alike.get(command)
    if known is not None:
        return known
    with _lock:
        like = next(iter(alike.values()))
    found = Prepared(with_command(like.resolved, spec, image), like if like.plan.health is None else None)
    with _lock:
        _put(alike, command, found, _COMMANDS)
    return found


def waiting(spec: Spec, image: Image, seconds: float, *, has_cgroup: bool) -> Prepared:
    """The plan of a sandbox that waits for its program, so many seconds at most, 0 for ever. Errors: as ``prepared``."""
    return Prepared(replace(resolve(spec, image, features.probe(), has_cgroup=has_cgroup), waits=seconds))


def lending(spec: Spec, image: Image, idmap: IdMap, *, has_cgroup: bool) -> Prepared:
    """The same for one that waits for nothing and lends its root, with this id map. It is on no network, whatever its files say of names.
    Errors: as ``prepared``, and ``IdMapError``."""
    found = resolve(spec, image, features.probe(), has_cgroup=has_cgroup)
    idmap.require(found.account.uid, found.account.gid, found.account.groups)
    return Prepared(replace(found, idmap=idmap, waits=0.0, lends_root=True, shared_network=False))


def with_program(like: Prepared, spec: Spec, image: Image, workdir: str) -> Prepared:
    """The plan of one that waited, when it has its program: that of ``spec``, whose command, variables and directory alone may differ from
    what it was prepared by. ``BadInput``"""
    resolved = with_command(like.resolved, spec, image)
    found = Prepared(resolved, like)
    if workdir != resolved.workdir:
        found.resolved = replace(resolved, workdir=workdir)
        ops = tuple(replace(op, a=workdir) if op.name == "CHDIR" else op for op in found.plan.ops)
        found.plan, found._rows = replace(found.plan, ops=ops), None
    return found


def _put(kept: dict[Hashable, Any], key: Hashable, one: Any, most: int) -> None:
    """``most``: how many are kept, among them always the first of a spec's commands."""
    if len(kept) >= most:
        del kept[next(islice(kept, 1, None))]
    kept[key] = one


def _keepable(spec: Spec) -> bool:
    volumes = any(mount.kind == "volume" for mount in spec.mounts)
    of_another = spec.network.startswith(CONTAINER)
    return not (spec.gpus or spec.devices or spec.cdi or volumes or of_another) and spec.seccomp in ("", "unconfined")


def _stamp(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_ino, found.st_mtime_ns
