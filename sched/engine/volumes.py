"""The directories that the administrator gives to every job: ``[volumes]`` in the settings.

They are binds like those that a user asks for. The launcher finds and mounts them with her own rights, so nobody comes to what she could
not open herself; and where one is missing the job fails, since what it writes there would be lost.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping

from dockless.base.dataclass import replace
from dockless.base.settings import USER
from dockless.errors import BadInput
from dockless.sandbox.spec import Bind, Spec


def with_volumes(spec: Spec, volumes: Mapping[str, str], user: str) -> Spec:
    """``spec`` with the volumes of a job of ``user``. What it mounts at the same place itself stays; what nobody trusts gets none.
    ``BadInput`` for a name that is no part of a path."""
    if not volumes or spec.profile == "untrusted":
        return spec
    if "/" in user or user in (".", ".."):
        raise BadInput(f"the name {user} cannot be part of a path", subject=user, hint="[volumes] in the settings is not for this user")
    taken = {posixpath.normpath(mount.target) for mount in spec.mounts}
    binds = [Bind(source.replace(USER, user), target.replace(USER, user)) for target, source in volumes.items()]
    return replace(spec, mounts=(*(bind for bind in binds if bind.target not in taken), *spec.mounts))
