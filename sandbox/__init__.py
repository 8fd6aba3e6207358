"""Sandboxes: from what is wanted to a process and its end. Useful with no scheduler in sight.

::

    spec          what is wanted, as data          Spec
    resolve       every name looked up             Spec + Image + Features ─► Resolved
    compile       the plan, pure                   Resolved ─► Plan            rootfs: the file systems of it
    plan          its operations, for people too                               plan.failure: the sentence when it fails
    run.process   carried out by the launcher      Plan ─► Process ─► Exit
    run.attached  all of it under one roof         Sandbox, a context manager
    run.detached  the same without us              Detached, a directory on disk

    from dockless.sandbox import Sandbox, Spec
    with Sandbox(Spec(argv=("echo", "hello"))) as box:
        print(box.wait().code)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dockless.sandbox.run.attached import Sandbox
    from dockless.sandbox.run.detached import Detached
    from dockless.sandbox.run.process import Exit, Process
    from dockless.sandbox.spec import Bind, Mount, Namespaces, Rlimit, Spec, Tmpfs, Volume

__all__ = ["Bind", "Detached", "Exit", "Mount", "Namespaces", "Process", "Rlimit", "Sandbox", "Spec", "Tmpfs", "Volume"]

_HOME = {"Detached": "run.detached", "Exit": "run.process", "Process": "run.process", "Sandbox": "run.attached"}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"dockless.sandbox.{_HOME.get(name, 'spec')}"), name)
