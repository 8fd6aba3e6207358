"""``pool``: sandboxes that wait for their programs in a process of their own; and what ``run --pool`` may say."""

from __future__ import annotations

from dockless.base.typing import TYPE_CHECKING, Any, NoReturn
from dockless.cli.parser import Namespace, Parser, whole
from dockless.cli.sandbox_options import GROUPS, Option, environment_of, fetched, image_and_command, keywords, pull_option, sandbox_options
from dockless.errors import BadInput

if TYPE_CHECKING:
    from dockless._pool import NamedPool, Taken
    from dockless.sandbox.run.named_pools import PoolInfo

_ACTIONS = ("create", "ls", "rm")
_SIZE = 4
_OF_A_TAKE = ("env", "workdir")
_OF_A_START = {
    "detach": "a sandbox of a pool ends with the command that took it: dockless run -d starts one of its own",
    "explain": "it is made already: dockless run --explain with the options of the pool",
    "time": "it is made already: dockless run --explain --time with the options of the pool",
    "script": "it is made already: dockless run --explain --script with the options of the pool",
    "name": "it has a name already, which --cidfile writes into a file",
    "restart": "a sandbox of a pool is used once",
    "pull": "the image of a pool is what it was when the pool was made: dockless pool create --pull",
    "platform": "the image of a pool is what it was when the pool was made: dockless pool create --platform",
}
"""Options of ``run`` that go with no pool, and what to do instead."""


def pool_options(parser: Parser) -> None:
    parser.usage = "dockless pool create NAME [options] [IMAGE] | ls | rm NAME …"
    parser.add_argument("action", choices=_ACTIONS, help="create: the process of a pool, which returns when all its sandboxes wait")
    parser.add_argument("names", nargs="*", metavar="NAME", help="pools; for create one, and its image (left out: `host`)")
    parser.add_argument("--size", type=whole(1), metavar="N", help=f"how many wait (create; default: {_SIZE})")
    parser.add_argument(
        "--expire", metavar="TIME", help="the pool ends when none was taken for that long, 0 for never (create; default: 1h)"
    )
    pull_option(parser)
    parser.add_argument("-t", "--tty", action="store_true", help="each with a terminal of its own (create)")
    parser.add_argument("-l", "--label", action="append", default=[], metavar="NAME[=VALUE]", help="of each sandbox (create)")
    parser.quiet("names alone; nothing where there is nothing to tell")
    parser.json()
    sandbox_options(parser)


def pool(options: Namespace) -> int:
    if options.action == "create":
        return _create(options)
    if bool(options.names) == (options.action == "ls"):
        what = "takes no name" if options.names else "wants a name"
        raise BadInput(f"pool {options.action} {what}", subject=options.action, hint="dockless pool --help")
    of_create = ("size", "expire", "pull", "platform", "tty", "label")
    given = [f"--{name}" for name in of_create if getattr(options, name)] + [_flag(row) for row in _given(options)]
    if given:
        raise BadInput(f"pool {options.action} takes no {given[0]}", subject=given[0], hint=f"{given[0]} is for pool create")
    return {"ls": _list, "rm": _remove}[options.action](options)


def _create(options: Namespace) -> int:
    from dockless._life import check_labels
    from dockless._options import gpus_wanted, make_spec
    from dockless.base.dataclass import replace
    from dockless.base.units import parse_duration
    from dockless.cli.output import out, print_json
    from dockless.errors import Unsupported
    from dockless.sandbox.run import named_pools

    if not 1 <= len(options.names) <= 2:
        hint = "dockless pool create NAME [options] [IMAGE]; the command is for run --pool"
        raise BadInput("pool create wants a name and an image", subject="create", hint=hint)
    name, *image = options.names
    named_pools.directory_of(name)
    labels = check_labels(dict(one.partition("=")[::2] for one in options.label))
    wanted = keywords(options)
    if gpus_wanted(wanted) is not None:
        hint = "start what needs GPUs by itself: dockless run --gpus 1 …"
        raise Unsupported("sandboxes that wait hold no GPUs, which others could use", subject="gpus", hint=hint)
    expire = named_pools.EXPIRE if options.expire is None else parse_duration(options.expire, "expire")
    spec = make_spec(image[0] if image else "host", (), **wanted, tty=options.tty)
    spec = replace(spec, image=fetched(spec.image, options))
    named_pools.create(named_pools.Wanted(name, spec, options.size or _SIZE, expire, labels))
    if options.json:
        print_json(next((_row(found) for found in named_pools.list_all() if found.name == name), {"name": name}))
    elif not options.quiet:
        out(name)
    return 0


def _row(pool: PoolInfo) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(pool)


def _list(options: Namespace) -> int:
    from dockless.base.units import format_size
    from dockless.cli.output import age, out, print_json, short, span, table, warn
    from dockless.sandbox.run import named_pools

    found = named_pools.list_all()
    if options.quiet:
        out(*(pool.name for pool in found))
        return 0
    if options.json:
        print_json([_row(pool) for pool in found])
        return 0
    rows = [
        (
            pool.name,
            pool.image,
            short(pool.digest) + (" (older)" if pool.newer else ""),
            f"{pool.waiting} of {pool.size}",
            pool.taken,
            f"{age(pool.created)} ago",
            span(pool.used + pool.expire - _now()) if pool.expire else "never",
            format_size(pool.memory),
        )
        for pool in found
    ]
    table(("POOL", "IMAGE", "DIGEST", "WAITING", "TAKEN", "MADE", "ENDS IN", "ITS PROCESS"), rows)
    for pool in found:
        if pool.newer:
            hint = f"dockless pool rm {pool.name}, and make it again"
            warn(f"the store has another {pool.image} than the pool {pool.name} has", hint=hint)
        if pool.failed:
            warn(f"pool {pool.name}: {pool.failed}", hint="it is tried again every second")
    return 0


def _now() -> float:
    import time

    return time.time()


def _remove(options: Namespace) -> int:
    from dockless.cli.output import each_named
    from dockless.sandbox.run.named_pools import remove

    return each_named(options.names, remove, as_json=options.json, quiet=options.quiet)


# -- run --pool


def taken(options: Namespace) -> Taken[Any]:
    """The sandbox of ``run --pool``, not yet taken. ``BadInput`` for a pool that there is not, and for an option that is not as the pool
    has it."""
    from dockless._pool import NamedPool, Taken

    for name, hint in _OF_A_START.items():
        if getattr(options, name):
            raise BadInput(f"--{name} cannot be given with --pool", subject=f"--{name}", hint=hint)
    pool = NamedPool(options.pool)
    if options.image or options.command is not None:
        image, _ = image_and_command(options)
        if options.image and not _same_image(image, pool.spec.image):
            hint = f"leave {image} out, or make a pool of it: dockless pool create NAME {image}"
            raise BadInput(f"the image of the pool {options.pool} is {pool.spec.image}, not {image}", subject=image, hint=hint)
    _check_options(options, pool)
    env = environment_of(options)
    if pool.spec.tty:
        from dockless.cli import terminal

        env = terminal.named(env)
    return Taken(pool, options.command, env=env, workdir=options.workdir or "")


def _same_image(one: str, other: str) -> bool:
    from dockless.images.model.reference import parse

    try:
        return one == other or (parse(one) == parse(other) and "host" not in (one, other))
    except BadInput:
        return False


def _given(options: Namespace) -> list[Option]:
    """Options of sandboxes that a line has."""
    rows = [row for _, _, rows in GROUPS for row in rows if row.keyword]
    return [row for row in rows if getattr(options, row.place) != row.absent]


def _flag(row: Option) -> str:
    return next(flag for flag in row.flags.split() if flag[:2] == "--")


def _check_options(options: Namespace, pool: NamedPool) -> None:
    """``BadInput`` for one that asks for something else than the pool was made with."""
    from dockless._options import KEYWORDS, make_spec
    from dockless.cgroups import limits

    spec, name = pool.spec, options.pool
    if options.tty and not spec.tty:
        _refuse("--tty", name)
    labels = {key: value for key, _, value in (one.partition("=") for one in options.label)}
    if options.label_file or any(pool._labels.get(key) != value for key, value in labels.items()):
        _refuse("--label-file" if options.label_file else "--label", name)
    given = [row for row in _given(options) if row.keyword not in _OF_A_TAKE]
    if not given:
        return
    values = keywords(options)
    asked = make_spec(spec.image, (), **{row.keyword: values[row.keyword] for row in given})
    fields: dict[str, list[str]] = {}
    for keyword in KEYWORDS:
        fields.setdefault(keyword.name, []).append(keyword.field)
    of_limits = {keyword.name: keyword.field for keyword in limits.KEYWORDS}
    for row in given:
        limit = of_limits.get(row.keyword)
        wanted, has = (asked, spec) if limit is None else (asked.limits, spec.limits)
        filled = fields[row.keyword] if limit is None else [limit]
        if any(not field or getattr(wanted, field) != getattr(has, field) for field in filled):
            _refuse(_flag(row), name)


def _refuse(flag: str, pool: str) -> NoReturn:
    hint = f"leave {flag} out, or make another pool with it: dockless pool create NAME {flag} …"
    raise BadInput(f"{flag} differs from what the pool {pool} was made with", subject=flag, hint=hint)
