"""Job files of several formats, read: text in, a ``JobFile`` out. Pure: nothing is opened, fetched or started.

::

    read(text, "job.yaml", keywords=…) ──► JobFile(format, name, roles, queue, secrets, notes)

What a format knows and dockless cannot do is an error that names the place and the next step, or a note where the job can run without it.
All errors of a file are told at once, ``base.findings``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from dockless.base.later import re
from dockless.base.text import escaped
from dockless.base.typing import Any
from dockless.errors import BadInput
from dockless.sched.formats.jobfile import JobFile, Role, Secret
from dockless.sched.formats.tables import Source

FORMATS = ("dockless", "openpai", "openpai-2", "dlc", "compose", "sbatch")
SUFFIXES = (".toml", ".json", ".yaml", ".yml", ".params", ".sh", ".sbatch", ".slurm")
_DEEP_KEY = r"""(?<![\w"'-])(?:[\w"'-]+[ \t]*\.[ \t]*){64}"""
_KEY_OF_DLC = r"(?m)^[ \t]*(?:--)?(?:worker|ps|chief|master)_(?:count|image)[ \t]*="
"""A key that every file of DLC has, and no file of another format."""
LONGEST = 1 << 20
"""Characters of a job file."""

__all__ = ["FORMATS", "LONGEST", "SUFFIXES", "JobFile", "Role", "Secret", "read", "read_on", "read_own"]


def read(text: str, what: str, **more: Any) -> JobFile:
    """As ``read_on``, which has the keywords in ``more``. ``BadInput`` with all that is wrong."""
    found = read_on(text, what, **more)
    if found.source is not None:
        found.source.refuse()
    return found


def read_on(
    text: str,
    what: str,
    *,
    format: str = "",
    keywords: Collection[str] = (),
    directory: str = "",
    environment: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
) -> JobFile:
    """``what``: the file's name, for errors, and to recognise its format unless ``format`` says it. ``keywords``: those that a role may
    have, of ``dockless.run``. ``directory`` and ``environment``: of Compose's paths and variables. ``arguments``: of a batch script.

    What is wrong in the file is in the ``source`` of what this returns, so that a caller can look for more before the file is refused.
    ``BadInput`` where the file cannot be read to its end."""
    if format and format not in FORMATS:
        raise BadInput(f"format {format[:40]!r} is unknown", subject="format", hint=f"known are {', '.join(FORMATS)}")
    if len(text) > LONGEST:
        raise BadInput(f"{what} has more than {LONGEST} characters", subject=what, hint="give a smaller file")
    source = Source(what)
    if format in ("dlc", "sbatch") or (not format and (format := _of_lines(text, what))):
        if format == "dlc":
            from dockless.sched.formats import dlc

            return _without_arguments(_all_of(source, lambda: dlc.parse(text, source)), arguments, what)
        from dockless.sched.formats import sbatch

        return _all_of(source, lambda: sbatch.parse(text, source, arguments))
    if format in ("", "dockless") and (what.endswith(".toml") or (not _is_json(text, what) and not _is_yaml(text, what))):
        return _without_arguments(read_own(_toml(text, source), source, keywords), arguments, what)
    values = _json(text, source) if _is_json(text, what) else _yaml(text, source)
    found = format or _of_document(values)
    if found == "openpai":
        from dockless.sched.formats import openpai

        job = _all_of(source, lambda: openpai.parse_1(values, source))
    elif found == "openpai-2":
        from dockless.sched.formats import openpai

        job = _all_of(source, lambda: openpai.parse_2(values, source))
    elif found == "compose":
        from dockless.sched.formats import compose

        job = _all_of(source, lambda: compose.parse(values, source, directory, environment or {}))
    else:
        job = read_own(values, source, keywords)
    return _without_arguments(job, arguments, what)


def read_own(values: Any, source: Source, keywords: Collection[str]) -> JobFile:
    """A document in dockless's own form. Errors: as ``read_on``."""
    from dockless.sched.formats import own

    return _all_of(source, lambda: own.parse(values, source, keywords))


def _all_of(source: Source, parse: Callable[[], JobFile]) -> JobFile:
    """What ``parse`` returns. Where it cannot read to the end: ``BadInput`` with all that is wrong."""
    found: JobFile | None = None
    with source.noted():
        found = parse()
    if found is None:
        source.refuse()
    assert found is not None
    return found


def _without_arguments(job: JobFile, arguments: Sequence[str], what: str) -> JobFile:
    if arguments:
        raise BadInput(
            f"{what} takes no arguments: {' '.join(arguments)[:60]!r}",
            subject=what,
            hint="a batch script does; write them into the file's command",
        )
    return job


def _of_lines(text: str, what: str) -> str:
    """A format that is no document, or nothing."""
    if text[:2] == "#!" or what.endswith((".sh", ".sbatch", ".slurm")):
        return "sbatch"
    if what.endswith(SUFFIXES):
        return "dlc" if what.endswith(".params") else ""
    lines = (line.strip() for line in text[:4096].split("\n"))
    first = next((line for line in lines if line and line[0] != "#"), "")
    key, equals, _ = first.partition("=")
    return "dlc" if equals and key.isidentifier() and key == key.strip() and re.search(_KEY_OF_DLC, text) else ""


def _is_json(text: str, what: str) -> bool:
    return what.endswith(".json") or (not what.endswith(SUFFIXES) and text.lstrip()[:1] in ("{", "/"))


def _is_yaml(text: str, what: str) -> bool:
    if what.endswith(SUFFIXES):
        return what.endswith((".yaml", ".yml"))
    lines = (line for line in text[:4096].split("\n") if line.strip() and line.lstrip()[0] != "#")
    first = next(lines, "")
    return first.startswith(("---", "%YAML")) or (":" in first and "=" not in first.partition(":")[0])


def _of_document(values: Any) -> str:
    keys = set(values) if isinstance(values, dict) else set()
    if "services" in keys:
        return "compose"
    if "protocolVersion" in keys:
        return "openpai-2"
    return "openpai" if keys & {"jobName", "taskRoles"} else "dockless"


def _yaml(text: str, source: Source) -> Any:
    from dockless.base import yaml

    values, lines = yaml.loads(text, source.what)
    source.find_lines = lambda: lines
    return values


def _toml(text: str, source: Source) -> Any:
    import tomllib

    from dockless.base import toml_lines

    what = source.what
    source.find_lines = lambda: toml_lines.lines_of(text)
    if re.search(_DEEP_KEY, text):  # the standard reader's time grows with the square of their number
        raise BadInput(f"{what} has a key of more than 64 parts", subject=what, hint="give it a shorter name")
    try:
        return _with_texts_of_times(tomllib.loads(text))
    except (ValueError, RecursionError) as error:  # also an integer of thousands of digits
        why = "too deeply nested" if isinstance(error, RecursionError) else str(error)
        line = f":{at[1]}" if (at := re.search(r"\(at line ([0-9]+)", why)) else ""
        raise BadInput(
            f"{what}{line} is not TOML: {why}", subject=what, hint="correct that line, or say which format it is: --format"
        ) from None


def _with_texts_of_times(value: Any) -> Any:
    """TOML alone has times that are no texts."""
    if isinstance(value, dict):
        return {key: _with_texts_of_times(one) for key, one in value.items()}
    if isinstance(value, list):
        return [*map(_with_texts_of_times, value)]
    return value.isoformat() if hasattr(value, "isoformat") else value


def _json(text: str, source: Source) -> Any:
    import json

    from dockless.base import json_lines
    from dockless.sched.formats.openpai import without_comments

    what, plain = source.what, without_comments(text)
    source.find_lines = lambda: json_lines.lines_of(plain)
    try:
        return json.loads(plain, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        raise BadInput(f"{what}:{error.lineno} is not JSON: {error.msg}", subject=what, hint="correct that line") from None
    except BadInput as error:
        line = f":{at}" if (at := json_lines.twice(plain)) else ""
        raise BadInput(f"{what}{line}: {error}", subject=what, hint=error.hint) from None
    except (ValueError, RecursionError):
        raise BadInput(f"{what} is not JSON: too deeply nested, or a number too long", subject=what, hint="correct it") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise BadInput(f"{escaped(key[:60])!r} is there twice", subject=escaped(key[:60]), hint="remove one of them")
        found[key] = value
    return found
