"""``dockless daemon`` that kills itself with SIGKILL at one chosen point, the first time it gets there: ``dying_daemon.py POINT MARK``.

Once the file MARK exists it is an ordinary daemon. The points are the writes, launches and removals of one attempt, in order: ``POINTS``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

POINTS = ("lease", "leased", "launched", "running", "exit", "log", "finish", "remove", "removed")
OF_ANOTHER_ATTEMPT = ("exit", "log", "requeue", "options", "remove", "removed")
"""The same between an attempt and the next."""


def main(point: str, mark: str) -> int:
    from dockless.sandbox.run import detached
    from dockless.sched import daemon
    from dockless.sched.engine import attempts
    from dockless.sched.store import queue

    def die_at(here: str) -> None:
        if here == point and not os.path.exists(mark):
            os.close(os.open(mark, os.O_CREAT))
            os.kill(os.getpid(), 9)

    def dying(here: str, work: Callable[..., Any], after: str = "") -> Callable[..., Any]:
        def wrapped(*args: Any, **named: Any) -> Any:
            die_at(here)
            result = work(*args, **named)
            die_at(after)
            return result

        return wrapped

    # Inside the open transactions, just before their commit.
    queue.begin_attempt = dying("", queue.begin_attempt, "lease")
    queue.set_running = dying("", queue.set_running, "running")
    queue.finish = dying("", queue.finish, "finish")
    queue.requeue = dying("", queue.requeue, "requeue")
    queue.set_options = dying("", queue.set_options, "options")
    queue.change_drained = dying("", queue.change_drained, "drained")
    attempts.keep_log = dying("log", attempts.keep_log)
    detached.start = dying("leased", detached.start, "launched")
    detached.Box.exit = dying("exit", detached.Box.exit)  # type: ignore[method-assign]
    detached.Box.remove = dying("remove", detached.Box.remove, "removed")  # type: ignore[method-assign]
    return daemon.main()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
