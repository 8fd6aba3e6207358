"""What kinds of values the fields of an image's documents hold, as data; ``wrong_kind`` says what in a document is of another kind.

The tables follow the schema of the image specification. ``null`` counts as absent everywhere, as it does for the tools in Go that write
most images; fields that no table has may hold anything. docs/images-schema.md says where we decide otherwise than the schema.

https://github.com/opencontainers/image-spec/tree/main/schema
"""

from __future__ import annotations

from collections.abc import Callable

from dockless.base.dataclass import dataclass
from dockless.base.later import base64
from dockless.base.text import is_name
from dockless.base.typing import Any

_SIZE_MAX = (1 << 63) - 1
_ZEROS = str.maketrans("123456789", "000000000")


@dataclass(frozen=True, slots=True)
class Kind:
    """A plain value. ``name`` completes "is not …"."""

    name: str
    holds: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Map:
    """An object with keys of any name and values of one kind."""

    values: Shape


Shape = Kind | Map | list["Shape"] | dict[str, "Shape"]


def _is_base64(value: Any) -> bool:
    try:
        return isinstance(value, str) and base64.b64decode(value, validate=True) is not None
    except ValueError:
        return False


def _is_media_type(value: Any) -> bool:
    """RFC 6838, 4.2"""
    return isinstance(value, str) and value.count("/") == 1 and all(is_name(part, "!#$&^_.+-", 127) for part in value.split("/"))


def _is_date(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    moment, rest = value[:19], value[19:]
    fraction, zone = (rest[:-1], "Z") if rest.endswith("Z") else (rest[:-6], rest[-6:].translate(_ZEROS))
    return (
        moment.translate(_ZEROS) == "0000-00-00T00:00:00"
        and (moment[5:7] <= "12" and moment[8] <= "3" and moment[11] <= "2" and moment[14] <= "5" and moment[17] <= "6")
        and zone in ("Z", "+00:00", "-00:00")
        and (not fraction or (len(fraction) > 1 and fraction[0] == "." and not fraction[1:].translate(_ZEROS).strip("0")))
    )


TEXT = Kind("a text", lambda value: isinstance(value, str))
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
SIZE = Kind("a sound size", lambda value: type(value) is int and 0 <= value <= _SIZE_MAX)
COUNT = Kind("a whole number", SIZE.holds)
DATE = Kind("a date and time (RFC 3339)", _is_date)
MEDIA_TYPE = Kind("a media type", _is_media_type)
BASE64 = Kind("base64", _is_base64)

PLATFORM: Shape = {
    "architecture": TEXT,
    "os": TEXT,
    "os.version": TEXT,
    "os.features": [TEXT],
    "variant": TEXT,
    "features": [TEXT],
}
DESCRIPTOR: Shape = {
    "mediaType": MEDIA_TYPE,
    "artifactType": MEDIA_TYPE,
    "size": SIZE,
    "digest": TEXT,
    "urls": [TEXT],
    "annotations": Map(TEXT),
    "data": BASE64,
    "platform": PLATFORM,
}
MANIFEST: Shape = {
    "mediaType": MEDIA_TYPE,
    "artifactType": MEDIA_TYPE,
    "config": DESCRIPTOR,
    "layers": [DESCRIPTOR],
    "manifests": [DESCRIPTOR],
    "subject": DESCRIPTOR,
    "annotations": Map(TEXT),
}
"""Of a manifest and of an index."""
CONFIG: Shape = {
    "created": DATE,
    "author": TEXT,
    "architecture": TEXT,
    "variant": TEXT,
    "os": TEXT,
    "os.version": TEXT,
    "os.features": [TEXT],
    "config": {
        "User": TEXT,
        "ExposedPorts": Map({}),
        "Env": [TEXT],
        "Entrypoint": [TEXT],
        "Cmd": [TEXT],
        "Volumes": Map({}),
        "WorkingDir": TEXT,
        "Labels": Map(TEXT),
        "StopSignal": TEXT,
        "ArgsEscaped": FLAG,
        "Healthcheck": {"Test": [TEXT], **dict.fromkeys(("Interval", "Timeout", "StartPeriod", "StartInterval", "Retries"), COUNT)},
        "Shell": [TEXT],
    },
    "rootfs": {"type": TEXT, "diff_ids": [TEXT]},
    "history": [{"created": DATE, "author": TEXT, "created_by": TEXT, "comment": TEXT, "empty_layer": FLAG}],
}


def wrong_kind(value: Any, shape: Shape, where: str = "") -> str:
    """The first field of another kind, and what it should be; "" where all fit. Lists and objects that are too long are others' concern."""
    if value is None:
        return ""
    if isinstance(shape, Kind):
        return "" if shape.holds(value) else f"{where} is not {shape.name}"
    if isinstance(shape, list):
        if not isinstance(value, list):
            return f"{where} is not a list"
        parts = ((part, shape[0], f"an entry of {where}") for part in value)
    elif not isinstance(value, dict):
        return f"{where or 'it'} is not an object"
    elif isinstance(shape, Map):
        parts = ((part, shape.values, f"a value of {where}") for part in value.values())
    else:
        parts = ((value[key], inner, f"{where}.{key}" if where else key) for key, inner in shape.items() if key in value)
    return next((found for part in parts if (found := wrong_kind(*part))), "")
