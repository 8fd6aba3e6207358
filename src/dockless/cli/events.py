"""``events``: what happens to sandboxes, as it happens."""

from __future__ import annotations

from dockless.base.records import plain
from dockless.base.typing import TYPE_CHECKING, Any
from dockless.cli.filters import filter_option, filters, labels, unreadable
from dockless.cli.logs import moment
from dockless.cli.output import json_text, out
from dockless.cli.parser import Namespace, Parser
from dockless.cli.template import format_option, show

if TYPE_CHECKING:
    from dockless.sandbox.run.events import Event

_KEYS = {"event": "kinds", "kind": "kinds", "id": "ids", "name": "ids", "container": "ids", "image": "images", "label": "labels"}


def events_options(parser: Parser) -> None:
    parser.add_argument(
        "--since", metavar="TIME", help="first what is known of the past: 10m ago, 2026-01-31T12:00:00Z, seconds since 1970"
    )
    parser.add_argument("--until", metavar="TIME", help="no later than that (default: until Ctrl-C)")
    filter_option(parser, "event=, id=, image=, label=NAME[=VALUE]", "-f")
    format_option(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def events(options: Namespace) -> int:
    from dockless._events import events as happening

    since = None if options.since is None else moment(options.since, "--since")
    until = None if options.until is None else moment(options.until, "--until")
    with happening(since=since, until=until, **_filters(options.filter)) as found:
        for event in found:
            if options.format:
                show(options.format, [plain(event)])
            else:
                out(json_text(plain(event)) if options.json else line(event))
    return 0


def _filters(texts: list[str]) -> dict[str, Any]:
    for text in texts:
        from dockless.cli.docker_words import value as docker_has

        if word := docker_has("--filter", text):
            raise unreadable(text, word.hint)
    chosen = filters(texts, _KEYS)
    return {**chosen, "labels": dict(labels(chosen.get("labels", ())))}


def line(event: Event) -> str:
    """``TIME KIND ID (image=…, details, labels)``."""
    import datetime

    at = datetime.datetime.fromtimestamp(event.time, datetime.UTC).isoformat(timespec="microseconds")
    said = {"image": event.image} | event.details | event.labels
    more = ", ".join(
        f"{name}={' '.join(value) if isinstance(value, list) else value}"
        for name, value in said.items()
        if value is not False and value not in ("", None)
    )
    return f"{at} {event.kind} {event.id}{f' ({more})' if more else ''}"
