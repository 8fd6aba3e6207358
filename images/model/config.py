"""The image's own configuration: what to run, as whom, where, with which environment. Data only, bounded and checked.

Of the document only the fields below are used. Labels are kept as data and never mean anything to dockless (attack A21); a volume must
be an absolute, clean path (attack A22); the user is looked up inside the image by the sandbox.

https://github.com/opencontainers/image-spec/blob/main/config.md
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dockless.base.units import NOT_FOR_STOP, parse_signal
from dockless.errors import BadImage, BadInput
from dockless.images.model.digest import Digest
from dockless.images.model.digest import parse as parse_digest
from dockless.images.model.platforms import Platform, normal
from dockless.images.model.shape import CONFIG, wrong_kind

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LAYERS_MAX = 1000


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """``env`` in order, names unique. ``working_dir`` absolute. ``user``: ``name|uid[:group|gid]`` or empty for root. ``stop_signal``: a
    number, 0 where the image names none. ``volumes``: absolute, clean paths inside the image."""

    env: tuple[tuple[str, str], ...] = ()
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    working_dir: str = "/"
    user: str = ""
    volumes: tuple[str, ...] = ()
    stop_signal: int = 0
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ConfigDocument:
    """A parsed image configuration: the platform, the layers' uncompressed digests, and the part that runs."""

    platform: Platform
    diff_ids: tuple[Digest, ...]
    config: ImageConfig
    created: str = ""


def parse(document: Mapping[str, Any], what: str) -> ConfigDocument:
    """Check an image configuration; ``BadImage`` names the field that is wrong."""
    if wrong := wrong_kind(document, CONFIG):
        raise _bad(what, wrong)
    rootfs = document.get("rootfs") or {}
    if rootfs.get("type", "layers") != "layers":
        raise _bad(what, "rootfs.type is not 'layers'")
    diff_ids = rootfs.get("diff_ids") or []
    if len(diff_ids) > LAYERS_MAX:
        raise _bad(what, f"it has {len(diff_ids)} layers, more than {LAYERS_MAX}")
    return ConfigDocument(
        platform=normal(document.get("os"), document.get("architecture"), document.get("variant")),
        diff_ids=tuple(parse_digest(text, "a layer's diff_id") for text in diff_ids),
        config=_config(document.get("config") or {}, what),
        created=document.get("created") or "",
    )


def _config(raw: Mapping[str, Any], what: str) -> ImageConfig:
    env: dict[str, str] = {}
    for entry in _strings(raw, "Env", what):
        name, equals, value = entry.partition("=")
        if equals and name:
            env[name] = value
    return ImageConfig(
        env=tuple(env.items()),
        entrypoint=_strings(raw, "Entrypoint", what),
        cmd=_strings(raw, "Cmd", what),
        working_dir=posixpath.normpath("/" + _string(raw, "WorkingDir", what).lstrip("/")),
        user=_string(raw, "User", what),
        volumes=tuple(sorted({_volume(path, what) for path in raw.get("Volumes") or {}})),
        stop_signal=_stop_signal(_string(raw, "StopSignal", what), what),
        labels=tuple((key, value) for key, value in (raw.get("Labels") or {}).items() if value is not None),
    )


def _volume(path: str, what: str) -> str:
    if not path.startswith("/") or "\0" in path or ".." in path.split("/"):
        raise _bad(what, f"the volume {path[:100]!r} is not an absolute path without '..'")
    clean = "/" + "/".join(part for part in path.split("/") if part not in ("", "."))
    if clean == "/":
        raise _bad(what, "a volume covers the whole image")
    return clean


def _stop_signal(text: str, what: str) -> int:
    """The number, 0 for none. One that asks no program to end (SIGSTOP, SIGCONT) counts as none: the image runs, and SIGTERM is sent."""
    try:
        number = parse_signal(text)
    except BadInput:
        raise _bad(what, f"the stop signal {text[:40]!r} is unknown") from None
    return 0 if number in NOT_FOR_STOP else number


def _strings(raw: Mapping[str, Any], key: str, what: str) -> tuple[str, ...]:
    value = raw.get(key) or []
    if any(part is None or "\0" in part for part in value):
        raise _bad(what, f"{key} is not a list of texts")
    return tuple(value)


def _string(raw: Mapping[str, Any], key: str, what: str) -> str:
    value: str = raw.get(key) or ""
    if "\0" in value:
        raise _bad(what, f"{key} is not a text")
    return value


def _bad(what: str, why: str) -> BadImage:
    return BadImage(f"{what}: its configuration is malformed: {why}", subject=what, hint="build the image again")
