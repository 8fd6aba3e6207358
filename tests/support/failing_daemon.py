"""``dockless daemon`` in which the steps towards a job's end fail: ``failing_daemon.py STEP …``, each once or always, see ``STEPS``.

Its patience with a keeper that does nothing is short.
"""

from __future__ import annotations

import sys
from typing import Any

STEPS = ("send_stop", "kill_once", "exit_once", "pidfd", "state_once", "patience")


def main(steps: list[str]) -> int:
    from dockless.sandbox.run.box import Box
    from dockless.sched import daemon
    from dockless.sched.engine import stopping
    from dockless.sched.engine.lifecycle import ending

    ending.OVERDUE = 0.3
    stopping.KILL_AGAIN = 0.05

    def fail(name: str, once: bool, error: Exception) -> None:
        real = getattr(Box, name)
        failed: list[str] = []

        def failing(self: Any, *args: Any) -> Any:
            if not once or not failed:
                failed.append(name)
                raise error
            return real(self, *args)

        setattr(Box, name, failing)

    if "send_stop" in steps:
        fail("send_stop", False, PermissionError(1, "planted"))
    if "kill_once" in steps:
        fail("kill", True, PermissionError(1, "planted"))
    if "exit_once" in steps:
        fail("exit", True, KeyError("planted"))
    if "pidfd" in steps:
        fail("pidfd", False, OSError(5, "planted"))
    if "state_once" in steps:
        fail("state", True, ValueError("planted"))
    return daemon.main()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
