"""The life of a sandbox after its start, the same for one that a program holds and for one that it finds.

::

    box = dockless.start("python:3.12", ["python", "-m", "http.server"], id="web", labels={"team": "a"})
    box = dockless.Sandbox.open("web")               in any program of the same user
    box.pause(); box.resume(); box.update(memory="2G"); box.stop(); box.restart(); box.rm()
    box.snapshot("web:before"); box.fork(3)          its files as an image; three more like it
    dockless.list(labels={"team": "a"}, state="running")
"""

from __future__ import annotations

import _thread
import contextlib
import os
from collections.abc import Iterator, Mapping

from dockless.base.checks import checked
from dockless.base.typing import TYPE_CHECKING, Any, cast
from dockless.base.units import parse_duration
from dockless.base.waits import Pause, blocking
from dockless.errors import BadInput, SandboxGone, Unsupported
from dockless.sandbox.state import RUNNING, State

if TYPE_CHECKING:
    from dockless._box import Sandbox
    from dockless.cgroups import Limits
    from dockless.images import Image
    from dockless.sandbox.commit import Changes
    from dockless.sandbox.run.box import Box
    from dockless.sandbox.run.foreground import ForegroundSandbox as Inner
    from dockless.sandbox.run.health import Health
    from dockless.sandbox.run.logfile import Row
    from dockless.sandbox.run.networks import Leased
    from dockless.sandbox.spec import Spec

OUR_LABELS = ("job", "queue", "gpus")
"""Labels that dockless itself gives: the daemon's jobs have them, and sandboxes with simulated GPUs."""


def check_labels(given: object) -> dict[str, str]:
    """The labels of ``Options``. ``BadInput`` for a name that is empty, has an ``=`` in it, or is one of ours."""
    labels = cast("Mapping[str, str]", given or {})
    for name in labels:
        if not name or "=" in name:
            raise BadInput(f"label {name!r} is empty or contains '='", subject=name[:80], hint="write NAME=value")
        if name in OUR_LABELS:
            raise BadInput(f"the label {name} is dockless's own", subject=name, hint=f"choose another name, like my-{name}")
    return {**labels}


def state_of(box: Box) -> State:
    state = box.state()
    return "paused" if state == "running" and box.paused() else state


def refuse_job(box: Box) -> None:
    """``BadInput`` for a sandbox of the daemon's: it is ended through the daemon, which keeps the records."""
    with contextlib.suppress(SandboxGone):
        labels = box.labels
        if "job" in labels or "queue" in labels:
            job = labels.get("job", box.id)
            raise BadInput(f"sandbox {box.id} belongs to job {job} of the queue", subject=box.id, hint=f"dockless cancel {job}")


def remove(box: Box, *, force: bool = False) -> None:
    """Everything of it. ``BadInput`` while it runs, unless by force."""
    refuse_job(box)
    if not force and box.alive:
        raise BadInput(f"sandbox {box.id} still runs", subject=box.id, hint=f"dockless stop {box.id}, or rm --force")
    box.remove()


def start(box: Box) -> None:
    """Carry out what was written down when it was created, or again what has ended: with the same GPUs if it has had any."""
    from dockless import _gpus as gpus
    from dockless.base.dataclass import replace
    from dockless.sandbox.run import detached

    refuse_job(box)
    detached.check_startable(box)
    known = box.document
    wanted = "device=" + ",".join(known.spec.gpus) if known.spec.gpus else known.gpus
    if not wanted:
        return detached.start_existing(box)
    with gpus.lease(wanted) as lease:
        simulated = {"gpus": "simulated"} if lease.simulated else {}
        detached.start_existing(box, spec=replace(known.spec, gpus=lease.uuids), labels=known.labels | simulated, leased=lease.sockets)


def wanted_after_boot() -> list[Box]:
    """Those whose restart policy is ``always``, and those of ``unless-stopped`` that nobody has stopped, as far as they do not run."""
    from dockless.sandbox.run import detached, restarting

    found = []
    for box in detached.list_all():
        with contextlib.suppress(SandboxGone):
            known = box.document
            wanted = known.restart.when == "always" or (known.restart.when == "unless-stopped" and restarting.holds(box.directory))
            if wanted and known.begun and not box.alive:
                found.append(box)
    return found


def restart(box: Box, grace: float | None = None) -> None:
    """Stop it if it runs, and start it again."""
    for _ in restarting(box, grace):
        pass


def restarting(box: Box, grace: float | None = None) -> Iterator[None]:
    """The same in the two steps of ``Box.stopping``."""
    from dockless.sandbox.run import detached

    refuse_job(box)
    detached.refuse_foreground(box)  # before anything is stopped
    if box.document.removed and box.alive:
        hint = "start another one like it; one without --rm can be restarted"
        raise Unsupported(f"sandbox {box.id} is removed at its end, and runs once", subject=box.id, hint=hint)
    yield from box.stopping(grace)
    start(box)


def update(box: Box, limits: Limits | None, restart: str | None) -> None:
    """Other limits, another restart policy; None for what stays."""
    from dockless.sandbox.restart import parse_restart
    from dockless.sandbox.run import detached

    policy = None if restart is None else parse_restart(restart)
    refuse_job(box)
    if limits is not None:
        box.update(limits)
    if policy is not None:
        detached.set_restart(box, policy)


def described(box: Box, leased: Leased | None = None) -> dict[str, Any] | None:
    """One sandbox as a record for scripts; None if it went away while we looked. ``leased``: what is known of all networks. ``reason``:
    why a vanished one has no exit, or what keeps one from being restarted. ``next_start``: when its restart policy starts it, in seconds
    since 1970."""
    from dockless.sandbox.run.restarting import due

    state: State = box.state()
    reason = box.why_vanished() if state == "vanished" else box.trouble() if state in ("restarting", "exited") else ""
    try:
        known = box.document
    except SandboxGone:
        return _damaged(box, state_of(box), reason) if box.directory.is_dir() else None
    if state == "running" and box.paused(known):
        state = "paused"
    spec = known.spec
    return {
        "id": box.id,
        "image": spec.image,
        "command": [*(spec.entrypoint or ()), *spec.argv],
        "state": state,
        "pid": box.pid if state in RUNNING else 0,
        "created": known.created,
        **_network(box, spec, leased, runs=state in RUNNING),
        "gpus": [*spec.gpus],
        "simulated": bool(spec.gpus) and (known.labels.get("gpus") == "simulated" or _simulated()),
        "labels": known.labels,
        "restart": str(known.restart),
        "restarts": known.restarts,
        "next_start": due(box.directory) if state == "restarting" else None,
        **_exit(box, state),
        "health": _health(box),
        "ends": known.ends or None,
        "reason": reason,
        "directory": str(box.present.directory),
        "foreground": box.foreground,
    }


def _damaged(box: Box, state: State, reason: str) -> dict[str, Any]:
    """A sandbox of which nothing is known but that it is there."""
    known = {"id": box.id, "state": state, "reason": reason, "directory": str(box.present.directory), "foreground": box.foreground}
    unknown = {"image": "", "command": [], "pid": 0, "created": box.directory.stat().st_mtime, "gpus": [], "simulated": False}
    unknown |= {"network": "none", "networks": [], "ports": []}
    unknown |= {"labels": {}, "restart": "no", "restarts": 0, "next_start": None}
    return {**unknown, **_exit(box, state), "health": _health(box), "ends": None, **known}


def _network(box: Box, spec: Spec, leased: Leased | None, *, runs: bool) -> dict[str, Any]:
    """``network``: as its spec says it. ``networks``: those by name, with what it has there while it runs. ``ports``: of the host."""
    from dockless.base.records import plain

    found: dict[str, Any] = {"network": spec.network, "networks": [], "ports": plain(spec.ports)}
    if not spec.endpoints:
        return found
    from dockless.sandbox.run import networks

    has = {lease.network: lease for lease in networks.of(box, leased)} if runs else {}
    for endpoint in spec.endpoints:
        lease = has.get(endpoint.network)
        addresses, mac, names = (lease.addresses, lease.mac, lease.names) if lease else ((), "", ())
        found["networks"].append({"name": endpoint.network, "addresses": [*addresses], "mac": mac, "names": [*names]})
    return found


def _health(box: Box) -> dict[str, Any] | None:
    if not os.path.lexists(box.directory / "health"):
        return None
    from dockless.base.records import plain
    from dockless.sandbox.run.health import health_of

    found = health_of(box)
    return None if found is None else plain(found)


def _exit(box: Box, state: State) -> dict[str, Any]:
    from dockless.base.records import plain

    ended = box.exit() if state in ("exited", "restarting") else None
    return {"exit_code": None if ended is None else ended.exit_code, "exit": None if ended is None else plain(ended)}


def _simulated() -> bool:
    return bool(os.environ.get("DOCKLESS_SIMULATED_GPUS"))


class LifeCycle:
    """What ``Sandbox`` can do at any time, whoever started it."""

    @property
    def _found(self) -> Box:
        """The sandbox by its directory."""
        raise NotImplementedError

    @property
    def _renaming(self) -> _thread.LockType:
        """Of who renames it by this handle."""
        raise NotImplementedError

    @contextlib.contextmanager
    def _now(self) -> Iterator[Box]:
        """The sandbox for one call, which means it to its end, whatever it is called meanwhile. One that is gone is given all
        the same, not held: what is then asked of it raises ``SandboxGone``."""
        with contextlib.ExitStack() as opened:
            try:
                box = opened.enter_context(self._found.held())
            except SandboxGone:
                with self._renaming, contextlib.suppress(SandboxGone):  # perhaps it is called something else just now
                    box = self._found
                    box = opened.enter_context(box.held())
            yield box

    @property
    def id(self) -> str:
        return self._found.id

    @property
    def name(self) -> str:
        """The same: an id is the name that it was given, or one made up."""
        return self.id

    @property
    def labels(self) -> dict[str, str]:
        """Those that it was started with. ``SandboxGone``"""
        with self._now() as box:
            return box.labels

    @property
    def state(self) -> State:
        """``created``, ``starting``, ``running``, ``paused``, ``exited``; ``restarting`` where it has ended and its restart policy starts
        it anew; ``vanished`` where nobody can say how it ended."""
        with self._now() as box:
            return state_of(box)

    @property
    def health(self) -> Health | None:
        """What the checks of its health say, after its end what they said last; None where it has none."""
        from dockless.sandbox.run.health import health_of

        with self._now() as box:
            return health_of(box)

    @checked
    def wait_healthy(self, timeout: float | None = None) -> Health:
        """Until a check says that it is healthy. ``TimeoutError`` after ``timeout`` seconds, ``SandboxGone`` where it ends before,
        ``BadInput`` where it has no checks."""
        from dockless.sandbox.run.health import HealthWatch

        with self._now() as box, HealthWatch(box) as watch:
            return watch.wait(timeout)

    @checked
    def extend(self, seconds: str | float) -> float:
        """It ends in so many seconds, later or earlier than its ``ttl`` or an ``extend`` before said: when that is, in seconds since 1970.

        The other deadlines stay: its ``timeout``, which nothing moves, and its ``idle_timeout``, which begins anew with each ``exec``, file
        call, ``attach``, key typed at its terminal and ``extend``, and does not pass while an ``exec`` runs. What it does
        itself, what it is given on a pipe, its checks and looking at it count for nothing. ``SandboxGone``"""
        from dockless.sandbox.run.ttl import extend

        with self._now() as box:
            return extend(box, parse_duration(seconds, "seconds"))

    def inspect(self) -> dict[str, Any]:
        """All that ``dockless inspect`` says of it. ``SandboxGone``"""
        from dockless.sandbox.run.process import missing

        with self._now() as box:
            found = described(box)
        if found is None:
            raise missing(self.id)
        return found

    def pause(self) -> None:
        """Stop every process inside where it stands, until ``resume``. ``Unsupported`` without a cgroup v2 of its own, ``SandboxGone``"""
        with self._now() as box:
            box.pause()

    def resume(self) -> None:
        """Let them go on."""
        with self._now() as box:
            box.resume()

    def update(self, *, restart: str | None = None, **limits: Any) -> None:
        """Other limits while it runs, by the keywords of ``Options`` for limits: ``update(memory="2G", cpus=1.5)``. The rest stay.
        ``restart``: another restart policy, as ``dockless.start`` has it, also of one that does not run.

        ``LimitUnavailable`` where this host cannot keep one, ``Unsupported`` without a cgroup v2 of its own, or for the policy of a
        foreground sandbox; ``BadInput``, ``SandboxGone``"""
        from dockless._options import unknown_keyword
        from dockless.cgroups.limits import KEYWORDS, Limits

        known = [keyword.name for keyword in KEYWORDS]
        if unknown := sorted(limits.keys() - known):
            raise unknown_keyword(unknown[0], (*known, "restart"))
        asked = Limits.parse(**limits)
        with self._now() as box:
            update(box, asked if limits else None, restart)

    def rename(self, name: str) -> None:
        """Another id, also while it runs. ``BadInput`` where it is taken, while somebody starts it, or acts on its files and it does
        not run; ``Unsupported`` for a foreground one, or one that is removed at its end: its keeper removes it by its name."""
        with self._now() as box:
            runs = box.alive
        if not runs:  # its files are mounted by its name
            self._let_go()
        with self._renaming:
            refuse_job(self._found)
            self._renamed(self._found.rename(name))

    def _renamed(self, box: Box) -> None:
        raise NotImplementedError

    def _let_go(self) -> None:
        """End what acts on its files, which nobody else may change meanwhile."""
        raise NotImplementedError

    def start(self) -> None:
        """Start what ``dockless.create`` made, or again what has ended, as it was started: its private files stay, its output is added to.
        ``BadInput`` for one that runs, ``Unsupported`` for one in the foreground, and what ``dockless.start`` raises: it is then as it was
        before."""
        self._let_go()
        with self._now() as box:
            start(box)

    def restart(self, grace: str | float | None = None) -> None:
        """``stop``, and ``start``. Also one that has ended. ``Unsupported`` for one that runs in the foreground, or removed at its end."""
        self._let_go()
        with self._now() as box:
            restart(box, None if grace is None else parse_duration(grace, "grace"))

    def rm(self, *, force: bool = False) -> None:
        """Remove all of it: output, records, private files. ``BadInput`` while it runs, unless by force."""
        self._let_go()
        with self._now() as box:
            remove(box, force=force)

    @property
    def inner(self) -> Inner | Box:
        """The object of ``dockless.sandbox``."""
        raise NotImplementedError

    def _acted_on(self) -> contextlib.AbstractContextManager[Inner | Box]:
        """The same for one call, as ``_now``."""
        raise NotImplementedError

    @checked
    def snapshot(self, name: str | None = None) -> Image:
        """Its files as they are now as an image, tagged ``name`` if that is given: ``dockless.Sandbox(box.snapshot().name, …)``.

        It is ``dockless.commit`` without compression: a running one is copied while it runs, and is paused for what has changed
        meanwhile, ``paused`` seconds of the result. It has what a crash of the machine would leave had everything been written: open files
        as they are, deleted ones not, memory not, volumes and binds not. Raises what ``dockless.commit`` raises; the sandbox then goes on,
        and nothing is left."""
        with self._changes() as changes:
            return changes.commit(name, compression="none")

    @contextlib.contextmanager
    def _changes(self) -> Iterator[Changes]:
        """What it changed of its image, for one call, as ``_now``."""
        from dockless.sandbox.commit import changes_of

        with self._acted_on() as box:
            yield changes_of(box)

    @checked
    def fork(self, n: int = 1) -> list[Sandbox[bytes]]:
        """``n`` detached sandboxes, started as this one was, from a ``snapshot`` of its files: one copy for all.

        Each runs the same command from its beginning with the same limits, mounts and labels; ids are made up. Either all run or none is
        left. The snapshot has no tag; ``dockless prune`` removes it when no fork of it is left. ``Unsupported`` for one with GPUs, which
        cannot be in two sandboxes; what ``snapshot`` and ``dockless.start`` raise."""
        from dockless._forking import fork

        return fork(self, n)

    def logs(self, *, follow: bool = False) -> Iterator[Row]:
        """What a detached one wrote, each ``Row`` a line of bytes; with ``follow`` until it has ended. ``Unsupported`` for a foreground
        one: its starter has it. ``SandboxGone`` for one that was removed."""
        return blocking(self._reading(follow))

    def _reading(self, follow: bool) -> Iterator[Row | Pause]:
        """The same for who waits in a way of their own."""
        with self._now() as box:
            box.check_logged()
        return self._rows(follow)

    def _rows(self, follow: bool) -> Iterator[Row | Pause]:
        with self._now() as box:
            yield from box.reading(follow=follow)
