"""One sandbox as a context manager: image, cgroup, plan and process under one roof, undone backwards.

::

    with ForegroundSandbox(Spec(argv=("python3", "-c", "print(1)"))) as box:
        exit = box.wait()
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType

from dockless.base.locks import mark_in_use
from dockless.base.path import Path
from dockless.base.typing import TYPE_CHECKING, TypeVar
from dockless.cgroups import Cgroup
from dockless.errors import BadInput, CgroupError, SandboxGone, Unsupported, Unwritable
from dockless.sandbox.features import probe
from dockless.sandbox.names import check_id
from dockless.sandbox.plan.plan import Plan
from dockless.sandbox.resolved import Identity
from dockless.sandbox.run import documents, listening
from dockless.sandbox.run.joining import leave_at_end
from dockless.sandbox.run.places import DETACHED, FOREGROUND, GROUP, root, taken
from dockless.sandbox.run.process import ENDS_WITH_IT, Exit, Process, gone, with_usage
from dockless.sandbox.run.removal import remove_cgroup, remove_tree
from dockless.sandbox.run.start import (
    Place,
    bound_disk,
    carry_out,
    collect,
    find_image,
    make_cgroup,
    new_id,
    occupy,
    warnings_of,
)
from dockless.sandbox.spec import Spec

if TYPE_CHECKING:
    from socket import socket

    from dockless.images import Image
    from dockless.sandbox.run.box import Box
    from dockless.sandbox.run.door import Entrance
    from dockless.sandbox.run.prepared import Prepared

T = TypeVar("T")


class ForegroundSandbox:
    """``stdin``, ``stdout``, ``stderr``: fds of ours for the program, our own 0-2 by default. ``leased``: the lease of its
    GPUs, where there is one already. Entering starts it; leaving ends it and removes all of it."""

    has_door = True
    """Whether others may enter it."""

    def __init__(
        self,
        spec: Spec,
        *,
        id: str | None = None,
        stdin: int = 0,
        stdout: int = 1,
        stderr: int = 2,
        times: bool = False,
        size: tuple[int, int] | None = None,
        labels: Mapping[str, str] | None = None,
        leased: Sequence[socket] = (),
    ) -> None:
        self.spec = spec
        self.id = check_id(id) if id else new_id()
        self._named = id is not None
        self._labels = dict(labels or {})
        self.plan: Plan | None = None
        self.identity: Identity | None = None
        self.warnings: tuple[str, ...] = ()
        self.image_digest = ""
        self._stdio = (stdin, stdout, stderr)
        self._times = times
        self._size = size
        self._leased = leased
        self._process: Process | None = None
        self._cgroup: Cgroup | None = None
        self._exit: Exit | None = None
        self._directory: Path | None = None
        self._entrance: Entrance | None = None
        self._stack = contextlib.ExitStack()

    @property
    def process(self) -> Process:
        if self._process is None:
            raise Unsupported("the sandbox has not been started", hint="use it as a context manager: with ForegroundSandbox(spec) as box")
        return self._process

    @property
    def box(self) -> Box:
        """The same as others find it."""
        from dockless.sandbox.run.box import Box

        return Box(self.id, self.directory)

    @property
    def directory(self) -> Path:
        if self._directory is None:
            self._directory = root(FOREGROUND) / self.id
        return self._directory

    @property
    def cgroup(self) -> Cgroup | None:
        """Its cgroup, or None where the host has no place for one."""
        return self._cgroup

    def __enter__(self) -> ForegroundSandbox:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def _start(self) -> None:
        image = find_image(self.spec.image)
        with contextlib.ExitStack() as opened:
            place = self._occupy(image, opened)
            start = collect(self.spec, image, place, self._cgroup, self._stdio, opened, leased=self._leased)
            ready = start.ready
            self._planned(ready)
            self.warnings += start.warnings
            with listening.told(start.place.directory, lambda: self._document(ready).encode("ascii")):
                self._process = carry_out(start, f"dockless {self.id}", cgroup=self._group_name, times=self._times, size=self._size)
        self._stack.callback(self._process.close)
        leave_at_end(self._stack, start.joined)
        self._note(ready)

    def _occupy(self, image: Image, opened: contextlib.ExitStack) -> Place:
        """Its directory and its cgroup."""
        self.image_digest = image.digest
        place = self._place(image, opened)
        self.warnings = bound_disk(self.spec, place.directory)
        self._claim(self._make_group)
        if self._cgroup is not None:
            self._stack.callback(remove_cgroup, self._cgroup)
            mark_in_use(self._cgroup.fd)
        return place

    def _planned(self, ready: Prepared) -> None:
        self.plan, self.identity = ready.plan, ready.resolved.identity
        self.warnings = warnings_of(self.spec, self._cgroup) + self.warnings + ready.resolved.warnings

    @property
    def _group_name(self) -> str:
        return GROUP + self.id if self._cgroup else ""

    def _note(self, ready: Prepared) -> None:
        """For whoever looks for it while it runs: a ``Document`` and its plan in one file. It may have ended by now: its keeper has removed
        the directory then."""
        assert self._process is not None
        text = self._document(ready, keeper=self._process.keeper_pid, init=self._process.pid)
        try:
            documents.note(self.directory, documents.NAME, documents.with_plan(text, ready.raw()))
        except FileNotFoundError:
            pass
        except OSError as error:
            self.warnings += (f"this sandbox is not listed by `dockless ps`: {self.directory}: {error.strerror}",)

    def _document(self, ready: Prepared, **pids: int) -> str:
        """Without its plan."""
        if not ready.noted:
            identity, stop = ready.resolved.identity, ready.plan.stop_signal
            ready.noted = documents.members(spec=self.spec, image=self.image_digest, stop_signal=stop, identity=identity)
        own = documents.members(
            boot_id=documents.boot_id(),
            created=time.time(),
            owner=os.geteuid(),
            cgroup=str(self._cgroup.path) if self._cgroup else "",
            labels=self._labels,
            warnings=self.warnings,
            ends=time.time() + self.spec.ttl if self.spec.ttl else 0.0,
            **pids,
        )
        return f"{{{ready.noted},{own}}}"

    def _place(self, image: Image, opened: contextlib.ExitStack) -> Place:
        """Its directory. The host's own system needs none, so it also runs where none can be made; nobody then finds such a sandbox."""
        directory = self.directory
        if self._named and root(DETACHED).joinpath(self.id).exists():
            raise taken(self.id)
        probe()  # before anything is made that a process would be needed to remove
        try:
            place = self._claim(lambda: occupy(directory, opened, kept=False, door=self.has_door))
        except Unwritable:
            if not image.is_host:
                raise
            return Place(directory, {})
        self._stack.callback(remove_tree, directory)
        return place

    def _claim(self, make: Callable[[], T | None]) -> T:
        """Make what bears this sandbox's name. What a crash left by that name is removed first. ``BadInput``: another one has it."""
        made = make()
        if made is None:
            from dockless.sandbox.run.reconcile import reconcile

            made = make() if reconcile() else None
        if made is None:
            hint = "choose another name, or wait until it has ended"
            raise BadInput(f"a sandbox {self.id} runs already", subject=self.id, hint=hint)
        return made

    def _make_group(self) -> bool | None:
        """None where there is such a cgroup. ``LimitUnavailable``"""
        try:
            self._cgroup = make_cgroup(self.spec, GROUP + self.id)
        except CgroupError as error:
            if isinstance(error.__cause__, FileExistsError):
                return None
            raise
        return True

    def _undo(self) -> None:
        """Remove all of one that has ended."""
        self._stack.close()

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

    def entrance(self) -> Entrance:
        """What ``sandbox.run.door`` needs."""
        if self._entrance is None:
            from dockless.sandbox.run.door import Entrance

            running, group = self.process, str(self._cgroup.path) if self._cgroup else ""
            assert self.plan is not None and self.identity is not None
            ended = partial(gone, self.id, hint=ENDS_WITH_IT)
            self._entrance = Entrance(
                self.id, self.directory, self.plan, self.identity, group, running.keeper_pid, running.keeper_pidfd, ended
            )
        return self._entrance

    def stop(self, grace: float | None = None) -> None:
        """As ``Box.stop``."""
        from dockless.sandbox.run import ending

        with contextlib.suppress(TimeoutError, SandboxGone):
            deadline = ending.ask(self, grace)
            self.wait(max(0.0, deadline - time.monotonic()))
        self.kill()
        self.wait()

    def paused(self) -> bool:
        """Whether it is paused."""
        return self._cgroup is not None and self._cgroup.frozen

    def resume(self) -> None:
        """Let it go on."""
        if self._cgroup is not None:
            self._cgroup.thaw()

    def send_stop(self) -> None:
        """Its stop signal."""
        assert self.plan is not None
        self.send_signal(self.plan.stop_signal)

    def send_signal(self, number: int) -> None:
        """A signal to the program itself."""
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
                self._undo()
            except Exception as cleanup:
                if error is None:
                    raise
                error.add_note(f"while cleaning up: {cleanup}")
