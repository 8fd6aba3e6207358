"""``--format``: how a row is shown. ``json`` for one line of JSON each; or a text with fields in it, ``{{.ID}} {{json .Labels}}``, with
``table`` before it for a table. No language: a field or its JSON, and what stands between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from dockless.base.later import re
from dockless.base.records import plain
from dockless.base.typing import Any, NoReturn
from dockless.cli.output import each, json_text, out, out_columns, print_json, table
from dockless.cli.parser import Namespace, Parser
from dockless.errors import BadInput

_FIELD = r"\{\{\s*(json\s+)?(\.[A-Za-z0-9_.]*)\s*\}\}"
_ESCAPES = {r"\t": "\t", r"\n": "\n"}


def format_option(parser: Parser, *also: str) -> None:
    parser.add_argument(
        *also, "--format", metavar="TEMPLATE", help="json, or a text with fields: '{{.ID}} {{json .Labels}}'; 'table …' for columns"
    )


def inspected(options: Namespace, row_of: Callable[[str], dict[str, Any]]) -> int:
    """All that is known of each of ``options.names``: by ``--format``, or as JSON."""
    found: list[dict[str, Any]] = []
    code = each(options.names, lambda name: found.append(row_of(name)), as_json=options.json)
    if options.format:
        show(options.format, found)
    else:
        print_json(found, indent=None if options.json else 2)
    return code


def show(template: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Print a line for each row. ``BadInput`` for a template that cannot be read, or a field that a row has not."""
    if template in ("json", "jsonl"):
        for row in rows:
            out(json_text(row))
        return
    text = template
    for word, character in _ESCAPES.items():
        text = text.replace(word, character)
    left = re.sub(_FIELD, "", text)
    if "{{" in left or "}}" in left:
        hint = "only fields are known, {{.ID}}, and their JSON, {{json .Labels}}; for more take the fields from --json"
        raise BadInput(f"the template {template[:80]!r} cannot be read", subject="--format", hint=hint)
    if text == "table" or text.startswith("table "):
        columns = text.removeprefix("table").strip(" ").split("\t")
        heads = [re.sub(_FIELD, lambda found: found[2].rpartition(".")[2].upper(), column) for column in columns]
        table(heads, [[_filled(column, row) for column in columns] for row in rows])
        return
    for row in rows:
        for line in text.split("\n"):
            out_columns(_filled(cell, row) for cell in line.split("\t"))


def _filled(text: str, row: Mapping[str, Any]) -> str:
    return re.sub(_FIELD, lambda found: _shown(_value(found[2], row), bool(found[1])), text)


def _value(path: str, row: Mapping[str, Any]) -> Any:
    """What ``.Exit.Code`` means: names as they are or as Docker writes them, ``ExitCode`` for ``exit_code``."""
    value: Any = row
    name: str | None = ""
    for part in filter(None, path.split(".")):
        if not isinstance(value, Mapping):
            _unknown(path, row)
        if name == "labels":  # whoever gave them chose their names
            value, name = value.get(part, ""), part
            continue
        names = {name.lower().replace("_", ""): name for name in value}
        name = part if part in value else names.get(part.lower().replace("_", ""))
        if name is None:
            _unknown(path, row)
        value = value[name]
    return value


def _unknown(path: str, row: Mapping[str, Any]) -> NoReturn:
    known = " ".join(f".{name}" for name in row)
    raise BadInput(f"there is no field {path[:60]}", subject="--format", hint=f"fields are {known}")


def _shown(value: Any, as_json: bool) -> str:
    value = plain(value)
    if as_json:
        return json_text(value)
    if isinstance(value, dict):
        return ",".join(f"{name}={one}" for name, one in value.items())
    if isinstance(value, list):
        return " ".join(map(str, value))
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
