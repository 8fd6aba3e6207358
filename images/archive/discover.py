"""What images a source holds: OCI layouts, docker-save archives (old and new), several images in one, several platforms of one.

Nothing is unpacked here and only small documents are read, each verified against its digest. The result is a list of candidates; the loader
takes their layers one by one.

https://github.com/opencontainers/image-spec/blob/main/image-layout.md, https://github.com/moby/docker-image-spec
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable

from dockless.base.dataclass import dataclass
from dockless.base.typing import BinaryIO
from dockless.errors import BadImage, BadInput
from dockless.images.archive.source import ArchiveSource
from dockless.images.layers.pipeline import LayerSource
from dockless.images.model import config, digest, manifest, platforms, reference
from dockless.images.model.choose import choose, inline, known, verified
from dockless.images.model.config import ConfigDocument
from dockless.images.model.digest import Digest
from dockless.images.model.manifest import Descriptor, Index, Manifest

_LINK_TEXT_MAX = 255
_LINK_TEXT = re.compile(rb"(?:\.\./){1,3}[A-Za-z0-9][A-Za-z0-9._/-]*\Z")
_HEX_NAME = re.compile(r"(?:sha256:)?([0-9a-f]{64})(?:\.json)?\Z")
_ROOTFS = frozenset({"bin", "etc", "usr", "lib", "sbin", "var", "root"})


@dataclass(frozen=True, slots=True)
class Candidate:
    """An image that could be loaded. ``manifest`` is None where the source has none and one is to be written (docker-save)."""

    names: tuple[str, ...]
    manifest: bytes | None
    config: bytes
    document: ConfigDocument
    layers: tuple[LayerSource, ...]
    what: str
    warnings: tuple[str, ...] = ()


def candidates(source: ArchiveSource) -> list[Candidate]:
    """All images of ``source``; ``BadImage`` says why there is none."""
    top = _document(source, "index.json")
    docker = None
    if top is not None:
        _check_layout(source)
        index = manifest.parse(top, f"{source.what}: index.json")
        if not isinstance(index, Index):
            raise BadImage(f"{source.what}: index.json is not an index", subject=source.what)
        if index.entries:
            return _oci(source, index)
    docker = _document(source, "manifest.json")
    if docker is not None:
        return _docker(source, docker)
    raise _no_image(source, empty_index=top is not None)


def _document(source: ArchiveSource, name: str) -> bytes | None:
    stream = source.open(name)
    return None if stream is None else _small(stream, f"{source.what}: {name[:100]}")


def _small(stream: BinaryIO, what: str) -> bytes:
    with stream:
        data = stream.read(manifest.DOCUMENT_MAX + 1)
    if len(data) > manifest.DOCUMENT_MAX:
        raise BadImage(f"{what} is larger than {manifest.DOCUMENT_MAX} bytes", subject=what)
    return data


def _check_layout(source: ArchiveSource) -> None:
    raw = _document(source, "oci-layout")
    layout = manifest.load_json(raw, f"{source.what}: oci-layout") if raw is not None else {"imageLayoutVersion": "1.0.0"}
    version = layout.get("imageLayoutVersion") if isinstance(layout, dict) else None
    if version != "1.0.0":
        raise BadImage(f"{source.what} is an OCI layout of the unknown version {str(version)[:40]!r}", subject=source.what)


def _no_image(source: ArchiveSource, empty_index: bool) -> BadImage:
    what, names = source.what, source.names()
    if empty_index:
        return BadImage(f"{what} is an OCI layout that lists no images", subject=what, hint="push or copy an image into it first")
    if "repositories" in names:
        return BadImage(
            f"{what} is a docker-save archive without manifest.json (Docker before 1.10, or damaged)",
            subject=what,
            hint="load and save it again with a current docker or podman",
        )
    if len(_ROOTFS.intersection(names)) >= 2:
        return BadImage(
            f"{what} is a root file system, not an image (docker export, a minirootfs)",
            subject=what,
            hint="make an image of it: dockless import FILE NAME",
        )
    seen = ", ".join(repr(name[:40]) for name in names[:3]) or "nothing"
    return BadImage(
        f"{what} is not an image: it holds {seen}{' …' if len(names) > 3 else ''} but neither index.json nor manifest.json",
        subject=what,
        hint="give an OCI layout (directory or tar) or a docker-save archive",
    )


# -- OCI layout ----------------------------------------------------------------------------------------------------------------------


def _oci(source: ArchiveSource, index: Index) -> list[Candidate]:
    found: list[Candidate] = []
    refused: list[BadImage] = []
    for names, entries in _groups(index.entries):
        try:
            found.append(_oci_image(source, choose(_Holder(source), entries, platforms.host(), strict=False), names))
        except manifest.Artifact as error:
            refused.append(error)
    if not found:
        raise refused[0] if refused else BadImage(f"{source.what} lists nothing that is an image", subject=source.what)
    return found


def _groups(entries: Iterable[Descriptor]) -> list[tuple[str, list[Descriptor]]]:
    """Entries that are one image: several platforms under one name. Entries without a platform are an image each."""
    groups: dict[str, list[Descriptor]] = {}
    found: list[tuple[str, list[Descriptor]]] = []
    for entry in entries:
        name = _name(entry)
        if entry.is_attestation or not known(entry):
            continue
        if entry.platform is None:
            found.append((name, [entry]))
        elif name in groups:
            groups[name].append(entry)
        else:
            groups[name] = [entry]
            found.append((name, groups[name]))
    return found


def _name(entry: Descriptor) -> str:
    """containerd's annotation has the whole name where the other has a tag; a tool that gave the image another tag (umoci repack) may have
    left it as it was."""
    full, ref = entry.annotation(manifest.CONTAINERD_NAME), entry.annotation(manifest.REF_NAME)
    return full if not ref or full == ref or full.endswith(f":{ref}") else ref


@dataclass(frozen=True, slots=True)
class _Holder:
    """What ``choose`` may ask of a source."""

    source: ArchiveSource

    @property
    def what(self) -> str:
        return self.source.what

    def has(self, entry: Descriptor) -> bool:
        stream = _open_blob(self.source, entry)
        if stream is not None:
            stream.close()
        return stream is not None or entry.data is not None

    def read(self, entry: Descriptor) -> bytes:
        return _blob(self.source, entry)


def _oci_image(source: ArchiveSource, entry: Descriptor, name: str) -> Candidate:
    what = f"{source.what}: manifest {entry.digest}"
    raw = _blob(source, entry)
    parsed = manifest.parse(raw, what, entry.media_type)
    assert isinstance(parsed, Manifest)
    config_raw = _blob(source, parsed.config)
    document = config_document(config_raw, f"{source.what}: image {entry.digest}", len(parsed.layers))
    names, warnings = _names(name, source)
    layers = tuple(_oci_layer(source, layer) for layer in parsed.layers)
    return Candidate(names, raw, config_raw, document, layers, what, warnings)


def _oci_layer(source: ArchiveSource, layer: Descriptor) -> LayerSource:
    what = f"{source.what}: layer {layer.digest}"

    def open_layer() -> BinaryIO:
        stream = _open_blob(source, layer)
        if stream is None:
            raise _missing(source, layer)
        return stream

    return LayerSource(open_layer, layer.digest, layer.size, what)


def _names(name: str, source: ArchiveSource) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The reference that an annotation means. A bare tag (``oci:busybox:1.37`` in skopeo's words) is completed by the source's own name."""
    if not name:
        return (), ()
    if ":" not in name and "/" not in name and "@" not in name:
        stem = re.sub(r"(\.tar)?(\.(gz|xz|zst|bz2|tgz|oci))?\Z", "", posixpath.basename(source.what.rstrip("/"))).lower()
        name = f"{stem}:{name}" if stem else name
    try:
        return (_canonical(name),), ()
    except BadInput:
        return (), (f"loaded without a name: {name[:100]!r} is not a valid reference",)


def _canonical(name: str) -> str:
    parsed = reference.parse(name)
    return str(reference.Reference(parsed.domain, parsed.path, parsed.tag or reference.DEFAULT_TAG))


def _open_blob(source: ArchiveSource, entry: Descriptor) -> BinaryIO | None:
    """The blob's file. A checkout without symbolic links has the link's text in its place (the official busybox layouts are kept in git);
    what it leads to is verified like any other blob."""
    path = f"blobs/{entry.digest.algorithm}/{entry.digest.hex}"
    stream = source.open(path)
    if stream is not None:
        with stream:
            text = stream.read(_LINK_TEXT_MAX + 1)
        if len(text) <= _LINK_TEXT_MAX and len(text) != entry.size and _LINK_TEXT.match(text):
            path = posixpath.normpath(posixpath.join(posixpath.dirname(path), text.decode()))
    return source.open(path) if stream is not None else None


def _blob(source: ArchiveSource, entry: Descriptor) -> bytes:
    """A small blob: inline or from the source, verified."""
    what = f"{source.what}: blob {entry.digest}"
    data = inline(entry, what)
    if data is not None:
        return data
    stream = _open_blob(source, entry)
    if stream is None:
        raise _missing(source, entry)
    return verified(_small(stream, what), entry, what)


def _missing(source: ArchiveSource, entry: Descriptor) -> BadImage:
    return BadImage(
        f"{source.what} lacks the blob {entry.digest}",
        subject=source.what,
        hint="the layout is incomplete (sparse, or for another platform); copy the whole image",
    )


# -- docker save ---------------------------------------------------------------------------------------------------------------------


def _docker(source: ArchiveSource, raw: bytes) -> list[Candidate]:
    what = f"{source.what}: manifest.json"
    entries = manifest.load_json(raw, what)
    if not isinstance(entries, list) or not entries or len(entries) > manifest.ENTRIES_MAX:
        raise BadImage(f"{what} lists no images", subject=source.what, hint="save the image again")
    return [_docker_image(source, entry, what) for entry in entries]


def _docker_image(source: ArchiveSource, entry: object, what: str) -> Candidate:
    if not isinstance(entry, dict):
        raise BadImage(f"{what} is malformed: an entry is not an object", subject=source.what)
    path, tags, layer_paths = entry.get("Config"), entry.get("RepoTags") or [], entry.get("Layers") or []
    if not isinstance(path, str) or not _texts(tags) or not _texts(layer_paths):
        raise BadImage(f"{what} is malformed: Config, RepoTags or Layers is of the wrong kind", subject=source.what)
    raw = _document(source, path)
    if raw is None:
        raise BadImage(f"{source.what} lacks the configuration {path[:100]!r}", subject=source.what, hint="save the image again")
    warnings = []
    match = _HEX_NAME.match(posixpath.basename(path))
    if match is not None and digest.of(raw).hex != match[1]:
        if path.startswith("blobs/"):
            digest.check(raw, Digest("sha256", match[1]), f"{source.what}: configuration {path[:100]}")
        # In the old form the name is a habit, not a promise: docker and skopeo do not look at it either.
        warnings.append(f"the configuration {path[:100]} is not what its name says; its digest is {digest.of(raw)}")
    document = config_document(raw, f"{source.what}: {path[:100]}", len(layer_paths))
    names = []
    for tag in tags:
        try:
            names.append(_canonical(tag))
        except BadInput:
            warnings.append(f"the tag {tag[:100]!r} is not a valid reference and was left out")
    layers = tuple(_docker_layer(source, layer) for layer in layer_paths)
    return Candidate(tuple(names), None, raw, document, layers, f"{source.what}: image {path[:80]}", tuple(warnings))


def _docker_layer(source: ArchiveSource, path: str) -> LayerSource:
    what = f"{source.what}: layer {path[:100]}"

    def open_layer() -> BinaryIO:
        stream = source.open(path)
        if stream is None:
            raise BadImage(f"{source.what} lacks the layer {path[:100]!r}", subject=source.what, hint="save the image again")
        return stream

    return LayerSource(open_layer, None, None, what)


def _texts(value: object) -> bool:
    return isinstance(value, list) and len(value) <= manifest.ENTRIES_MAX and all(isinstance(text, str) for text in value)


def config_document(raw: bytes, what: str, layers: int) -> ConfigDocument:
    """The parsed configuration of an image that has ``layers`` layers."""
    document = manifest.load_json(raw, what)
    if not isinstance(document, dict):
        raise BadImage(f"{what}: its configuration is not an object", subject=what)
    parsed = config.parse(document, what)
    if len(parsed.diff_ids) != layers:
        raise BadImage(
            f"{what} is malformed: its configuration names {len(parsed.diff_ids)} layers, its manifest {layers}",
            subject=what,
            hint="build or fetch the image again",
        )
    return parsed
