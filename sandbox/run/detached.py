"""Sandboxes that outlive whoever started them. No process of Python stays behind; what is known of one is in its directory: ``run.box``."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence

from dockless.base import paths, settings
from dockless.base.dataclass import replace
from dockless.base.path import Path
from dockless.base.typing import TYPE_CHECKING
from dockless.base.waits import readable
from dockless.errors import BadInput, Unsupported
from dockless.sandbox.features import probe
from dockless.sandbox.names import check_id
from dockless.sandbox.plan.plan import SLOT_STDERR, SLOT_STDOUT
from dockless.sandbox.restart import Restart, check_policy
from dockless.sandbox.run import documents, ending, listening, process, records, restarting
from dockless.sandbox.run.box import Box, everything, find, get
from dockless.sandbox.run.children import collect_ended, collect_later
from dockless.sandbox.run.choosing import chosen
from dockless.sandbox.run.documents import Document
from dockless.sandbox.run.ending import STDIN
from dockless.sandbox.run.host_names import group_name, keeper_name
from dockless.sandbox.run.places import DETACHED, FOREGROUND, root, taken
from dockless.sandbox.run.start import (
    Place,
    bound_disk,
    carry_out,
    collect,
    document_of,
    find_image,
    hold,
    keep_layers,
    make_cgroup,
    new_id,
    note_layers,
    occupy,
    pins,
    warnings_of,
)
from dockless.sandbox.spec import Spec

if TYPE_CHECKING:
    from socket import socket

    from dockless.images import Image
    from dockless.native.userns import SharedNetwork

__all__ = ["create", "find", "get", "list_all", "restart_by_policy", "start", "start_existing"]
NEVER = Restart()
_GLANCE = 0.0005
"""Seconds between looks for a file that is there already nearly always."""


def list_all(state_root: Path | None = None) -> list[Box]:
    """Every detached sandbox of this state directory, by id."""
    return list(everything(state_root, kinds=(DETACHED,)))


def create(
    spec: Spec,
    *,
    id: str | None = None,
    labels: Mapping[str, str] | None = None,
    remove: bool = False,
    gpus: str = "",
    restart: Restart = NEVER,
) -> Box:
    """Write a sandbox down for ``start_existing``. Nothing runs and nothing is leased; its image stays in the store until it is removed.

    ``gpus``: what is to be leased when it is first started. Errors: ``BadInput`` if the id is taken, ``UnknownImage``, ``Unwritable``."""
    id = check_id(id) if id else new_id()
    image = find_image(spec.image)
    made = Box(id, root(DETACHED) / id)
    if root(FOREGROUND).joinpath(id).exists() or not paths.make_new(made.directory):
        raise taken(id)
    try:
        with contextlib.ExitStack() as opened:
            pins(image, opened)
            warnings = bound_disk(spec, made.directory) + _keep_image(image, made.directory)
        asked = Document(spec, "", time.time(), os.geteuid(), "", dict(labels or {}), warnings, image.digest)
        documents.write(made.directory, replace(asked, removed=remove, gpus=gpus, restart=restart))
    except BaseException:
        made.remove()
        raise
    return made


def start(
    spec: Spec,
    *,
    id: str | None = None,
    owner: int | None = None,
    labels: Mapping[str, str] | None = None,
    state_root: Path | None = None,
    remove: bool = False,
    restart: Restart = NEVER,
    leased: Sequence[socket] = (),
    network: SharedNetwork | None = None,
    user: int | None = None,
    controllers: Sequence[str] = (),
) -> Box:
    """Start a sandbox that goes on without us. Returns when its program has been exec'd; on an error nothing is left behind.

    Reads no settings: 128 MiB of output are kept where the spec does not say. ``owner``: the host user it runs for (root only).
    ``remove``: nothing of it is kept at its end. ``restart``: its restart policy. ``leased``: the lease of its GPUs, where there is one
    already. ``network``: what it enters instead of a network of its own, if it does not have the host's. ``user``: in
    whose group its cgroup lies, ``cgroups.users``. ``controllers``: what its cgroup has besides those of its limits, where this host has
    them. Errors: ``BadInput`` if the id is taken, and all of ``Sandbox``'s."""
    id = check_id(id) if id else new_id()
    spec = _with_log_size(spec)
    image = find_image(spec.image)
    probe()  # before anything is made that a process would be needed to remove
    made = Box(id, root(DETACHED, state_root) / id)
    asked = Document(spec, "", time.time(), owner or os.geteuid(), labels=dict(labels or {}), removed=remove, restart=restart)
    with contextlib.ExitStack() as opened:
        place = None
        if not root(FOREGROUND, state_root).joinpath(id).exists():
            place = occupy(made.directory, opened, kept=True, removed=remove)
        if place is None:
            raise taken(id)
        try:
            opened.enter_context(chosen(made.directory))
            _start(asked, made, image, place, owner, opened, leased=leased, network=network, user=user, controllers=controllers)
        except BaseException as error:
            opened.close()  # the lock, or it would be taken for one that lives
            try:
                made.remove()
            except Exception as cleanup:
                error.add_note(f"while cleaning up: {cleanup}")
            raise
    return made


def refuse_foreground(box: Box) -> None:
    """``Unsupported`` for a foreground one."""
    if box.foreground:
        hint = "start it again in the program that starts it, or begin detached: dockless run -d"
        raise Unsupported(f"sandbox {box.id} is in the foreground, and runs once", subject=box.id, hint=hint)


def check_startable(box: Box) -> None:
    """The same, and ``BadInput`` for one that runs."""
    refuse_foreground(box)
    if box.alive:
        raise BadInput(f"sandbox {box.id} runs already", subject=box.id, hint=f"dockless restart {box.id}, or stop it first")


def start_existing(box: Box, *, spec: Spec | None = None, labels: Mapping[str, str] | None = None, leased: Sequence[socket] = ()) -> None:
    """Start one that was only created, or has ended: its spec, image, labels and private layer stay, and its output is added to.

    ``spec``, ``labels``: with the GPUs that were ``leased`` for it. Errors: those of ``check_startable``, and all of ``Sandbox``'s: it is
    then as it was before. How it ended before is forgotten when it runs."""
    check_startable(box)
    with chosen(box.directory):
        box = box.present  # nobody renames it any more
        check_startable(box)
        known = box.document
        asked = replace(known, spec=spec or known.spec, labels=dict(known.labels if labels is None else labels))
        held = restarting.holds(box.directory)
        try:
            _begin(replace(asked, restarts=0), box, leased=leased)
        except BaseException:
            if not held:  # it was stopped, and still is
                restarting.forget(box.directory)
            raise


def restart_by_policy(box: Box, lock: int) -> None:
    """The same by its restart policy, by one who holds the lock of that, and while nobody else chooses."""
    known = box.document
    _begin(replace(known, restarts=known.restarts + 1), box, lock)


def set_restart(box: Box, policy: Restart) -> None:
    """Another restart policy, also while it runs; its restarts are counted on. ``BadInput`` where it excludes one, ``Unsupported`` for a
    foreground one, errors of ``restarting.change``: it then has the one that it had."""
    refuse_foreground(box)
    with chosen(box.directory):
        known = box.document
        check_policy(policy, removed=known.removed, ttl=known.spec.ttl or known.ends, idle_timeout=known.spec.idle_timeout)
        if not policy or box.state() in ("starting", "running"):
            with contextlib.ExitStack() as opened:
                keeper = -1
                if policy:
                    collect_later(box.pid)
                    keeper = box.pidfd()
                    opened.callback(os.close, keeper)
                restarting.change(box.directory, policy, known.restarts, keeper)
        with paths.writing("the records of a sandbox", box.directory):
            restarting.set_when(box.directory, policy, known.restarts)
        box.change(lambda known: replace(known, restart=policy))


def _begin(asked: Document, box: Box, lock: int = -1, leased: Sequence[socket] = ()) -> None:
    probe()  # before anything is made that a process would be needed to remove
    image = find_image(asked.image if asked.spec.image != "host" else "host")
    asked = replace(asked, spec=_with_log_size(asked.spec))
    ending.clear(box)
    with _put_back_on_failure(box), contextlib.ExitStack() as opened:
        place = hold(box.directory, opened, kept=True, removed=asked.removed)
        _start(asked, box, image, place, None if asked.owner == os.geteuid() else asked.owner, opened, lock, leased)


@contextlib.contextmanager
def _put_back_on_failure(box: Box) -> Iterator[None]:
    """What is written down of its last run is set aside, and comes back where the block fails. Only names change, which a full disk
    takes."""
    with paths.writing("the records of a sandbox", box.directory):
        records.set_aside(box.directory)
    try:
        yield
    except BaseException as error:
        try:
            ending.end(box)
            ending.clear(box)
            records.put_back(box.directory)
        except Exception as cleanup:
            error.add_note(f"while cleaning up: {cleanup}")
        raise
    records.forget(box.directory)


def _start(
    asked: Document,
    made: Box,
    image: Image,
    place: Place,
    owner: int | None,
    opened: contextlib.ExitStack,
    lock: int = -1,
    leased: Sequence[socket] = (),
    network: SharedNetwork | None = None,
    user: int | None = None,
    controllers: Sequence[str] = (),
) -> None:
    """``asked``: what is known before it is resolved. ``lock``: of the restarter that calls us."""
    spec = asked.spec
    with paths.writing("the records of a sandbox", made.directory):
        records.reserve(made.directory)
        if asked.restart:
            orders = restarting.orders(asked.restart, asked.restarts)
            restarting.set_when(made.directory, asked.restart, asked.restarts)
            place.slots.update(restarting.slots(orders, made.directory, opened, lock))
    unbounded = bound_disk(spec, made.directory)
    name = group_name(made.directory)
    group = make_cgroup(spec, name, user, controllers)
    if group is not None:
        opened.callback(group.close)
    stdin = _standard_input(spec, made.directory)
    opened.callback(os.close, stdin)
    (out_reader, out), (err_reader, err) = _pipe(opened), _pipe(opened)
    start = collect(spec, image, place, group, (stdin, out, err), opened, owner=owner, leased=leased, network=network)
    start.slots.update({SLOT_STDOUT: out_reader, SLOT_STDERR: err_reader})
    keep_layers(start, opened)
    warnings = warnings_of(spec, group) + unbounded + start.ready.resolved.warnings + start.warnings + _keep_image(image, made.directory)
    known = document_of(asked, image, start, group, warnings)
    documents.write(made.directory, known)
    with paths.writing("the records of a sandbox", made.directory):
        documents.note(made.directory, documents.PLAN, start.ready.raw(detached=True))
        if start.ready.plan.health is not None:
            records.reserve(made.directory, records.HEALTH_ROOM)
    removed_group = group.path.name if group is not None and place.removed else ""
    with listening.told(made.directory, lambda: documents.written(known)) if place.removed else contextlib.nullcontext():
        running = carry_out(start, keeper_name(name), cgroup=removed_group, detached=True)
    try:
        note_layers(start, running.keeper_pid)
        _await_started(made, running, removed=bool(place.removed))
    finally:
        collect_ended()
        collect_later(running.keeper_pid)
        running.release()


def _with_log_size(spec: Spec) -> Spec:
    return spec if spec.log_size else replace(spec, log_size=settings.DEFAULTS["logs.size"])


def _standard_input(spec: Spec, directory: Path) -> int:
    """Nothing, or a FIFO that whoever attaches opens by its name. Its reader has it open for writing, too, so it never ends. Everybody may
    write to it who comes to its directory, which is its owner's: it will be the program's own. fifo(7)"""
    if not spec.interactive or spec.tty:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    path = directory / STDIN
    with paths.writing("the standard input of a sandbox", directory):
        os.mkfifo(path, 0o600)
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        os.fchmod(fd, 0o602)
    return fd


def _pipe(opened: contextlib.ExitStack) -> tuple[int, int]:
    ends = os.pipe2(os.O_CLOEXEC)
    for fd in ends:
        opened.callback(os.close, fd)
    return ends


def _await_started(made: Box, running: process.Process, *, removed: bool) -> None:
    """Until the keeper has written ``started``, which it does while its sandbox is being made: whoever asks right after us must find it."""
    started = made.directory / "started"
    while not started.exists():
        ended = running.poll()
        if ended is not None and not started.exists():
            if removed and not ended.killed and not ended.lost:  # it was there, and is gone with all the rest
                return
            raise paths.unwritable("the records of a sandbox", made.directory)
        readable(running.fileno(), _GLANCE)


def _keep_image(image: Image, directory: Path) -> tuple[str, ...]:
    """The image stays in the store until the sandbox is removed; a warning where it cannot."""
    if image.is_host:
        return ()
    from dockless import images

    if os.path.lexists(directory / "image"):  # of an earlier start
        return ()
    try:
        images.Store().keep(image, directory / "image")
    except OSError as error:
        return (f"while it does not run its image may be removed, and it can then be neither started nor committed: {error.strerror}",)
    return ()
