"""The image's own configuration: what to run, as whom, where, with which environment. Data only, bounded and checked.

Of the document only the fields below are used. Labels are kept as data and never mean anything to dockless (attack A21); a volume must
be an absolute, clean path (attack A22); the user is looked up inside the image by the sandbox.

https://github.com/opencontainers/image-spec/blob/main/config.md
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping

from dockless.base.dataclass import dataclass
from dockless.base.healthcheck import HealthCheck
from dockless.base.typing import Any
from dockless.base.units import NOT_FOR_STOP, parse_signal
from dockless.errors import BadImage, BadInput
from dockless.images.model.digest import Digest
from dockless.images.model.digest import parse as parse_digest
from dockless.images.model.platforms import Platform, normal

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LAYERS_MAX = 1000
_SHELL = ("/bin/sh", "-c")
_SHORTEST_TIME, _LONGEST_TIME, _MOST_RETRIES = 1.0, 10**9, 10**6


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """``env`` in order, names unique. ``working_dir`` absolute. ``user``: ``name|uid[:group|gid]`` or empty for root. ``stop_signal``: a
    number, 0 where the image names none. ``volumes``: absolute, clean paths inside the image. ``health``: as Docker's images have it; the
    specification has none."""

    env: tuple[tuple[str, str], ...] = ()
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    working_dir: str = "/"
    user: str = ""
    volumes: tuple[str, ...] = ()
    stop_signal: int = 0
    labels: tuple[tuple[str, str], ...] = ()
    health: HealthCheck | None = None


@dataclass(frozen=True, slots=True)
class ConfigDocument:
    """A parsed image configuration: the platform, the layers' uncompressed digests, and the part that runs."""

    platform: Platform
    diff_ids: tuple[Digest, ...]
    config: ImageConfig
    created: str = ""


def parse(document: Mapping[str, Any], what: str) -> ConfigDocument:
    """Check an image configuration; ``BadImage`` names the field that is wrong."""
    from dockless.images.model.shape import CONFIG, wrong_kind

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
        health=_health(raw, what),
    )


def _volume(path: str, what: str) -> str:
    if not path.startswith("/") or "\0" in path or ".." in path.split("/"):
        raise _bad(what, f"the volume {path[:100]!r} is not an absolute path without '..'")
    clean = "/" + "/".join(part for part in path.split("/") if part not in ("", "."))
    if clean == "/":
        raise _bad(what, "a volume covers the whole image")
    return clean


def _health(raw: Mapping[str, Any], what: str) -> HealthCheck | None:
    """Docker's HEALTHCHECK, whose times are nanoseconds. One more often than every second would cost the host more than the sandbox: it is
    every second. What cannot be read is no check, as for other tools: the image runs."""
    found = raw.get("Healthcheck") or {}
    kind, *argv = _strings(found, "Test", what) or ("NONE",)
    if kind == "CMD-SHELL" and argv:
        argv = [*(_strings(raw, "Shell", what) or _SHELL), argv[0]]
    elif kind != "CMD":
        argv = []
    if not argv or not argv[0]:
        return None
    seconds = [min((found.get(name) or 0) / 1e9, _LONGEST_TIME) for name in ("Interval", "Timeout", "StartPeriod")]
    interval, timeout = (max(value, _SHORTEST_TIME) if value else 0.0 for value in seconds[:2])
    return HealthCheck(tuple(argv), interval, timeout, min(found.get("Retries") or 0, _MOST_RETRIES), seconds[2])


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
