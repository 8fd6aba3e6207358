"""JobSpec, Spec and Entry to plain JSON values and back, strictly: a wrong type or an unknown name is an error, never a guess.

Only what differs from the default is written, so a queued job costs some hundred bytes.
"""

from __future__ import annotations

import dataclasses
import functools
import typing

from dockless.base.typing import Any, TypeVar
from dockless.errors import BadInput
from dockless.sandbox.enter import Entry
from dockless.sandbox.spec import Spec
from dockless.sched.jobs import JobSpec

T = TypeVar("T")
_VERSIONS = "client and daemon may be of different versions"


def job_to_plain(job: JobSpec) -> dict[str, Any]:
    """``job`` as dicts, lists, strings and numbers."""
    plain: dict[str, Any] = _to_plain(job)
    return plain


def job_from_plain(data: Any) -> JobSpec:
    """The inverse. Raises BadInput that names the field."""
    return _record(JobSpec, data, "job")


def entry_to_plain(entry: Entry) -> dict[str, Any]:
    """A program that enters a job, as dicts, lists, strings and numbers."""
    plain: dict[str, Any] = _to_plain(entry)
    return plain


def entry_from_plain(data: Any) -> Entry:
    """The inverse. Raises BadInput that names the field."""
    return _record(Entry, {"argv": (), **data} if isinstance(data, dict) else data, "program")


def _to_plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        defaults = _defaults(type(value))
        out = {}
        for name in defaults:
            item = getattr(value, name)
            if item != defaults[name]:
                out[name] = _to_plain(item)
        return out
    if isinstance(value, (tuple, list)):
        return [_to_plain(item) for item in value]
    return value


@functools.cache
def _defaults(cls: type) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for item in dataclasses.fields(cls):
        if item.default is not dataclasses.MISSING:
            out[item.name] = item.default
        elif item.default_factory is not dataclasses.MISSING:
            out[item.name] = item.default_factory()
        else:
            out[item.name] = dataclasses.MISSING
    return out


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _record(cls: type[T], data: Any, where: str) -> T:
    import msgspec

    if not isinstance(data, dict):
        raise BadInput(f"{where} is not an object", subject=where, hint="send a JSON object")
    hints: dict[str, Any] = _hints(cls)  # type: ignore[arg-type]  # a class is hashable, whatever T is
    values: dict[str, Any] = {}
    for name, item in data.items():
        place = f"{where}.{name}"
        if name not in hints:
            raise BadInput(f"{place} is unknown", subject=place, hint=_VERSIONS)
        if cls is JobSpec and name == "spec":
            values[name] = _record(Spec, item, place)
        else:
            try:
                values[name] = msgspec.convert(item, hints[name])
            except msgspec.ValidationError as error:
                raise BadInput(f"{place}: {error}", subject=place, hint="see the documentation of this field") from None
            _refuse_unknown(item, values[name], place)
    return cls(**values)


def _refuse_unknown(data: Any, made: Any, where: str) -> None:
    """``BadInput`` for a name in ``data`` that the records ``made`` of it do not have: msgspec passes over it."""
    if isinstance(data, list) and isinstance(made, (list, tuple)):
        for part, record in zip(data, made, strict=False):
            _refuse_unknown(part, record, where)
    elif isinstance(data, dict) and dataclasses.is_dataclass(made):
        for name, item in data.items():
            if name not in _hints(made.__class__):
                raise BadInput(f"{where}.{name} is unknown", subject=f"{where}.{name}", hint=_VERSIONS)
            _refuse_unknown(item, getattr(made, name), f"{where}.{name}")
