"""``quota``: what users and groups have of the host, and may have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dockless.base.typing import TYPE_CHECKING, Any
from dockless.cli.output import out, print_json, table
from dockless.cli.parser import Namespace, Parser
from dockless.errors import BadInput, DaemonUnavailable, DocklessError, NotPermitted

if TYPE_CHECKING:
    from dockless.sched import Client, QuotaInfo


def quota_options(parser: Parser) -> None:
    parser.usage = "dockless quota show | set user|group NAME KEY=NUMBER … | set default KEY=NUMBER …"
    parser.add_argument(
        "action", choices=("show", "set"), metavar="show|set", help="show: who has what, and may have; set: change it in dockless.toml"
    )
    parser.add_argument(
        "words",
        nargs="*",
        default=[],
        metavar="user|group|default",
        help="whose, and limit=, guarantee=, weight=, jobs=, cpu_jobs=, queued=, classes.NAME=, classes.NAME.guarantee=, …",
    )
    parser.add_argument("--unset", action="append", default=[], metavar="KEY", help="what the quota no longer says (set)")
    parser.json()


def quota(options: Namespace) -> int:
    if options.action == "set":
        return _set(options)
    if options.words or options.unset:
        raise BadInput("quota show takes nothing else", subject="quota", hint="dockless quota --help")
    return _show(options)


def _show(options: Namespace) -> int:
    """Of all who have a quota, or a job."""
    from dockless.sched import connect

    with connect() as queue:
        found = queue.quotas()
    if options.json:
        print_json([one.as_dict() for one in found])
    elif not found:
        out("No quotas are set, and nobody has a job.")
    else:
        rows = [_default(one) if one.kind == "default" else _row(one) for one in found]
        table(("QUOTA", "GPUS", "GUARANTEE", "WEIGHT", "JOBS", "WITHOUT GPUS", "WAITING", "QUEUED"), rows)
    return 0


def _row(one: QuotaInfo) -> tuple[object, ...]:
    return (
        *(f"{one.kind} {one.name}", _of_all(one), _with_classes(one, "guarantee"), _with_classes(one, "weight")),
        *(_of(one.running, one.jobs), _of(one.running_without_gpus, one.cpu_jobs), one.waiting, _queued(one)),
    )


def _default(one: QuotaInfo) -> tuple[object, ...]:
    """What each user may have whom the settings do not name."""
    return (
        *("each other user", *(_with_classes(one, what) for what in ("limit", "guarantee", "weight"))),
        *(_shown(one.jobs), _shown(one.cpu_jobs), "-", _shown(one.queued)),
    )


def _queued(one: QuotaInfo) -> str:
    """Also those that can be seen nowhere else: parts of a submit that has not come to its end."""
    return _of(one.in_queue, one.queued) + (f" ({one.submitting} being submitted)" if one.submitting else "")


def _of_all(one: QuotaInfo) -> str:
    return ", ".join((_of(one.gpus, one.limit), *(f"{of.name} {_of(of.gpus, of.limit)}" for of in one.classes)))


def _with_classes(one: QuotaInfo, what: str) -> str:
    """Its limit, guarantee, or weight, and those of classes."""
    said = [str(value) for value in (getattr(one, what),) if value is not None]
    said += [f"{of.name} {value}" for of in one.classes if (value := getattr(of, what)) is not None]
    return ", ".join(said) or "-"


def _of(used: int, limit: int | None) -> str:
    return str(used) if limit is None else f"{used} of {limit}"


def _shown(value: int | None) -> str:
    return "-" if value is None else str(value)


def _set(options: Namespace) -> int:
    """In the settings of the caller's daemon. 1 where that daemon runs and did not take them."""
    from dockless.base import settings
    from dockless.sched.quota_file import set_quota

    kind, name, values = _said(options.words)
    queue = _own_daemon()
    change = set_quota(kind, name, values, options.unset)
    trouble = _reload(queue) if queue is not None else ""
    reloaded = queue is not None and not trouble
    if options.json:
        said = {"file": str(change.file), "kind": kind, "name": name, "before": dict(change.before), "after": dict(change.after)}
        print_json(said | {"reloaded": reloaded, "reason": trouble})
        return 1 if trouble else 0
    who = f"{kind} {name}".strip()
    keys = ", ".join(_words(change.after)) or "no quota"
    out(f"{who}: {keys} ({change.file})")
    if kind == "user" and change.default and bool(change.before) != bool(change.after):
        out(f"The default {'no longer holds' if change.after else 'holds'} for {name}.")
    if any(key.rpartition(".")[2] == "weight" for key in values) and (order := settings.load(change.file)["queue.order"]) != "fair":
        out(f'The weight has no effect: queue.order is {order!r}. Write order = "fair" below [queue].')
    if trouble:
        out(f"The daemon goes on with what it had: {trouble}")
    else:
        out("The daemon has read it." if reloaded else "No daemon runs: it holds from the next start.")
    return 1 if trouble else 0


def _words(quota: Mapping[str, Any]) -> Iterator[str]:
    """``limit 4``, ``H100 2``, ``H100 guarantee 1``"""
    yield from (f"{key} {value}" for key, value in quota.items() if key != "classes")
    for name, of in quota.get("classes", {}).items():
        for key, value in of.items() if isinstance(of, dict) else (("limit", of),):
            yield f"{name} {value}" if key == "limit" else f"{name} {key} {value}"


def _said(words: list[str]) -> tuple[str, str, dict[str, int]]:
    """Whose quota, and what is set."""
    if not words:
        hint = "for example: dockless quota set user NAME limit=4; or group NAME, or default"
        raise BadInput("quota set: whose quota, and what of it?", subject="quota", hint=hint)
    kind, *rest = words
    if kind not in ("user", "group", "default"):
        raise BadInput(f"{kind!r} is no kind of quota", subject=kind, hint="write user NAME, group NAME or default")
    name = ""
    if kind != "default":
        if not rest or "=" in rest[0]:
            raise BadInput(f"which {kind}?", subject=kind, hint=f"write {kind} NAME KEY=NUMBER")
        name, *rest = rest
    values = {}
    for word in rest:
        key, equals, number = word.partition("=")
        if not equals or not number.isascii() or not number.isdecimal() or len(number) > 10:
            raise BadInput(f"{word!r} is not KEY=NUMBER", subject=word, hint="for example limit=4; --unset limit takes it away")
        if key in values:
            raise BadInput(f"{key} is set twice", subject=key, hint="leave one of them out")
        values[key] = int(number)
    return kind, name, values


def _own_daemon() -> Client | None:
    """None where none runs. NotPermitted where it is another user's, whose settings are not ours."""
    import os

    from dockless.sched import connect

    try:
        queue = connect()
        owner = queue.ping().owner_uid
    except DaemonUnavailable:
        return None
    if owner != os.geteuid():
        queue.close()
        whose = "root" if owner == 0 else f"the user with the number {owner}"
        raise NotPermitted(f"the settings of this daemon are those of {whose}", subject="quota", hint=f"do it as {whose}, or ask for it")
    return queue


def _reload(queue: Client) -> str:
    """Why the daemon did not take the change, empty if it did."""
    from dockless.base import paths

    try:
        with queue:
            file = queue.reload()
    except DocklessError as error:
        return str(error)
    return "" if file == paths.config_file() else f"it reads {file}"
