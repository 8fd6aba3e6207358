"""The directories that the administrator gives to every job: ``[volumes]`` in the settings.

They are binds like those that a user asks for. The launcher finds and mounts them with her own rights, so nobody comes to what she could
not open herself; and where one is missing the job fails, since what it writes there would be lost. Only of the directories of her groups
those are left out that are not there; the job is in the groups of the others, so that it may do in them what she may.
"""

from __future__ import annotations

import errno
import os
import posixpath
import re
from collections.abc import Mapping
from types import MappingProxyType

from dockless.base.dataclass import replace
from dockless.base.settings import GROUP, USER
from dockless.errors import BadInput, LaunchFailed
from dockless.sandbox.spec import Bind, Mount, Spec

_NONE: Mapping[str, int] = MappingProxyType({})
_LACKING = (errno.ENOENT, errno.ENOTDIR, errno.EACCES)


def with_volumes(spec: Spec, volumes: Mapping[str, str], user: str, groups: Mapping[str, int] = _NONE) -> Spec:
    """``spec`` with the volumes of a job of ``user``, who is in these ``groups`` of the host (see ``Callers``). What it mounts at the same
    place itself stays; what nobody trusts gets none. ``BadInput`` for a name that is no part of a path."""
    of_groups = _of_groups(volumes, groups)
    if spec.host_groups or of_groups:  # what the user says there does not count
        spec = replace(spec, host_groups=tuple(of_groups.values()))
    if not volumes or spec.profile == "untrusted":
        return spec
    if not _is_part(user):
        raise BadInput(f"the name {user} cannot be part of a path", subject=user, hint="[volumes] in the settings is not for this user")
    taken = {posixpath.normpath(mount.target) for mount in spec.mounts}
    binds: list[Mount] = []
    for target, source in volumes.items():
        for group in of_groups if GROUP in source else ("",):
            if GROUP not in source or _is_there(source, group):
                here, there = (path.replace(USER, user).replace(GROUP, group) for path in (source, target))
                binds += [Bind(here, there)] if there not in taken else []
    return replace(spec, mounts=(*binds, *spec.mounts))


def explained(error: Exception, volumes: Mapping[str, str], user: str) -> str:
    """What is wrong with a directory of the settings, and what to do, where that kept a job of ``user`` from starting; else empty."""
    if not isinstance(error, LaunchFailed) or error.errno not in _LACKING:
        return ""
    for target, source in volumes.items():
        if re.fullmatch(re.escape(source.replace(USER, user)).replace(re.escape(GROUP), "[^/]+"), error.subject):
            what = f"may not be opened by user {user}" if error.errno == errno.EACCES else "is not there"
            setting = f'the setting is [volumes] "{target}" = "{source}"'
            return f"the directory {error.subject}, which every job has at {target}, {what} (make it, or open it to her; {setting})"
    return ""


def _of_groups(volumes: Mapping[str, str], groups: Mapping[str, int]) -> dict[str, int]:
    """The groups of which a directory is there, with their numbers; not root's, nor one without a name: none that a job could be in."""
    found = {}
    for source in volumes.values():
        for name, number in sorted(groups.items()) if GROUP in source else ():
            if number and _is_part(name) and name not in found and _is_there(source, name):
                found[name] = number
    return found


def _is_part(name: str) -> bool:
    return bool(name) and "/" not in name and name not in (".", "..")


def _is_there(source: str, group: str) -> bool:
    """Whether the part of the path that the group's name ends is there: the administrator's own, and nothing that a user could change."""
    before, _, after = source.partition(GROUP)
    return os.path.lexists(before + group + after.partition("/")[0])
