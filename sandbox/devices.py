"""Device nodes of the host that a caller gives to a sandbox, root or herself.

::

    which         a node, or every node below a directory; never a GPU's, which are leased
    whose rights  the node's own mode decides inside, too: an id of the sandbox must be able to do what is asked. For an ordinary user
                  that is what she may do herself; root's sandboxes have ids of nobody, unless they have the host's
    no more       what is not asked for ("r" alone) is kept from the sandbox by the device filter, or cannot be done by its ids;
                  else it is an error
"""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Iterator, Sequence

from dockless.base.idmaps import IdMap, Range
from dockless.errors import BadInput, Unsupported
from dockless.sandbox.gpus.nodes import NVIDIA_MAJOR
from dockless.sandbox.gpus.own_nodes import named_anew
from dockless.sandbox.resolved import STANDARD_DEVICES, Device
from dockless.sandbox.spec import HostDevice, Spec

_OURS = frozenset("pts shm mqueue fd stdin stdout stderr ptmx console".split())
"""Of /dev, besides the standard devices: terminals, memory, links."""
_MOST = 64
_BITS = {"r": 4, "w": 2}


def given(
    spec: Spec,
    idmap: IdMap | None,
    named: Sequence[HostDevice] = (),
    *,
    rootful: bool,
    filtered: bool,
    makes_nodes: bool,
) -> tuple[Device, ...]:
    """The nodes of ``spec.devices``, and ``named``, those of devices by name; those that are leased can be opened inside whatever the mode
    of the host's node, where root starts it. ``filtered``: the device filter holds the sandbox
    to what it is given. ``makes_nodes``: it has CAP_MKNOD of the host. ``BadInput``, ``Unsupported``"""
    wanted = (*spec.devices, *named)
    if not wanted:
        return ()
    found = [device for one in wanted for device in _nodes(one)]
    leased = {one.source for one in named} if rootful and spec.leased_devices else set()
    if len(found) > _MOST:
        raise BadInput(f"{len(found)} devices are more than {_MOST}", subject="devices", hint="name the nodes that it needs")
    _check_targets(found, spec)
    for at, device in enumerate(found):
        if device.source in leased and lacks(device, idmap, rootful=rootful):
            found[at] = named_anew(device)
            continue
        _check_rights(device, idmap, rootful=rootful)
        if not filtered or spec.profile == "privileged":
            _check_unfiltered(device, idmap, rootful=rootful)
        if "m" in device.access and not makes_nodes:
            hint = f"write {device.source}:{device.target}:rw, or as root --userns host with --cap-add MKNOD"
            raise BadInput(f"device {device.source}: nothing inside can make nodes (m)", subject="devices", hint=hint)
    _check_one_filter(found)
    return tuple(found)


def refuse(spec: Spec, owner: int | None) -> None:
    """``Unsupported``, ``BadInput`` for a sandbox that can have no devices, and asks for some."""
    if not spec.devices and not spec.cdi:
        return
    if owner:
        raise Unsupported(
            "the queue gives no devices but GPUs to a user's job",
            subject="devices",
            hint="run it yourself: dockless run --device; or ask for GPUs: --gpus",
        )
    if spec.profile == "untrusted":
        hint = "leave the device out, or take the default profile"
        raise BadInput("the profile untrusted has no devices of the host", subject="devices", hint=hint)


def _nodes(wanted: HostDevice) -> Iterator[Device]:
    source = wanted.source
    try:
        found = os.stat(source)
        if stat.S_ISDIR(found.st_mode):
            for folder, _, names in os.walk(source):
                for name in sorted(names):
                    path = os.path.join(folder, name)
                    one = os.lstat(path)
                    if stat.S_ISCHR(one.st_mode) or stat.S_ISBLK(one.st_mode):
                        yield _node(path, posixpath.join(wanted.target, os.path.relpath(path, source)), wanted.access, one)
            return
    except OSError as error:
        raise BadInput(f"device {source}: {error.strerror}", subject="devices", hint="ls -l /dev shows what there is") from None
    yield _node(source, wanted.target, wanted.access, found)


def _node(source: str, target: str, access: str, found: os.stat_result) -> Device:
    block = stat.S_ISBLK(found.st_mode)
    if not block and not stat.S_ISCHR(found.st_mode):
        raise BadInput(f"{source} is not a device", subject="devices", hint="name a node below /dev; -v binds files and directories")
    major, minor = os.major(found.st_rdev), os.minor(found.st_rdev)
    if (not block and major == NVIDIA_MAJOR) or os.path.basename(os.path.realpath(source)).startswith("nvidia"):
        raise BadInput(f"{source} is a GPU's, and GPUs are leased", subject="devices", hint="ask for one: --gpus 1, --gpus device=0")
    return Device(target, source, major, minor, block, access)


def _check_targets(found: list[Device], spec: Spec) -> None:
    taken = {device.target for device in STANDARD_DEVICES} | {posixpath.normpath(mount.target) for mount in spec.mounts}
    for device in found:
        if device.target in taken or device.target.split("/")[2] in _OURS:
            hint = f"give it another name: {device.source}:/dev/NAME"
            raise BadInput(f"device {device.source}: {device.target} is taken inside", subject="devices", hint=hint)
        taken.add(device.target)


def _check_rights(device: Device, idmap: IdMap | None, *, rootful: bool) -> None:
    """Whether some id of the sandbox can open it as is asked."""
    found = os.stat(device.source)
    lacking = lacks(device, idmap, rootful=rootful)
    if not lacking:
        return
    mode = f"{stat.filemode(found.st_mode)} {found.st_uid}:{found.st_gid}"
    if rootful:
        hint = "root's sandboxes have ids of their own: --userns host gives it root's, or chmod(1) the node"
    elif hint := only_by_group(device, lacking):
        pass
    else:
        hint = "you may not yourself: ask root for it"
    raise Unsupported(f"device {device.source}: nobody inside could open it for '{lacking}' ({mode})", subject="devices", hint=hint)


def only_by_group(device: Device, letters: str) -> str:
    """The next step for a user who may herself open what nobody inside could; empty where she may not."""
    if not _may(device, letters):
        return ""
    return f"you may by a group, which a sandbox does not keep: setfacl -m u:{os.geteuid()}:rw {device.source}, as root"


def lacks(device: Device, idmap: IdMap | None, *, rootful: bool) -> str:
    """What of its access no id of the sandbox has."""
    allowed = _allowed(os.stat(device.source), idmap)
    lacking = "".join(letter for letter, bit in _BITS.items() if letter in device.access and not allowed & bit)
    return "" if lacking and not rootful and _by_list(device, lacking, idmap) else lacking


def _check_unfiltered(device: Device, idmap: IdMap | None, *, rootful: bool) -> None:
    """Whether no id of the sandbox can do more than is asked."""
    allowed = _allowed(os.stat(device.source), idmap)
    for letter, bit in _BITS.items():
        if letter not in device.access and (allowed & bit or (not rootful and _may(device, letter))):
            raise Unsupported(
                f"device {device.source}: without a device filter nothing keeps the sandbox from '{letter}'",
                subject="devices",
                hint="give it as rw; the filter needs root, cgroup v2 and another profile than privileged",
            )


def _check_one_filter(found: list[Device]) -> None:
    """The filter knows devices by their numbers: those that are given twice are given with all that either has."""
    kept = {(device.block, device.major, device.minor): set("rw") for device in STANDARD_DEVICES}
    for device in found:
        known = kept.setdefault((device.block, device.major, device.minor), set(device.access))
        if known != set(device.access):
            hint = f"give it as {''.join(letter for letter in 'rwm' if letter in known) or 'none'}, or once"
            raise BadInput(f"device {device.source} is given twice with other rights", subject="devices", hint=hint)


def _allowed(found: os.stat_result, idmap: IdMap | None) -> int:
    """The bits of the mode that hold for an id of the sandbox; all of them for the host's root."""
    if idmap is None:
        return 6
    bits = found.st_mode & 7
    bits |= found.st_mode >> 6 & 7 if _has(idmap.uids, found.st_uid) else 0
    return bits | (found.st_mode >> 3 & 7 if _has(idmap.gids, found.st_gid) else 0)


def _has(ranges: tuple[Range, ...], outside: int) -> bool:
    return any(one.outside <= outside < one.outside + one.count for one in ranges)


def _may(device: Device, letters: str) -> bool:
    """Whether we ourselves may open it so."""
    wanted = (os.R_OK if "r" in letters else 0) | (os.W_OK if "w" in letters else 0)
    return os.access(device.source, wanted, effective_ids=True)


def _by_list(device: Device, letters: str, idmap: IdMap | None) -> bool:
    """Whether a user's own right comes inside, too: by the node's access control list (udev's ``uaccess``), which names her, or by a group
    that she keeps where she has no other ids. acl(5)"""
    if idmap is not None and idmap.single:
        return _may(device, letters)
    try:
        os.getxattr(device.source, "system.posix_acl_access")
    except OSError:
        return False
    return _may(device, letters)
