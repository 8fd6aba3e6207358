"""A running sandbox, frozen by its cgroup while it is looked at, as briefly as can be. Who looks, and when: images/archive/capture.py."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from dockless.cgroups import Cgroup
from dockless.errors import Unsupported
from dockless.sandbox.run import guard
from dockless.sandbox.run.documents import changing


class Freezing:
    """Call it for a block in which nothing in the sandbox moves. Should we be killed meanwhile, it goes on. ``seconds``: for how long it
    has been frozen so far. ``directory``: the sandbox's own: while one freezes it, nobody else lets it go on. A context manager.
    ``Unsupported`` for a sandbox without a cgroup v2."""

    def __init__(self, id: str, cgroup: Path | None, directory: Path) -> None:
        if cgroup is None:
            raise Unsupported(
                f"sandbox {id} runs and has no cgroup by which it could be frozen",
                subject=id,
                hint="stop it first; diff, commit and export can also read it as it runs, if nothing writes in it: --no-pause, pause=False",
            )
        self._held = contextlib.ExitStack()
        self._cgroup, self._directory = cgroup, directory
        self.seconds = 0.0

    def __enter__(self) -> Freezing:
        with contextlib.ExitStack() as opened:
            self._group = opened.enter_context(contextlib.closing(Cgroup.open(self._cgroup)))  # not removed: it is the sandbox's
            switch = os.open("cgroup.freeze", os.O_WRONLY | os.O_CLOEXEC, dir_fd=self._group.fd)
            try:
                thaws = guard.thaws_cgroup(switch)
            finally:
                os.close(switch)
            opened.callback(thaws.release)
            self._held = opened.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._held.close()

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        with contextlib.ExitStack() as alone:
            with contextlib.suppress(FileNotFoundError):  # without a record nobody else finds it
                alone.enter_context(changing(self._directory))  # not its cgroup: anybody could open that and hold the lock
            if self._group.frozen:  # by somebody who wants it to stay so
                yield
                return
            begun = time.monotonic()
            self._group.freeze()
            try:
                yield
            finally:
                self._group.thaw()
                self.seconds += time.monotonic() - begun
