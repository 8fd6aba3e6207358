"""The parsers that read strangers' bytes, each as a function of bytes that raises only where the parser has a fault.

``TARGETS["manifest"](data)`` returns, or raises: ``Broken`` for a property that does not hold, or whatever escaped from the parser. Plain
refusals (``DocklessError``) are the expected answer to most inputs and end here, after a look at the words they use: a stranger's text in a
message must be printable and must have a UTF-8 form, or a hostile name becomes terminal escapes or a crash while the error is shown.

``test_corpus.py`` replays the kept inputs through these, ``atheris_main.py`` looks for new ones.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, BinaryIO

from fuzz import registry_targets
from fuzz.properties import Target, bounded, decoded, hold, speakable, text

from dockless.errors import DocklessError
from dockless.images.archive import discover, tarwriter
from dockless.images.layers import compression
from dockless.images.model import config, digest, manifest, platforms, reference
from dockless.native.layers import Fault, Member, TarLister

OUTPUT_MAX = 8 << 20

# -- small texts -------------------------------------------------------------------------------------------------------------------------


def reference_target(data: bytes) -> None:
    found = reference.parse(decoded(data))
    hold(reference.parse(str(found)) == found, f"{found!r} is not what {str(found)!r} means")
    hold(reference.parse(found.familiar) == found, f"{found!r} is not what its short form {found.familiar!r} means")
    hold(".." not in str(found).split("/") and "\0" not in str(found), f"{found!r} is no safe name")
    hold(len(found.name) <= 255, f"{found!r} is too long")
    hold(str(found).isascii(), f"{found!r} is not ASCII")


def digest_target(data: bytes) -> None:
    found = digest.parse(decoded(data))
    hold(digest.parse(str(found)) == found, f"{found!r} is not stable")
    hold(re.fullmatch(r"[0-9a-f]{64}|[0-9a-f]{128}", found.hex), f"{found!r} is no path component")


def platform_target(data: bytes) -> None:
    parts = [*decoded(data).split("/"), "", "", ""][:3]
    found = platforms.normal(*parts)
    hold(platforms.normal(found.os, found.architecture, found.variant) == found, f"{parts} becomes {found!r}, which changes again")
    for at in ("linux/amd64/v3", "linux/arm64", "linux/arm/v7"):
        rank = platforms.rank(found, platforms.normal(*at.split("/")))
        hold(rank is None or rank >= 0, f"the rank of {found!r} is {rank}")


# -- documents ---------------------------------------------------------------------------------------------------------------------------

DECLARED = ("", manifest.OCI_MANIFEST, manifest.DOCKER_LIST)


def manifest_target(data: bytes) -> None:
    refused: DocklessError | None = None
    for declared in DECLARED:
        try:
            found = manifest.parse(data, "fuzz", declared)
        except DocklessError as error:
            speakable(error)
            refused = error
            continue
        hold(isinstance(found, manifest.Index if declared in manifest.INDEXES else manifest.Manifest) or not declared, "a type is ignored")
        descriptors = found.entries if isinstance(found, manifest.Index) else (found.config, *found.layers)
        for one in descriptors:
            descriptor(one)
    if refused is not None:
        raise refused


def descriptor(one: manifest.Descriptor) -> None:
    digest.parse(str(one.digest))
    hold(isinstance(one.size, int) and one.size >= 0, f"{one!r} has no sound size")
    text(one.media_type, "a media type")
    for key, value in one.annotations:
        text(key, "an annotation")
        text(value, "an annotation")
    hold(isinstance(one.is_attestation, bool), "is_attestation")


def config_target(data: bytes) -> None:
    document = manifest.load_json(data, "fuzz")
    if not isinstance(document, dict):
        return
    found = config.parse(document, "fuzz")
    inner = found.config
    names = [name for name, _ in inner.env]
    hold(len(set(names)) == len(names) and all(name and "=" not in name for name in names), f"the environment {inner.env!r}")
    hold(inner.working_dir.startswith("/") and ".." not in inner.working_dir.split("/"), f"the directory {inner.working_dir!r}")
    hold(0 <= inner.stop_signal <= 64, f"the signal {inner.stop_signal}")
    for path in inner.volumes:
        parts = path.split("/")
        hold(parts[0] == "" and len(parts) > 1 and not {"", ".", ".."} & set(parts[1:]), f"the volume {path!r}")
    words = [*sum(inner.env, ()), *inner.entrypoint, *inner.cmd, inner.working_dir, inner.user, *inner.volumes]
    hold(not any("\0" in word for word in words), "a NUL byte in what becomes arguments, environment or paths")
    for word in [*words, *sum(inner.labels, ()), found.created, str(found.platform)]:
        text(word, "a text of the configuration")
    hold(len(found.diff_ids) <= config.LAYERS_MAX, "too many layers")
    digest.chain(found.diff_ids)


# -- compressed data ---------------------------------------------------------------------------------------------------------------------


class Trickle(io.RawIOBase):
    """A stream that gives what it likes, as pipes and sockets do."""

    def __init__(self, data: bytes, step: int) -> None:
        self._data, self._at, self._step = data, 0, step

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        size = self._step if size < 0 else min(size, self._step)
        piece = self._data[self._at : self._at + size]
        self._at += len(piece)
        return piece


def compression_target(data: bytes) -> None:
    """The first byte says how the stream trickles; both ways of reading must agree, and with the standard library."""
    step, data = (data[0] % 61 + 1, data[1:]) if data else (1, b"")
    output, refusal = inflate(io.BytesIO(data), compression.CHUNK)
    trickled, again = inflate(Trickle(data, step), 1 + 997 * step)  # type: ignore[arg-type]
    kind = compression.detect(data[: compression.MAGIC_LENGTH])
    if max(len(output), len(trickled)) < OUTPUT_MAX:
        # libzstd decodes a frame that it has whole in one go, and then accepts some damaged ones that it refuses when they come in pieces.
        hold((refusal is None) == (again is None) or kind == "zstd", f"read at once: {refusal}; in pieces: {again}")
        hold(refusal is not None or again is not None or output == trickled, "read at once and in pieces it is not the same")
        if refusal is None and again is None and kind != "zstd":
            hold(output == standard(kind, data), f"{kind}: not what the standard library makes of it")
    if refusal is not None:
        speakable(refusal)


def inflate(raw: BinaryIO, size: int) -> tuple[bytes, DocklessError | None]:
    """The output (up to a bound) and the refusal."""
    output = bytearray()
    try:
        stream = compression.Decompressed(raw, "fuzz")
        hold(stream.kind in ("none", "gzip", "zstd", "xz", "bzip2"), f"the kind {stream.kind!r}")
        while len(output) < OUTPUT_MAX and (piece := stream.read(size)):
            hold(len(piece) <= min(size, compression.CHUNK), f"{len(piece)} bytes where {size} were asked for")
            output += piece
        hold(len(output) >= OUTPUT_MAX or not stream.read(size), "bytes after the end")
    except DocklessError as error:
        return bytes(output), error
    return bytes(output), None


def standard(kind: str, data: bytes) -> bytes:
    """The same by the standard library's own reader. Zero padding is cut off first: only gzip's allows it."""
    if kind == "gzip":
        import gzip

        return gzip.decompress(data)
    if kind == "xz":
        import lzma

        # Its stream padding is a multiple of four; ours is any.
        return _members(data, lzma.LZMADecompressor)
    if kind == "bzip2":
        import bz2

        return _members(data, bz2.BZ2Decompressor)
    return data


def _members(data: bytes, new: Callable[[], Any]) -> bytes:
    output = b""
    while data:
        inner = new()
        output += inner.decompress(data)
        hold(inner.eof, "the standard library finds it torn")
        data = inner.unused_data.lstrip(b"\0")
    return output


# -- whole images ------------------------------------------------------------------------------------------------------------------------

_RULE = re.compile(rb"\n?^=== ([^\n]{0,200})\n", re.MULTILINE)
_PLACEHOLDER = re.compile(rb"@([DSH]):([A-Za-z0-9_.-]{1,40})@")


class MemorySource:
    """An image source made of text, so that a mutation does not break every digest::

        === index.json
        {"schemaVersion": 2, "manifests": [{"mediaType": …, "digest": "@D:m@", "size": @S:m@}]}
        === #m
        {"schemaVersion": 2, …}

    ``#m`` is the blob of its own digest; ``@D:m@``, ``@H:m@`` and ``@S:m@`` elsewhere are its digest, hex and size. Blobs are resolved from
    the last to the first, so a document comes before what it names.
    """

    what = "fuzz.tar"

    def __init__(self, data: bytes) -> None:
        parts = _RULE.split(data)
        self.files: dict[str, bytes] = {}
        known: dict[bytes, bytes] = {}

        def fill(match: re.Match[bytes]) -> bytes:
            blob = known.get(match[2])
            if blob is None:
                return match[0]
            found = digest.of(blob)
            return {b"D": str(found), b"H": found.hex, b"S": str(len(blob))}[match[1]].encode()

        for name, content in reversed(list(zip(parts[1::2], parts[2::2], strict=True))):
            content = _PLACEHOLDER.sub(fill, content)
            if name.startswith(b"#"):
                known[name[1:]] = content
                self.files[f"blobs/sha256/{digest.of(content).hex}"] = content
            else:
                self.files[decoded(_PLACEHOLDER.sub(fill, name))] = content

    def open(self, name: str) -> BinaryIO | None:
        hold(isinstance(name, str), f"the name {name!r}")
        return io.BytesIO(self.files[name]) if name in self.files else None

    def names(self) -> list[str]:
        return sorted({name.partition("/")[0] for name in self.files})[:1000]

    def close(self) -> None:
        pass


def discover_target(data: bytes) -> None:
    candidates_of(MemorySource(data))


def candidates_of(source: Any) -> None:
    for one in discover.candidates(source):
        hold(one.manifest is None or isinstance(manifest.parse(one.manifest, "again"), manifest.Manifest), "its manifest is none")
        again = manifest.load_json(one.config, "again")
        hold(config.parse(again, "again") == one.document, "its configuration is another one")
        hold(len(one.layers) == len(one.document.diff_ids), "layers and diff_ids differ in number")
        for name in one.names:
            hold(str(reference.parse(name)) == name, f"the name {name!r} is not canonical")
        for words in (one.what, *one.warnings):
            text(words, "a warning")
            hold(not re.search(r"[\x00-\x1f\x7f-\x9f]", words), f"control characters in {words!r}")
        for layer in one.layers[:8]:
            try:
                layer.open().close()
            except DocklessError as error:
                speakable(error)


def archive_target(data: bytes) -> None:
    """A whole archive as a file: members, links between them, and whatever images it holds."""
    from dockless.images.archive.source import TarSource

    fd = os.memfd_create("fuzz", os.MFD_CLOEXEC)
    with open(fd, "w+b") as file:
        file.write(data)
        file.flush()
        file.seek(0)
        source = TarSource(file, "fuzz.tar")
        for name in [*source.names(), "index.json", "manifest.json", "a/../b", "/etc/passwd", "../x"]:
            stream = source.open(name)
            if stream is not None:
                with stream:
                    hold(len(stream.read()) <= len(data), f"{name!r} is larger than its archive")
        candidates_of(source)


_FLAGS = {"file": b"0", "hardlink": b"1", "symlink": b"2", "char": b"3", "block": b"4", "directory": b"5", "fifo": b"6"}


def rewrite_target(data: bytes) -> None:
    """What was read, written by our own writer, reads as the same."""
    members = members_of(data)
    output = io.BytesIO()
    writer = tarwriter.TarWriter(output)
    kept = []
    for one in members or ():
        if one.major > 0xFFF or one.minor > 0xFFFFF or any(b"=" in key for key in one.xattrs) or not one.name.strip(b"/"):
            continue  # what no file system has, and what nobody hands to the writer
        entry = tarwriter.TarMember(one.name.strip(b"/"), _FLAGS[one.kind], one.mode, one.uid, one.gid, one.mtime, one.size, one.link)
        entry.major, entry.minor, entry.xattrs = one.major, one.minor, one.xattrs
        entry.sparse = None if one.sparse is None else (*one.sparse, (one.size, 0))
        writer.add(entry)
        if one.kind == "file":
            writer.write(data[one.offset : one.offset + one.stored])
        kept.append(replace(one, name=one.name.strip(b"/"), offset=0))
    writer.finish()
    again = members_of(output.getvalue())
    hold(again is not None, "we do not read what we write")
    again = [replace(one, name=one.name.rstrip(b"/"), offset=0) for one in again or ()]
    for one, other in zip(kept, again, strict=True):
        hold(one == other, f"written: {one}; read: {other}")


def members_of(data: bytes) -> list[Member] | None:
    lister = TarLister(1000)
    try:
        lister.feed(data)
        lister.finish()
    except Fault:
        return None
    return lister.members


TARGETS: dict[str, Target] = {
    "reference": bounded(reference_target),
    "digest": bounded(digest_target),
    "platform": bounded(platform_target),
    "manifest": bounded(manifest_target),
    "config": bounded(config_target),
    "compression": bounded(compression_target),
    "discover": bounded(discover_target),
    "archive": bounded(archive_target),
    "rewrite": bounded(rewrite_target),
    **registry_targets.TARGETS,
}
"""What bytes go into each, and nothing but ``Broken`` or a bug comes out."""
