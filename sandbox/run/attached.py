"""One sandbox as a context manager: image, cgroup, plan and process under one roof, undone backwards.

::

    with Sandbox(Spec(argv=("python3", "-c", "print(1)"))) as box:
        exit = box.wait()
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from dockless.base import paths
from dockless.base.idmaps import default_map
from dockless.base.locks import mark_in_use
from dockless.base.units import format_duration
from dockless.cgroups import Cgroup, Delegation, Limits, Usage, find_delegation
from dockless.errors import BadInput, CgroupError, LimitUnavailable, Unsupported
from dockless.native.userns import namespace_fd
from dockless.sandbox.plan.builder import NEW_NS, Section
from dockless.sandbox.plan.plan import SLOT_FREE, SLOT_IMAGE, SLOT_LOCK, SLOT_STATE, Plan, filled_in
from dockless.sandbox.resolve import UNTRUSTED_PIDS
from dockless.sandbox.resolved import Identity
from dockless.sandbox.run import process
from dockless.sandbox.run.prepared import Prepared, prepared
from dockless.sandbox.run.process import Exit, Process
from dockless.sandbox.run.reconcile import PREFIX, end, reconcile
from dockless.sandbox.spec import Spec, check_id

if TYPE_CHECKING:
    from dockless.images import Image


def new_id() -> str:
    """A fresh sandbox id."""
    return "s-" + os.urandom(5).hex()


def find_image(reference: str) -> Image:
    """The image of a spec: the store's, or the pseudo-image ``host``. ``UnknownImage``"""
    from dockless import images

    return images.host_image() if reference == "host" else images.Store().get(reference)


def hold_image(image: Image, opened: contextlib.ExitStack) -> dict[int, int]:
    """The slot of the image's lease: the keeper inherits it, so the image stays in the store for as long as the sandbox lives."""
    if image.is_host:
        return {}
    from dockless import images

    fd = images.Store().lease(image)
    opened.callback(os.close, fd)
    return {SLOT_IMAGE: fd}


class Sandbox:
    """``stdin``, ``stdout``, ``stderr``: fds of ours for the job, its own 0-2 by default. Entering starts it; leaving ends it and removes
    all of it."""

    def __init__(self, spec: Spec, *, id: str | None = None, stdin: int = 0, stdout: int = 1, stderr: int = 2, times: bool = False) -> None:
        self.spec = spec
        self.id = check_id(id) if id else new_id()
        self.plan: Plan | None = None
        self.identity: Identity | None = None
        self.warnings: tuple[str, ...] = ()
        self.image_digest = ""
        self._stdio = (stdin, stdout, stderr)
        self._times = times
        self._process: Process | None = None
        self._cgroup: Cgroup | None = None
        self._exit: Exit | None = None
        self._stack = contextlib.ExitStack()

    @property
    def process(self) -> Process:
        if self._process is None:
            raise Unsupported("the sandbox has not been started", hint="use it as a context manager: with Sandbox(spec) as box")
        return self._process

    @property
    def cgroup(self) -> Cgroup | None:
        """Its cgroup, or None where the host has no place for one."""
        return self._cgroup

    def __enter__(self) -> Sandbox:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def _start(self) -> None:
        image = find_image(self.spec.image)
        self.image_digest = image.digest
        self._claim(self._make_group)
        self.warnings = warnings_of(self.spec, self._cgroup)
        if self._cgroup is not None:
            self._stack.callback(end, self._cgroup)
            mark_in_use(self._cgroup.fd)
        ready = prepared(self.spec, image, has_cgroup=self._cgroup is not None)
        self.plan, self.identity = ready.plan, ready.resolved.identity
        self.warnings += ready.resolved.warnings
        directory = paths.state() / "running" / self.id
        removed = self.id if ready.resolved.layers else ""
        with contextlib.ExitStack() as opened:
            fds = dict(enumerate(self._stdio)) | hold_image(image, opened) | ready.slots(self._cgroup, opened)
            if removed:
                self._claim(lambda: paths.make_new(directory))
                self._stack.callback(remove_tree, directory)
                with paths.writing("the directory of a sandbox", directory):
                    for slot, path in ((SLOT_LOCK, directory), (SLOT_STATE, directory.parent)):
                        fds[slot] = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                        opened.callback(os.close, fds[slot])
                    mark_in_use(fds[SLOT_LOCK])
            raw = filled_in(
                ready.raw(times=self._times), directory=str(directory), removed=removed, cgroup=PREFIX + self.id if self._cgroup else ""
            )
            self._process = process.start(self.plan, raw, fds, name=f"dockless {self.id}")
        self._stack.callback(self._process.close)

    def _claim(self, make: Callable[[], bool]) -> None:
        """Make what bears this sandbox's name. What a crash left by that name is removed first. ``BadInput``: another one has it."""
        if not make() and not (reconcile() and make()):
            hint = "choose another name, or wait until it has ended"
            raise BadInput(f"a sandbox {self.id} runs already", subject=self.id, hint=hint)

    def _make_group(self) -> bool:
        """Whether there was no such cgroup. ``LimitUnavailable``"""
        try:
            self._cgroup = make_cgroup(self.spec, PREFIX + self.id)
        except CgroupError as error:
            if isinstance(error.__cause__, FileExistsError):
                return False
            raise
        return True

    def wait(self, timeout: float | None = None) -> Exit:
        """How it ended, with the cgroup's account where there is one. ``TimeoutError`` if it still runs after ``timeout`` seconds."""
        if self._exit is None:
            self._exit = with_usage(self.process.wait(timeout), self._cgroup.usage(pressure=False) if self._cgroup else None)
        return self._exit

    def kill(self) -> None:
        """SIGKILL to everything inside. ``SandboxError`` in a forked child, as for ``wait``."""
        self.process.kill()  # first, so that the keeper knows that it was killed
        if self._cgroup is not None:
            self._cgroup.kill()

    def send_signal(self, number: int) -> None:
        """A signal to the job's own process."""
        self.process.send_signal(number)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process is not None and self._process.forked:
            return  # all of it is the parent's
        try:
            if self._process is not None and self._exit is None:
                self.kill()
                self._process.wait()
        finally:
            try:
                self._stack.close()
            except Exception as cleanup:
                if error is None:
                    raise
                error.add_note(f"while cleaning up: {cleanup}")


def make_cgroup(spec: Spec, name: str) -> Cgroup | None:
    """The cgroup of a sandbox with its limits, or None where there is no place and nothing was asked for. ``LimitUnavailable``"""
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
    return Cgroup.create(name, limits, delegation=place, best_effort=spec.best_effort)


def _limits(spec: Spec, place: Delegation) -> Limits:
    """What was asked for, and the process cap of ``untrusted`` where it can be had."""
    if spec.profile == "untrusted" and spec.limits.pids_max is None and "pids" in place.controllers:
        return replace(spec.limits, pids_max=UNTRUSTED_PIDS)
    return spec.limits


def warnings_of(spec: Spec, cgroup: Cgroup | None) -> tuple[str, ...]:
    """What this host does not enforce: limits under ``best_effort``, and the process cap that ``untrusted`` brings where it can be had."""
    place = find_delegation(ask_systemd=False)
    warnings = tuple(cgroup.warnings) if cgroup else ()
    if cgroup is None and spec.limits != Limits():
        warnings += (f"no limit is enforced: {place.why}",)
    if spec.profile == "untrusted" and spec.limits.pids_max is None and "pids" not in place.controllers:
        warnings += ("the untrusted profile's process cap is not enforced: this host has no pids controller in cgroup v2",)
    return warnings


def with_usage(ended: Exit, usage: Usage | None) -> Exit:
    """The exit with the cgroup's numbers; what the cgroup does not count stays as the keeper counted it."""
    if usage is None:
        return ended
    own = ended.usage
    if own is not None:
        usage = replace(
            usage,
            cpu_seconds=own.cpu_seconds if usage.cpu_seconds is None else usage.cpu_seconds,
            user_seconds=own.user_seconds if usage.user_seconds is None else usage.user_seconds,
            system_seconds=own.system_seconds if usage.system_seconds is None else usage.system_seconds,
        )
    return replace(ended, usage=usage, oom_killed=bool(usage.oom_kills))


def remove_tree(directory: Path) -> None:
    """Remove a sandbox's directory with the rights over every owner in it: an errand for the launcher, in the user namespace where we are
    not root. Where it holds no directory, all of it is ours and goes at once: also where there is no process to be had."""
    if not os.path.lexists(directory) or _removed_flat(directory):
        return
    section = Section()
    fds = {}
    if os.geteuid() != 0:
        section.add("SETNS", SLOT_FREE, x=NEW_NS["user"])
        fds[SLOT_FREE] = namespace_fd(default_map())
    section.add("REMOVE", a=str(directory))
    process.errand(Plan(tuple(section.ops), None, {SLOT_FREE: "user namespace"}), fds)


def _removed_flat(directory: Path) -> bool:
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        with os.scandir(fd) as entries:
            names = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
        if any(names.values()):
            return False
        for name in names:
            os.unlink(name, dir_fd=fd)
        os.rmdir(directory)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def explain(spec: Spec) -> Prepared:
    """What a start of the spec on this host would carry out, without starting anything."""
    return prepared(spec, find_image(spec.image), has_cgroup=find_delegation(ask_systemd=False).path is not None)


def besides(ready: Prepared) -> list[str]:
    """What holds such a sandbox and is no operation of its plan, in plain words: limits, the device filter, the time limit."""
    resolved, plan = ready.resolved, ready.plan
    said = [f"limit {w.file} to {w.value}" for w in _limits(resolved.spec, find_delegation(ask_systemd=False)).writes()]
    if ready.rules and resolved.has_cgroup:
        said.append("allow these devices alone: " + ", ".join(map(str, ready.rules)))
    if plan.timeout:
        after = format_duration(plan.timeout)
        asked = f"send signal {plan.stop_signal} after {after}, and {format_duration(plan.grace)} later " if plan.grace else ""
        said.append(f"{asked}kill everything inside" + ("" if asked else f" after {after}"))
    return said
