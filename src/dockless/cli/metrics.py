"""``metrics``: the host as Prometheus reads it, see ``dockless.sched.wire.metrics``."""

from __future__ import annotations

from dockless.cli.output import out
from dockless.cli.parser import Namespace, Parser
from dockless.errors import DaemonUnavailable


def metrics_options(parser: Parser) -> None:
    del parser


def metrics(options: Namespace) -> int:
    """By the daemon, else what the host itself says."""
    del options
    from dockless.cli.overview import without_daemon
    from dockless.sched import connect
    from dockless.sched.wire.metrics import text

    try:
        with connect() as queue:
            shown = text(queue.info(), queue.top())
    except DaemonUnavailable as error:
        shown = text(None, without_daemon(str(error)))
    out(*shown.splitlines())
    return 0
