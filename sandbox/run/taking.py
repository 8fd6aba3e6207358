"""A sandbox of a pool with a name, taken: from there on it is the taker's, as one that she made herself. ``run.pool_process`` gives it.

The pool hands over the socket of its init, its plan, report and leash, a pidfd of its keeper and its cgroup. The command and the three
streams are sent to init by the taker, and come by nobody else.
"""

from __future__ import annotations

import errno
import os
from _socket import AF_UNIX, SOCK_CLOEXEC, SOCK_SEQPACKET, socket
from collections.abc import Sequence

from dockless.base import json
from dockless.base.descriptors import peer, received
from dockless.base.typing import Any
from dockless.cgroups import Cgroup
from dockless.errors import NotPermitted, SandboxError, SandboxGone
from dockless.images.catalog.image import Image
from dockless.sandbox.features import Features
from dockless.sandbox.plan.plan import Command, decode
from dockless.sandbox.resolved import Resolved
from dockless.sandbox.run.named_pools import About, directory_of, unknown, unreadable
from dockless.sandbox.run.places import at_its_door
from dockless.sandbox.run.pool import WaitingSandbox
from dockless.sandbox.run.prepared import Prepared
from dockless.sandbox.run.process import Process
from dockless.sandbox.run.removal import remove_cgroup, remove_tree
from dockless.sandbox.spec import Spec

_LARGEST, _MOST = 1 << 16, 6
"""Bytes and descriptors of what a pool sends."""
_TRIES = 10
"""Sandboxes that are asked for one after the other, where those that waited have just ended."""


class TakenSandbox(WaitingSandbox):
    """One that another process has made."""

    def take_over(self, said: dict[str, Any], fds: Sequence[int], like: Prepared) -> None:
        """``said``, ``fds``: what ``hand_over`` has sent, which is ours from now on."""
        self.id, self._directory = said["id"], None
        self._stack.callback(remove_tree, self.directory)
        if said["cgroup"]:
            self._cgroup = Cgroup(said["cgroup"], fds[5])
            self._stack.callback(remove_cgroup, self._cgroup)
        self._owner = socket(fileno=fds[0])
        self._stack.callback(self._owner.close)
        self._process = Process.taken_over(like.plan, said["keeper"], said["init"], fds[1:5])
        self._stack.callback(self._process.close)
        self._ready, self.prepared = like, said["prepared"]
        self.warnings = tuple(said["warnings"])
        self.plan, self.identity = like.plan, like.resolved.identity


def take(about: About, plan: bytes, spec: Spec, stdio: Sequence[int]) -> TakenSandbox:
    """One of the pool's in which the program of ``spec`` runs; the caller leaves it, as a ``with`` does. ``spec``: the pool's, with another
    command, variables and directory. Errors: those of a start, ``BadInput`` where the pool is gone."""
    like = _prepared(about, plan)
    image = Image(about.wanted.spec.image, about.digest, about.config, ())
    for left in range(_TRIES - 1, -1, -1):
        box = TakenSandbox(about.wanted.spec, labels=about.wanted.labels)
        box.image_digest = about.digest
        _ask(about, box, like)
        waited = box.prepared
        try:
            box.await_barrier()
            box.give(spec, image, stdio)
            box.await_program(image)
        except BaseException as error:
            box.__exit__(type(error), error, error.__traceback__)
            if left and waited and isinstance(error, SandboxGone):
                continue  # it has ended just now
            raise
        return box
    raise AssertionError("the last try returns or raises")


def _prepared(about: About, plan: bytes) -> Prepared:
    """What the pool has resolved and compiled, as far as a take needs it."""
    spec = about.wanted.spec
    resolved = Resolved(
        spec=spec,
        features=Features("", ""),  # compiled by the pool already
        account=about.account,
        command=Command((), (), ()),
        idmap=about.idmap,
        rootful=about.rootful,
        capabilities=about.capabilities,
        workdir=about.workdir,
        hostname=about.hostname,
        has_cgroup=about.has_cgroup,
    )
    try:
        return Prepared(resolved, plan=decode(plan))
    except ValueError as error:
        raise unreadable(about.name, error) from None


def _ask(about: About, box: TakenSandbox, like: Prepared) -> None:
    fds: list[int] = []
    connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC)
    try:
        try:
            at_its_door(directory_of(about.name), connection.connect)
            if peer(connection) != os.geteuid():
                raise NotPermitted(f"the pool {about.name} is another user's", subject=about.name, hint="make one of your own")
            raw, fds = received(connection, _LARGEST, _MOST)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ECONNREFUSED, errno.ECONNRESET, errno.EPIPE):
                raise unknown(about.name) from None
            hint = "try again; `dockless pool ls` shows what waits"
            raise SandboxError(f"cannot reach the pool {about.name}: {error.strerror}", subject=about.name, hint=hint) from None
        if not raw:
            raise SandboxGone(f"the pool {about.name} has just ended, or has no room", subject=about.name, hint="try again")
        said = json.loads(raw)
        if "error" in said:
            raise SandboxError(f"the pool {about.name} can make no sandbox: {said['error']}", subject=about.name, hint=said["hint"])
        if said["made"] != about.made:
            raise SandboxGone(f"the pool {about.name} was made anew meanwhile", subject=about.name, hint="try again")
        box.take_over(said, fds, like)
        fds = []
    finally:
        connection.close()
        for fd in fds:
            os.close(fd)
