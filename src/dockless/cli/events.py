"""``events``: what happens to sandboxes, as it happens."""

from __future__ import annotations

import datetime

from dockless.base.typing import TYPE_CHECKING, Any
from dockless.cli.logs import moment
from dockless.cli.output import json_text, out, plain
from dockless.cli.parser import Namespace, Parser
from dockless.errors import BadInput

if TYPE_CHECKING:
    from dockless.sandbox.run.events import Event

_KEYS = {"event": "kinds", "kind": "kinds", "id": "ids", "name": "ids", "container": "ids", "image": "images", "label": "labels"}


def events_options(parser: Parser) -> None:
    parser.add_argument(
        "--since", metavar="TIME", help="first what is known of the past: 10m ago, 2026-01-31T12:00:00Z, seconds since 1970"
    )
    parser.add_argument("--until", metavar="TIME", help="no later than that (default: until Ctrl-C)")
    about = "only those: event=, id=, image=, label=NAME[=VALUE]; of one key any, of several all"
    parser.add_argument("-f", "--filter", action="append", default=[], metavar="KEY=VALUE", help=about)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def events(options: Namespace) -> int:
    from dockless._events import events as happening

    since = None if options.since is None else moment(options.since, "--since")
    until = None if options.until is None else moment(options.until, "--until")
    with happening(since=since, until=until, **_filters(options.filter)) as found:
        for event in found:
            out(json_text(plain(event)) if options.json else line(event))
    return 0


def _filters(texts: list[str]) -> dict[str, Any]:
    chosen: dict[str, Any] = {"kinds": [], "ids": [], "images": [], "labels": {}}
    for text in texts:
        key, _, value = text.partition("=")
        if key not in _KEYS or not value:
            from dockless.cli.docker_words import value as docker_has

            word = docker_has("--filter", text)
            hint = word.hint if word else f"write KEY=VALUE; keys are {', '.join(_KEYS)}"
            raise BadInput(f"--filter {text[:60]!r} cannot be read", subject="--filter", hint=hint)
        if key == "label":
            name, equals, wanted = value.partition("=")
            chosen["labels"][name] = wanted if equals else None
        else:
            chosen[_KEYS[key]].append(value)
    return chosen


def line(event: Event) -> str:
    """``TIME KIND ID (image=…, details, labels)``."""
    at = datetime.datetime.fromtimestamp(event.time, datetime.UTC).isoformat(timespec="microseconds")
    said = {"image": event.image} | event.details | event.labels
    more = ", ".join(
        f"{name}={' '.join(value) if isinstance(value, list) else value}"
        for name, value in said.items()
        if value is not False and value not in ("", None)
    )
    return f"{at} {event.kind} {event.id}{f' ({more})' if more else ''}"
