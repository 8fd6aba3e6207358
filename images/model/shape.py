"""What kinds of values the fields of an image's documents hold, as data; ``wrong_kind`` says what in a document is of another kind.

The tables follow the schema of the image specification. ``null`` counts as absent everywhere, as it does for the tools in Go that write
most images; fields that no table has may hold anything. docs/images-schema.md says where we decide otherwise than the schema.

https://github.com/opencontainers/image-spec/tree/main/schema
"""

from __future__ import annotations

import re
from collections.abc import Callable

from dockless.base.dataclass import dataclass
from dockless.base.later import base64
from dockless.base.typing import Any

_SIZE_MAX = (1 << 63) - 1
_MEDIA_TYPE = r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}\Z"
_DATE = r"(?a)\d{4}-(0\d|1[0-2])-[0-3]\dT[0-2]\d:[0-5]\d:[0-6]\d(\.\d+)?(Z|[+-]\d\d:\d\d)\Z"


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


TEXT = Kind("a text", lambda value: isinstance(value, str))
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
SIZE = Kind("a sound size", lambda value: type(value) is int and 0 <= value <= _SIZE_MAX)
COUNT = Kind("a whole number", SIZE.holds)
DATE = Kind("a date and time (RFC 3339)", lambda value: isinstance(value, str) and re.match(_DATE, value) is not None)
MEDIA_TYPE = Kind("a media type", lambda value: isinstance(value, str) and re.match(_MEDIA_TYPE, value) is not None)
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
