"""Sandboxes: from what is wanted to a process and its end. Useful with no scheduler in sight.

::

    spec          what is wanted, as data          Spec
    resolve       every name looked up             Spec + Image + Features ─► Resolved
    compile       the plan, pure                   Resolved ─► Plan            rootfs: the file systems of it
    plan          its operations, for people too                               plan.failure: the sentence when it fails
    run.process   carried out by the launcher      Plan ─► Process ─► Exit
    run.foreground  all of it under one roof       ForegroundSandbox, a context manager
    run.detached  the same without us
    run.box       either of them, found by its id  Box, a directory on disk

    from dockless.sandbox import ForegroundSandbox, Spec
    with ForegroundSandbox(Spec(argv=("echo", "hello"))) as box:
        print(box.wait().code)
"""

from __future__ import annotations

from dockless.base.later import names_of
from dockless.base.typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dockless.sandbox.run.box import Box
    from dockless.sandbox.run.foreground import ForegroundSandbox
    from dockless.sandbox.run.process import Exit, Process
    from dockless.sandbox.spec import Bind, Mount, Namespaces, Rlimit, Spec, Tmpfs, Volume

__all__ = ["Bind", "Box", "Exit", "ForegroundSandbox", "Mount", "Namespaces", "Process", "Rlimit", "Spec", "Tmpfs", "Volume"]

_HOME = {
    **dict.fromkeys(("Bind", "Mount", "Namespaces", "Rlimit", "Spec", "Tmpfs", "Volume"), "spec"),
    **{"Box": "run.box", "Exit": "run.process", "Process": "run.process", "ForegroundSandbox": "run.foreground"},
}

__getattr__ = names_of(__name__, _HOME)
