"""The documents of a new image: the configuration and the manifest of the one below, and what is added.

What we do not know in a base's configuration stays as it is (health checks, ONBUILD, other tools' fields), except what told of the
container that it was made in. The manifest is always an OCI one: a Docker base's media types are replaced by their OCI equals, which every
registry and engine of the last years takes, and only there has zstd a type. Blobs and their digests stay the same.

https://github.com/opencontainers/image-spec/blob/main/config.md, https://github.com/opencontainers/image-spec/blob/main/conversion.md
"""

from __future__ import annotations

import datetime
import json
import os
import posixpath
from collections.abc import Mapping, Sequence

from dockless.base.dataclass import dataclass, field
from dockless.base.typing import Any
from dockless.errors import BadImage, BadInput
from dockless.images.model import config as configuration
from dockless.images.model import manifest, platforms
from dockless.images.model.digest import Digest

_OF_THE_CONTAINER = ("container", "container_config", "docker_version", "id", "parent", "parent_id")
_OCI_TYPES = {
    "application/vnd.docker.image.rootfs.diff.tar": manifest.OCI_LAYER,
    "application/vnd.docker.image.rootfs.diff.tar.gzip": manifest.OCI_LAYER + "+gzip",
    "application/vnd.docker.image.rootfs.diff.tar.zstd": manifest.OCI_LAYER + "+zstd",
    "application/vnd.docker.image.rootfs.foreign.diff.tar": "application/vnd.oci.image.layer.nondistributable.v1.tar",
    "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip": "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip",
}


_EXAMPLES = {
    "CMD": 'CMD ["python3", "train.py"], CMD [] for none',
    "ENTRYPOINT": 'ENTRYPOINT ["/bin/tool"], ENTRYPOINT [] for none',
    "ENV": "ENV NAME=VALUE, ENV NAME= for an empty one",
    "LABEL": "LABEL NAME=VALUE",
    "USER": "USER 1000, USER root",
    "WORKDIR": "WORKDIR /work",
    "VOLUME": "VOLUME /data",
    "EXPOSE": "EXPOSE 8080",
    "STOPSIGNAL": "STOPSIGNAL SIGINT",
}
"""What ``Edit.parse`` takes, and how each is written."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Changes to an image's configuration. None: as it was. ``env``, ``labels``: added to those there are; a value of None removes one.
    ``volumes``, ``ports``: added."""

    cmd: tuple[str, ...] | None = None
    entrypoint: tuple[str, ...] | None = None
    env: Mapping[str, str | None] = field(default_factory=dict)
    labels: Mapping[str, str | None] = field(default_factory=dict)
    user: str | None = None
    workdir: str | None = None
    volumes: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()
    stop_signal: str | None = None
    author: str = ""
    comment: str = ""

    def __post_init__(self) -> None:
        if self.workdir is not None and not self.workdir.startswith("/"):
            raise BadInput(f"working directory {self.workdir!r} is not absolute", subject=self.workdir, hint="start it with '/'")
        for name in self.env:
            if not name or "=" in name or "\0" in name:
                raise BadInput(f"environment name {name!r} is empty or contains '='", subject=name, hint="write ENV NAME=VALUE")
        if "" in self.labels:
            raise BadInput("a label without a name", subject="LABEL", hint="write LABEL NAME=VALUE")
        try:
            configuration.parse({"config": self._apply({})}, "the change")
        except BadImage as error:
            why = str(error).removeprefix("the change: its configuration is malformed: ")
            raise BadInput(f"the change cannot be made: {why}", subject=error.subject, hint="write it as in a Dockerfile") from None

    @classmethod
    def parse(cls, instructions: Sequence[str], *, author: str = "", comment: str = "") -> Edit:
        """From Dockerfile instructions, as ``docker commit --change`` takes them: CMD, ENTRYPOINT, ENV, LABEL, USER, WORKDIR, VOLUME,
        EXPOSE, STOPSIGNAL. ``BadInput``"""
        values: dict[str, Any] = {"env": {}, "labels": {}, "volumes": (), "ports": ()}
        for line in instructions:
            word, _, rest = line.strip().partition(" ")
            kind, rest = word.upper(), rest.strip()
            if kind in _EXAMPLES and not rest:
                raise BadInput(f"{kind} says nothing", subject=kind, hint=f"write it as in a Dockerfile: {_EXAMPLES[kind]}")
            if kind in ("CMD", "ENTRYPOINT"):
                values[kind.lower()] = _command(rest)
            elif kind in ("ENV", "LABEL"):
                values["env" if kind == "ENV" else "labels"] |= _pairs(kind, rest)
            elif kind in ("USER", "WORKDIR", "STOPSIGNAL"):
                values[{"STOPSIGNAL": "stop_signal"}.get(kind, kind.lower())] = rest
            elif kind in ("VOLUME", "EXPOSE"):
                key = "volumes" if kind == "VOLUME" else "ports"
                values[key] += _command(rest) if rest.startswith("[") else tuple(rest.split())
            else:
                raise BadInput(
                    f"{line[:80]!r} is not a change that an image can take",
                    subject=line[:80],
                    hint=f"{', '.join(_EXAMPLES)}, as in a Dockerfile: {_EXAMPLES['ENV']}",
                )
        return cls(author=author, comment=comment, **values)

    def _apply(self, old: Mapping[str, Any]) -> dict[str, Any]:
        """The ``config`` object with these changes."""
        new = dict(old)
        if self.entrypoint is not None:
            new["Entrypoint"] = list(self.entrypoint)
            if self.cmd is None:
                new.pop("Cmd", None)  # arguments of another program; docker does the same
        if self.cmd is not None:
            new["Cmd"] = list(self.cmd)
        if self.env:
            env = dict(entry.split("=", 1) for entry in old.get("Env") or [] if "=" in entry)
            new["Env"] = [f"{name}={value}" for name, value in _merged(env, self.env).items()]
        if self.labels:
            new["Labels"] = _merged(old.get("Labels") or {}, self.labels)
        for key, value in (("User", self.user), ("WorkingDir", self.workdir), ("StopSignal", self.stop_signal)):
            if value is not None:
                new[key] = posixpath.normpath(value) if key == "WorkingDir" else value
        for key, names in (("Volumes", self.volumes), ("ExposedPorts", tuple(_port(port) for port in self.ports))):
            if names:
                new[key] = {**(old.get(key) or {}), **{name: {} for name in names}}
        return {key: value for key, value in new.items() if value not in (None, [], {}, "")}


def _merged(old: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    new = {**old, **changes}
    return {key: value for key, value in new.items() if value is not None}


def _port(text: str) -> str:
    number, _, protocol = text.partition("/")
    if not number.isdecimal() or not 0 < int(number) < 65536 or protocol not in ("", "tcp", "udp", "sctp"):
        raise BadInput(f"{text[:40]!r} is not a port", subject=text[:40], hint="write 8080 or 53/udp")
    return f"{int(number)}/{protocol or 'tcp'}"


def _command(text: str) -> tuple[str, ...]:
    """The exec form, a JSON list; anything else goes to a shell."""
    if text.startswith("["):
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if isinstance(found, list) and all(isinstance(part, str) for part in found):
            return tuple(found)
    return ("/bin/sh", "-c", text) if text else ()


def _pairs(kind: str, text: str) -> dict[str, str]:
    import shlex

    try:
        words = shlex.split(text)
    except ValueError as error:
        hint = f"write it as in a Dockerfile: {_EXAMPLES[kind]}"
        raise BadInput(f"{kind} {text[:60]}: {error}", subject=text[:60], hint=hint) from error
    if len(words) > 1 and "=" not in words[0]:  # the old form: one name, the rest is its value
        name, _, value = text.partition(" ")
        return {name: value.strip()}
    if not all("=" in word for word in words):
        hint = f"write it as in a Dockerfile: {_EXAMPLES[kind]}"
        raise BadInput(f"{kind} {text[:60]!r} is not a list of NAME=VALUE", subject=text[:60], hint=hint)
    return {name: value for name, _, value in (word.partition("=") for word in words)}


# -- time ----------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Created:
    """When an image was made. ``given``: by the caller or by ``SOURCE_DATE_EPOCH``, so everything in it is to be reproducible."""

    when: datetime.datetime
    given: bool

    @classmethod
    def of(cls, value: float | datetime.datetime | None) -> Created:
        """``value``: seconds since 1970, or a time with a zone; None: ``SOURCE_DATE_EPOCH`` if it is set, else now. ``BadInput``

        https://reproducible-builds.org/specs/source-date-epoch/"""
        given = value is not None
        text = os.environ.get("SOURCE_DATE_EPOCH", "")
        if value is None and text:
            if not text.isdecimal():
                raise BadInput(f"SOURCE_DATE_EPOCH is {text[:40]!r}", subject="SOURCE_DATE_EPOCH", hint="it is seconds since 1970")
            value, given = int(text), True
        try:
            if value is None:
                when = datetime.datetime.now(datetime.UTC)
            elif isinstance(value, datetime.datetime):
                if value.tzinfo is None:
                    raise BadInput(f"the time {value} has no time zone", subject=str(value), hint="use datetime.now(timezone.utc)")
                when = value.astimezone(datetime.UTC)
            else:
                when = datetime.datetime.fromtimestamp(value, datetime.UTC)
        except (OverflowError, ValueError, OSError) as error:
            if isinstance(error, BadInput):
                raise
            raise BadInput(f"{value} is not a time", subject=str(value), hint="seconds since 1970, or a datetime") from error
        return cls(when, given)

    @property
    def clamp(self) -> int | None:
        """No file may be younger: nanoseconds since 1970."""
        return int(self.when.timestamp()) * 1_000_000_000 if self.given else None

    def __str__(self) -> str:
        return self.when.isoformat().replace("+00:00", "Z")


# -- documents -----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewLayer:
    """The layer that is added. ``media_type``: of the blob."""

    diff_id: Digest
    digest: Digest
    size: int
    media_type: str


def new_config(base: bytes | None, layer: NewLayer | None, edit: Edit, created: Created, created_by: str) -> bytes:
    """The configuration of ``base`` (None: of nothing) with one more layer and history entry."""
    document: dict[str, Any] = manifest.load_json(base, "the base's configuration") if base is not None else _empty()
    for key in _OF_THE_CONTAINER:
        document.pop(key, None)
    rootfs = document.get("rootfs") or {}
    old = list(rootfs.get("diff_ids") or [])
    history = _fitting(document.get("history"), len(old))
    entry: dict[str, Any] = {"created": str(created), "created_by": created_by}
    entry |= {key: value for key, value in (("author", edit.author), ("comment", edit.comment)) if value}
    if layer is None:
        entry["empty_layer"] = True
    document["created"] = str(created)
    if edit.author:
        document["author"] = edit.author
    document["config"] = edit._apply(document.get("config") or {})
    document["rootfs"] = {"type": "layers", "diff_ids": [*old, *([str(layer.diff_id)] if layer is not None else [])]}
    document["history"] = [*history, entry]
    return to_json(document)


def _empty() -> dict[str, Any]:
    here = platforms.host()
    return {"architecture": here.architecture, "os": here.os}


def _fitting(history: object, layers: int) -> list[Any]:
    """The base's history; where it does not tell of each layer, one that does: readers match the two one by one."""
    found = [entry for entry in history if isinstance(entry, dict)] if isinstance(history, list) else []
    told = sum(1 for entry in found if not entry.get("empty_layer"))
    return found if told == layers else [{"created_by": "not recorded by the base image"} for _ in range(layers)]


def new_manifest(base: bytes | None, config_raw: bytes, config_digest: Digest, layer: NewLayer | None) -> bytes:
    """An OCI manifest: the layers of ``base``, and the new one."""
    layers: list[dict[str, Any]] = []
    if base is not None:
        for entry in manifest.load_json(base, "the base's manifest").get("layers") or []:
            kind = entry.get("mediaType")
            layers.append({**entry, "mediaType": _OCI_TYPES.get(kind, kind)})
    if layer is not None:
        layers.append({"mediaType": layer.media_type, "digest": str(layer.digest), "size": layer.size})
    document = {
        "schemaVersion": 2,
        "mediaType": manifest.OCI_MANIFEST,
        "config": {"mediaType": manifest.OCI_CONFIG, "digest": str(config_digest), "size": len(config_raw)},
        "layers": layers,
    }
    return to_json(document)


def to_json(document: object) -> bytes:
    """As every document of ours is written: small, and the same for the same content."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
