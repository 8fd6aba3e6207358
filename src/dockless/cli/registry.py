"""Registries: ``pull``, ``push``, ``login``, ``logout``."""

from __future__ import annotations

import sys

from dockless.base.text import escaped
from dockless.base.typing import TYPE_CHECKING
from dockless.cli.output import ask, each, out, print_json, short, warn
from dockless.cli.parser import Namespace, Parser
from dockless.cli.progress import ProgressLine, resumable
from dockless.errors import BadInput, Unauthorized
from dockless.images.pull_policy import PULL_POLICIES

if TYPE_CHECKING:
    from dockless.images import Image

_DEFAULT = "docker.io"


def pull_options(parser: Parser) -> None:
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="[registry/]name[:tag][@sha256:…]")
    parser.add_argument("--platform", metavar="OS/ARCH[/VARIANT]", help="instead of this host's: linux/arm64")
    parser.add_argument("--policy", choices=PULL_POLICIES, default="always", help="always: ask what the tag means now (default); missing: "
                        "only what the store lacks; newer: always, but be content where no registry answers; never: only look")  # fmt: skip
    parser.quiet("the full names alone, no progress")
    parser.json()


def pull(options: Namespace) -> int:
    from dockless.cli.images import print_images, record
    from dockless.images import Store

    store = Store()
    pulled: list[Image] = []

    def one(name: str) -> None:
        with ProgressLine(options.quiet or options.json) as progress:
            image = store.pull(name, platform=options.platform, policy=options.policy, progress=progress)
        pulled.append(image)
        print_images([image], options)

    with resumable("the pull"):
        code = each(options.images, one, as_json=options.json)
    if options.json:
        print_json([record(image) for image in pulled])
    return code


def push_options(parser: Parser) -> None:
    parser.add_argument("image", metavar="IMAGE", help="an image of the store")
    parser.add_argument("destination", nargs="?", metavar="DESTINATION", help="registry/name[:tag], where its own name is not the one")
    parser.quiet("the digest alone, no progress")
    parser.json()


def push(options: Namespace) -> int:
    from dockless.images import Store

    with resumable("the push"), ProgressLine(options.quiet or options.json, verb="sent") as progress:
        pushed = Store().push(options.image, options.destination, progress=progress)
    if options.json:
        print_json(pushed)
    elif options.quiet:
        out(pushed.digest)
    else:
        from dockless.base.units import format_size

        blobs = f"{pushed.uploaded} blobs sent, {format_size(pushed.sent)}; {pushed.mounted + pushed.there} were there"
        out(f"{pushed.reference}  {short(pushed.digest)}  {blobs}")
    return 0


def login_options(parser: Parser) -> None:
    parser.add_argument(
        "registry", nargs="?", default=_DEFAULT, metavar="REGISTRY", help=f"host[:port], or host/team (default: {_DEFAULT})"
    )
    parser.add_argument("-u", "--username", metavar="NAME", help="asked for on a terminal")
    parser.add_argument("--password-stdin", action="store_true", help="the password is all of standard input")
    parser.add_argument("-p", "--password", metavar="PASSWORD", help="refused: every user of this machine could read it")
    parser.quiet("say nothing")
    parser.json()


def login(options: Namespace) -> int:
    from dockless.images.registry import login as keep

    if options.password is not None:
        raise BadInput(
            "a password on the command line is for everybody to read, in the list of processes and the shell's history",
            subject="--password",
            hint=f"dockless login {options.registry} -u {options.username or 'NAME'}, which asks; or --password-stdin < FILE",
        )
    username, password = _who(options)
    try:
        where = keep(options.registry, username, password)
    except Unauthorized as error:
        error.hint = "check the user name and the password; many registries want a token instead of it"
        raise
    if options.json:
        print_json({"registry": options.registry, "username": username, "kept": where})
    elif not options.quiet:
        out(f"logged in to {options.registry} as {username}; kept in {where}")
    return 0


def _who(options: Namespace) -> tuple[str, str]:
    terminal = sys.stdin is not None and sys.stdin.isatty()
    if options.password_stdin:
        if not options.username:
            raise BadInput(
                "--password-stdin without --username", subject="--username", hint="dockless login -u NAME --password-stdin < FILE"
            )
        if terminal:
            raise BadInput("--password-stdin on a terminal would show the password", subject="--password-stdin", hint="leave it out")
        text = sys.stdin.read(64 << 10) if sys.stdin is not None else ""
        password = text.rstrip("\r\n")
        if not password:
            raise BadInput("standard input is empty", subject="--password-stdin", hint='printf %s "$TOKEN" | dockless login …')
        return options.username, password
    if not terminal:
        raise BadInput("there is no terminal to ask for the password on", subject=options.registry, hint="use --password-stdin and -u NAME")
    import getpass

    username = options.username
    if not username:
        ask(f"user name at {options.registry}: ")
        username = sys.stdin.readline().strip()
    password = getpass.getpass(f"password of {escaped(username)}: ", stream=sys.stderr)
    if not username or not password:
        raise BadInput("a login needs a name and a password", subject=options.registry)
    return username, password


def logout_options(parser: Parser) -> None:
    parser.add_argument("registry", nargs="?", default=_DEFAULT, metavar="REGISTRY", help=f"as it was logged in to (default: {_DEFAULT})")
    parser.quiet("say nothing")
    parser.json()


def logout(options: Namespace) -> int:
    from dockless.images.registry import logout as forget

    done = forget(options.registry)
    if options.json:
        print_json({"registry": options.registry, "removed": done.removed, "remaining": done.remaining})
    elif not options.quiet:
        for place in done.removed:
            out(f"logged out of {options.registry}: {place}")
        if not done.removed:
            out(f"there was no login for {options.registry}")
        if done.remaining:
            warn(f"another login for it stays in {done.remaining}", hint=f"docker logout {options.registry}")
    return 0
