"""``drain`` and ``undrain``: GPUs on which nothing new is started."""

from __future__ import annotations

from dockless.cli.output import out, print_json
from dockless.cli.parser import Namespace, Parser


def drain_options(parser: Parser) -> None:
    undrain_options(parser)
    parser.add_argument("--reason", default="", metavar="TEXT", help="shown to those who wait, and in dockless info")


def undrain_options(parser: Parser) -> None:
    parser.add_argument("gpus", nargs="*", metavar="GPU", help="its number or its UUID")
    parser.add_argument("--all", action="store_true", help="the whole host, also for jobs without GPUs")
    parser.quiet("say nothing")
    parser.json()


def drain(options: Namespace) -> int:
    return _change(options, True)


def undrain(options: Namespace) -> int:
    return _change(options, False)


def _change(options: Namespace, drained: bool) -> int:
    from dockless.sched import connect

    with connect() as queue:
        if drained:
            queue.drain(options.gpus, everything=options.all, reason=options.reason)
        else:
            queue.undrain(options.gpus, everything=options.all)
        host = queue.info()
    if options.json:
        print_json({"drained": host.drained, "gpus": {gpu.uuid: gpu.trouble for gpu in host.gpus}})
    elif not options.quiet:
        for gpu in host.gpus:
            out(f"GPU {gpu.index}: {gpu.trouble or 'in service'}")
        out(f"host: {host.drained or 'in service'}")
    return 0
