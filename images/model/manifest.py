"""Manifests and indexes, OCI and Docker schema 2: parsed strictly, bounded, never guessed.

A document is what its content says; where its content says two things (``layers`` and ``manifests``, one key twice or in two
spellings), or its media type contradicts it, it is refused (attack A17, CVE-2021-41190). Schema 1 and artifacts are refused by name.

https://github.com/opencontainers/image-spec/blob/main/manifest.md, https://distribution.github.io/distribution/spec/manifest-v2-2/
"""

from __future__ import annotations

from collections.abc import Mapping

from dockless.base import json
from dockless.base.dataclass import dataclass
from dockless.base.later import re
from dockless.base.typing import Any
from dockless.errors import BadImage
from dockless.images.model.config import LAYERS_MAX
from dockless.images.model.digest import Digest
from dockless.images.model.digest import parse as parse_digest
from dockless.images.model.platforms import Platform, normal
from dockless.images.model.shape import MANIFEST, wrong_kind

DOCUMENT_MAX = 4 << 20
"""Bytes of one JSON document, the limit that registries keep too."""
ENTRIES_MAX = 10_000

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_CONFIG = "application/vnd.docker.container.image.v1+json"
MANIFESTS = frozenset({OCI_MANIFEST, DOCKER_MANIFEST})
INDEXES = frozenset({OCI_INDEX, DOCKER_LIST})
REF_NAME = "org.opencontainers.image.ref.name"
CONTAINERD_NAME = "io.containerd.image.name"
_ATTESTATION = "vnd.docker.reference.type"
_OTHER_DIGEST = r"(?!sha(256|512):)[a-z0-9]+(?:[+._-][a-z0-9]+)*:[A-Za-z0-9=_-]+\Z"
_SCHEMA1 = "application/vnd.docker.distribution.manifest.v1"


class Artifact(BadImage):
    """A sound manifest of something that is no image: a chart, a signature, an attestation."""


@dataclass(frozen=True, slots=True)
class Descriptor:
    """What a document says about a blob. ``data``: the blob itself, where it is given inline."""

    media_type: str
    digest: Digest
    size: int
    annotations: tuple[tuple[str, str], ...] = ()
    platform: Platform | None = None
    data: str | None = None

    def annotation(self, key: str) -> str:
        return dict(self.annotations).get(key, "")

    @property
    def foreign(self) -> bool:
        """A layer that may not be spread by registries at will (base layers of Windows)."""
        return ".foreign." in self.media_type or ".nondistributable." in self.media_type

    @property
    def is_attestation(self) -> bool:
        return bool(self.annotation(_ATTESTATION)) or (
            self.platform is not None and "unknown" in (self.platform.os, self.platform.architecture)
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    """One image: its configuration and its layers, bottom first."""

    config: Descriptor
    layers: tuple[Descriptor, ...]


@dataclass(frozen=True, slots=True)
class Index:
    """Several images: platforms of one, or simply several."""

    entries: tuple[Descriptor, ...]


def load_json(data: bytes, what: str) -> Any:
    """``data`` as JSON; ``BadImage`` where it is not, is too large, has a key twice, or a text that is none."""
    if len(data) > DOCUMENT_MAX:
        raise BadImage(f"{what} is larger than {DOCUMENT_MAX} bytes", subject=what)
    try:
        found = json.loads(data.decode("utf-8"), object_pairs_hook=_unique)
        if b"\\ud" in data.lower():
            # Half of a surrogate pair, which only an escape can smuggle in, has no bytes: it could be no argument, no path, no message.
            json.dumps(found, ensure_ascii=False).encode("utf-8")
        return found
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise BadImage(f"{what} is not sound JSON: {why}", subject=what, hint="build or fetch the image again") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


def parse(data: bytes, what: str, declared: str = "") -> Manifest | Index:
    """A manifest or an index from its bytes. ``declared``: the media type by which it was referred to, if any."""
    document = load_json(data, what)
    if not isinstance(document, dict):
        raise _bad(what, "it is not an object")
    folded = [key.casefold() for key in document]
    if len(set(folded)) != len(folded):
        raise _bad(what, "one key stands in it in two spellings")
    media_type = document.get("mediaType")
    if media_type is None:
        media_type = ""
    if not isinstance(media_type, str):
        raise _bad(what, "mediaType is not a media type")
    if document.get("schemaVersion") == 1 or media_type.startswith(_SCHEMA1) or "fsLayers" in document:
        raise BadImage(
            f"{what} is a Docker schema 1 manifest, a format that was given up in 2017",
            subject=what,
            hint="pull and push the image again with a current tool, which converts it",
        )
    version = document.get("schemaVersion")
    if type(version) is not int or version != 2:
        raise _bad(what, "its schemaVersion is not 2")
    is_index = "manifests" in document
    if is_index and ("layers" in document or "config" in document):
        raise _bad(what, "it is ambiguous: both an index and a manifest")
    for stated in (media_type, declared):
        if (stated in INDEXES and not is_index) or (stated in MANIFESTS and is_index):
            raise _bad(what, f"it is ambiguous: its media type {stated} contradicts its content")
    entries = _list(document, "manifests", what, ENTRIES_MAX)
    if wrong := wrong_kind(document, MANIFEST):
        raise _bad(what, wrong)
    if media_type and media_type not in MANIFESTS | INDEXES:
        raise _bad(what, f"its media type {media_type[:100]!r} is unknown")
    if is_index:
        # An image whose digest cannot be computed here is no image for this host; the others are none the worse for it.
        return Index(tuple(_descriptor(entry, what) for entry in entries if not _is_foreign(entry)))
    return _manifest(document, what)


def _manifest(document: Mapping[str, Any], what: str) -> Manifest:
    artifact_type = document.get("artifactType")
    if "config" not in document:
        if artifact_type or "layers" in document:
            raise _artifact(what, str(artifact_type or "unknown"))
        raise _bad(what, "it has no configuration")
    config = _descriptor(document["config"], what)
    if config.media_type not in (OCI_CONFIG, DOCKER_CONFIG) or artifact_type:
        raise _artifact(what, str(artifact_type or config.media_type))
    if "layers" not in document:
        raise _bad(what, "it has no layers")
    layers = tuple(_descriptor(entry, what) for entry in _list(document, "layers", what, LAYERS_MAX))
    return Manifest(config, layers)


def _descriptor(raw: Any, what: str) -> Descriptor:
    """A descriptor whose fields are of the right kinds; those that must be there are looked for here."""
    if raw is None or raw.get("mediaType") is None or raw.get("size") is None:
        raise _bad(what, "a descriptor in it has no media type or no size")
    annotations, platform = raw.get("annotations") or {}, raw.get("platform")
    return Descriptor(
        media_type=raw["mediaType"],
        digest=parse_digest(raw.get("digest"), f"{what}: a descriptor's digest"),
        size=raw["size"],
        annotations=tuple((key, value) for key, value in annotations.items() if value is not None),
        platform=normal(platform.get("os"), platform.get("architecture"), platform.get("variant")) if platform else None,
        data=raw.get("data"),
    )


def _is_foreign(raw: Any) -> bool:
    """Named by a digest of an algorithm that nobody here computes."""
    return isinstance(raw, dict) and isinstance(raw.get("digest"), str) and re.match(_OTHER_DIGEST, raw["digest"]) is not None


def _list(document: Mapping[str, Any], key: str, what: str, limit: int) -> list[Any]:
    value = document.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise _bad(what, f"{key} is not a list")
    if len(value) > limit:
        raise _bad(what, f"it has {len(value)} {key}, more than {limit}")
    return value


def _artifact(what: str, kind: str) -> Artifact:
    return Artifact(
        f"{what} is not a container image but an artifact of type {kind[:100]!r}",
        subject=what,
        hint="dockless runs container images; fetch artifacts with the tool that made them",
    )


def _bad(what: str, why: str) -> BadImage:
    return BadImage(f"{what} is malformed: {why}", subject=what, hint="build or fetch the image again")
