"""``debug``: programs of another image that look into a sandbox that runs."""

from __future__ import annotations

from functools import partial

from dockless.base.typing import TYPE_CHECKING, Any
from dockless.cli.parser import Namespace, Parser
from dockless.errors import BadInput, Unsupported

if TYPE_CHECKING:
    from dockless._box import Sandbox


def debug_options(parser: Parser) -> None:
    from dockless.cli.executing import command_options
    from dockless.cli.sandbox_options import pull_option

    parser.takes_command = True
    parser.usage = "dockless debug [options] ID --image IMAGE -- COMMAND …"
    parser.add_argument("id", metavar="ID", help="a sandbox of `dockless ps`")
    parser.add_argument(
        "--image", metavar="IMAGE", default="", help="whose programs look into it, pulled if the store lacks it; host: the host's own"
    )
    parser.add_argument("--write", action="store_true", help="the sandbox's files, in /target, can be changed (default: read-only)")
    pull_option(parser)
    command_options(parser, workdir="the image's own if left out")
    parser.add_argument("--explain", action="store_true", help="show what would be done among its processes, and do nothing")


def debug(options: Namespace) -> int:
    from dockless._box import Sandbox
    from dockless.cli.executing import opened, run_in, wanted_of
    from dockless.cli.sandbox_options import fetched

    if not options.image:
        raise BadInput("there is no image of tools", subject="--image", hint="--image IMAGE, or --image host for the host's own programs")
    if not options.command:
        raise BadInput("there is no command", subject="COMMAND", hint=f"dockless debug {options.id} --image {options.image} -- COMMAND …")
    box = opened(options.id)
    if not isinstance(box, Sandbox):
        raise Unsupported("only sandboxes can be looked into", subject=options.id, hint="run what the job's image has: dockless exec")
    image = fetched(options.image, options)
    wanted: dict[str, Any] = wanted_of(options)
    if options.explain:
        return _explained(box, image, options, wanted)

    def spawn(*argv: str, **more: Any) -> Any:
        return box.spawn_debug(image, *argv, write=options.write, pull="never", **more)

    return run_in(options, spawn, wanted)


def _explained(box: Sandbox[bytes], image: str, options: Namespace, wanted: dict[str, Any]) -> int:
    from dockless.base.records import plain
    from dockless.cli.output import out, print_json
    from dockless.sandbox.plan.explain import rows, text
    from dockless.sandbox.run.debug import explain

    entry = box._entry(tuple(options.command), wanted["env"], wanted["workdir"], "", wanted["timeout"], options.tty)
    table = rows(box._through(partial(explain, target=box.spec, image=image, entry=entry, write=options.write)))
    if options.json:
        print_json({"image": image, "operations": plain(table)})
    else:
        out(*text(table).split("\n"))
    return 0
