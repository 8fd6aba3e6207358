"""The files of a sandbox that does not run: its root is mounted as at a start, for as long as somebody acts on its files.

::

    host                                      keeper ─ init ─ the agent, waiting
     │ the lock of whoever starts the sandbox    │
     │ the plan of a start ─────────────────────►│ image, private layer, mounts; the agent instead of the sandbox's own program
     │ who acts on files enters by a door ──────►│ as into a sandbox that runs
     │ the last one has left ───────────────────►│ its end

Nothing of the image runs. What is mounted is held by a process of ours, which ends with us.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from dockless import native
from dockless.base import paths
from dockless.base.dataclass import replace
from dockless.errors import SandboxGone, Unsupported
from dockless.sandbox import features
from dockless.sandbox.enter import Entry
from dockless.sandbox.plan.plan import SLOT_DOOR, SLOT_LOCK
from dockless.sandbox.resolve import resolve
from dockless.sandbox.run import door
from dockless.sandbox.run.box import Box
from dockless.sandbox.run.choosing import FILES, choose
from dockless.sandbox.run.documents import Document
from dockless.sandbox.run.places import make_door
from dockless.sandbox.run.prepared import Prepared
from dockless.sandbox.run.process import gone
from dockless.sandbox.run.removal import remove_tree
from dockless.sandbox.run.start import Place, StartInputs, carry_out, find_image, held_open, pins
from dockless.sandbox.spec import Namespaces, Spec

_PROGRAM = "/proc/self/fd/2"
"""The agent, in the procfs that our plan mounts: what waits is given its program as standard error."""


class Guest:
    """A program of ours among the files. ``close`` ends it."""

    def __init__(self, entered: door.Entered, left: Callable[[], None]) -> None:
        self._entered, self._left = entered, left
        self.used = entered.used

    def close(self) -> None:
        try:
            self._entered.close()
        finally:
            self._left()


class Mounted:
    """The files of one sandbox, mounted while somebody is in there. Safe to use from several threads."""

    def __init__(self, box: Box) -> None:
        self._box = box
        self._lock = threading.Lock()
        self._guests = 0
        self._held = contextlib.ExitStack()
        self._entrance: door.Entrance | None = None

    def enter(self, entry: Entry, stdio: tuple[int, int, int], *, program: int) -> Guest:
        """As ``sandbox.run.door.enter``. Errors: those of a start, ``Unsupported`` for a sandbox that keeps no files, ``BadInput`` where
        somebody else has them mounted, ``SandboxGone`` where it has just been started."""
        with self._lock:
            if self._entrance is None:
                with contextlib.ExitStack() as opened:
                    self._entrance = _mount(self._box, opened)
                    self._held = opened.pop_all()
            self._guests += 1
            try:
                return Guest(door.enter(self._entrance, entry, stdio, program=program), self._leave)
            except BaseException:
                self._one_less()
                raise

    def _leave(self) -> None:
        with self._lock:
            self._one_less()

    def _one_less(self) -> None:
        self._guests -= 1
        if not self._guests:
            self._entrance = None
            self._held.close()


def _mount(box: Box, opened: contextlib.ExitStack) -> door.Entrance:
    lock = choose(box.directory)
    opened.callback(os.close, lock)
    if box.alive:
        raise SandboxGone(f"sandbox {box.id} has just been started", subject=box.id, hint="try again")
    known = box.document
    with contextlib.ExitStack() as ours:  # the keeper has them then
        place = Place(_door_of(box, opened), {SLOT_LOCK: lock})
        place.slots[SLOT_DOOR] = make_door(place.directory)
        ours.callback(os.close, place.slots[SLOT_DOOR])
        image = find_image(known.image if known.spec.image != "host" else "host")
        owner = None if known.owner == os.geteuid() else known.owner
        resolved = resolve(_at_rest(known), image, features.probe(), owner=owner)
        if image.is_host or resolved.spec.root != "disk":
            hint = "run an image with its root on disk, which is the default, and not untrusted"
            raise Unsupported(f"sandbox {box.id} has no files while it does not run", subject=box.id, hint=hint)
        ready = Prepared(resolved if known.identity is None else replace(resolved, idmap=known.identity.idmap))
        remove_tree(box.directory / "work")  # a volatile overlay is mounted with it once
        waits, goes_on = os.pipe2(os.O_CLOEXEC)
        opened.callback(os.close, goes_on)
        ours.callback(os.close, waits)
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        ours.callback(os.close, null)
        slots = {0: waits, 1: null, 2: native.agent(), **place.slots, **held_open(pins(image, ours), ours), **ready.slots(None, ours)}
        running = carry_out(StartInputs(replace(place, directory=box.directory), ready, slots), f"dockless files of {box.id}")
    opened.callback(running.close)
    identity = ready.resolved.identity
    return door.Entrance(box.id, place.directory, ready.plan, identity, "", running.keeper_pid, running.keeper_pidfd, partial(gone, box.id))


def _door_of(box: Box, opened: contextlib.ExitStack) -> Path:
    """A directory for the door. One that is there is of somebody who was killed."""
    place = box.directory / FILES
    remove_tree(place)
    with paths.writing("the directory of a door", place):
        place.mkdir(0o700)
    opened.callback(remove_tree, place)
    return place


def _at_rest(known: Document) -> Spec:
    """A spec with the sandbox's files, its ids and its rights, and with nothing that its program would want. Binds that are gone are left
    out."""
    spec = known.spec
    return Spec(
        (_PROGRAM,),
        spec.image,
        entrypoint=(),
        user=spec.user,
        groups=spec.groups,
        profile=spec.profile,
        root=spec.root,
        mounts=tuple(mount for mount in spec.mounts if mount.kind != "bind" or os.path.exists(mount.source)),
        namespaces=Namespaces(user=spec.namespaces.user),
        cap_add=spec.cap_add,
        cap_drop=spec.cap_drop,
        seccomp=spec.seccomp,
        umask=spec.umask,
    )
