"""A Python process inside a user namespace, where it has the rights over every file of the namespace's ids and sees them as they are there.

::

    caller                                        inside
     │ Popen: python -I -S, the request as JSON      │ setns(user namespace), become its root
     │──────────────────────────────────────────────►│ module.main(request)
     │ ◄──────── whatever they agree on, by descriptors and pipes ────────►

A thread cannot enter a user namespace while others run beside it, so a program that has threads cannot go there itself. The process has no
environment and no descriptors but those it was given. It is not in the terminal's foreground: Ctrl-C is its caller's, and when the caller
is gone, so are the other ends of its pipes, and it ends without a word. user_namespaces(7), setns(2)
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from dockless.base.typing import Any

_SETNS = {"x86_64": 308, "aarch64": 268}
_CLONE_NEWUSER = 0x10000000
_PROGRAM = """
import sys, json
request = json.loads(sys.argv[1])
sys.path[:] = request["path"]
from dockless.native import inside
inside.enter(request["namespace"])
import importlib
module = importlib.import_module(request["module"])
try:
    module.main(request)
except BrokenPipeError:  # whoever asked is gone
    sys.exit(1)
"""


def start(
    namespace: int,
    module: str,
    request: dict[str, Any],
    *,
    fds: Sequence[int] = (),
    stdin: int = subprocess.DEVNULL,
    stdout: int | None = None,
) -> subprocess.Popen[bytes]:
    """Start ``module.main(request)`` inside. ``fds`` keep their numbers there. ``OSError`` where it cannot be started."""
    import json

    request = {**request, "path": [entry for entry in sys.path if entry], "namespace": namespace, "module": module}
    command = [sys.executable, "-I", "-S", "-c", _PROGRAM, json.dumps(request)]
    return subprocess.Popen(command, pass_fds=(namespace, *fds), env={}, cwd="/", stdin=stdin, stdout=stdout, bufsize=0, process_group=0)


def enter(namespace: int) -> None:
    """Go in and be root there. Only for a process with one thread."""
    from dockless import native

    result = native.syscall(_SETNS[os.uname().machine], namespace, _CLONE_NEWUSER)
    if result < 0:
        raise OSError(-result, f"setns: {os.strerror(-result)}")
    os.close(namespace)
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
