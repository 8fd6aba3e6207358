"""A tar as the items of a copy into a sandbox, and the items of a copy out of it as a tar.

A tar may come from anywhere. It is read once, while it comes, by the parser of layers (``native/layer/tar.c``), which refuses what two
readers would see differently. Names are taken below the directory that it is unpacked in: one that leads upwards is an error, and links on
the way are refused by the agent (``WITH_BENEATH``). How much it may hold is bounded by ``Tally``, however little it is compressed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Generator, Iterator

from dockless.base.typing import NoReturn
from dockless.errors import BadImage, BadInput
from dockless.images.archive.tarwriter import DIRECTORY, FILE, SYMLINK, TarMember, TarWriter, Writable
from dockless.images.layers.compression import Decompressed, Readable
from dockless.native.layers import TAR_BLOCK, Fault, Member, TarLister
from dockless.sandbox.files.tree import NOTHING, Item, Kind, Tally, joined
from dockless.sandbox.files.wire import CHUNK

_KINDS: dict[str, Kind] = {"file": "file", "directory": "directory", "symlink": "link", "hardlink": "hardlink"}
_IMPLIED = 0o40755
"""The mode of a directory that a tar has no entry for."""
_BEHIND = 1 << 20
"""Bytes behind the end of a tar that are read, so that whoever writes its padding is not interrupted."""
_WRITTEN = {"file": FILE, "directory": DIRECTORY, "link": SYMLINK}


class Archive:
    """A tar, compressed or not, while it comes. ``what``: its name, for errors."""

    def __init__(self, stream: Readable, what: str) -> None:
        self._what = what
        self._lister = TarLister(1 << 62)  # the copy counts them
        try:
            self._raw = Decompressed(stream, what)
        except BadImage as error:
            self._damaged(str(error))

    def items(self) -> Generator[Item, None, None]:
        """Each after the directory that it is in, whether the tar has an entry for that or not. ``BadInput`` for a tar that is damaged, or
        has names that lead upwards."""
        there = {b""}
        while (member := self._next()) is not None:
            path = self._below(member.name)
            for end in (at for at, byte in enumerate(path) if byte == ord("/")):
                if path[:end] not in there:
                    there.add(path[:end])
                    yield Item(path[:end], "directory", _IMPLIED, member.mtime)
            kind = _KINDS.get(member.kind, "special")
            if kind == "directory":
                there.add(path)
            content = _in_chunks(self._contents(member))
            target = self._below(member.link) if kind == "hardlink" else member.link
            yield Item(path, kind, member.mode, member.mtime, member.size, content if kind == "file" else NOTHING, target)
            for _ in content:  # what nobody wanted
                pass
            self._feed(self._read(-member.stored % TAR_BLOCK))
        self._read(_BEHIND)

    def _next(self) -> Member | None:
        while not self._lister.ended:
            block = self._read(TAR_BLOCK)
            self._feed(block)
            if len(block) < TAR_BLOCK:
                break
            if self._lister.members:
                return self._lister.members.pop()
        try:
            self._lister.finish()
        except Fault as fault:
            self._damaged(f"{self._what}: {fault.text}")
        return None

    def _contents(self, member: Member) -> Iterator[bytes]:
        """What is in a file, zeros for its holes."""
        at = 0
        for offset, length in member.sparse if member.sparse is not None else ((0, member.stored),):
            yield from _zeros(offset - at)
            at = offset + length
            while length:
                piece = self._read(min(length, CHUNK))
                self._feed(piece)
                if not piece:
                    self._damaged(f"{self._what}: it ends in the middle of a member")
                length -= len(piece)
                yield piece
        yield from _zeros(member.size - at)

    def _read(self, size: int) -> bytes:
        """So many bytes, fewer at the end alone."""
        found = bytearray()
        while len(found) < size:
            try:
                piece = self._raw.read(size - len(found))
            except BadImage as error:
                self._damaged(str(error))
            if not piece:
                break
            found += piece
        return bytes(found)

    def _feed(self, data: bytes) -> None:
        try:
            self._lister.feed(data)
        except Fault as fault:
            self._damaged(f"{self._what}: {fault.text}")

    def _damaged(self, why: str) -> NoReturn:
        hint = "give a tar, compressed or not: tar -c DIR | dockless cp - NAME:/there"
        raise BadInput(f"no sound tar archive: {why}", subject=self._what, hint=hint) from None

    def _below(self, name: bytes) -> bytes:
        """A name as a path below the directory that is unpacked in."""
        parts = [part for part in name.split(b"/") if part not in (b"", b".")]
        if b".." in parts:
            shown = os.fsdecode(name)[:80]
            raise BadInput(f"{self._what}: the name {shown!r} leads upwards", subject=self._what, hint="do not use this tar")
        path = b"/".join(parts)
        if len(path) > 4095:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), os.fsdecode(path[:80]))
        return path


def _zeros(size: int) -> Iterator[bytes]:
    while size > 0:
        yield bytes(min(size, CHUNK))
        size -= CHUNK


def _in_chunks(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The same bytes in whole chunks, the last one shorter."""
    waiting = b""
    for piece in pieces:
        waiting += piece
        if len(waiting) >= CHUNK:
            yield waiting[:CHUNK]
            waiting = waiting[CHUNK:]
    yield waiting


def write(out: Writable, things: Iterator[Item], tally: Tally, top: bytes) -> None:
    """Items as an uncompressed tar, below the name ``top``, which may be empty. Owner is root, and no set-user-id bit is in it: whoever
    unpacks it gives no right away. Links are as they are inside: nothing is made on this host."""
    tar = TarWriter(out)
    for item in things:
        tally.item(item)
        if item.kind == "special":
            tally.skip(item, "a FIFO, a socket or a device")
            continue
        size = item.size if item.kind == "file" else 0
        tally.chunk(item, size)
        name = joined(top, item.path).removesuffix(b"/")
        mode = 0o777 if item.kind == "link" else item.mode & 0o777
        tar.add(TarMember(name, _WRITTEN[item.kind], mode, mtime=item.modified, size=size, link=item.target))
        for chunk in item.content if size else ():
            tar.write(chunk[:size])
            size -= min(size, len(chunk))
            if not size:
                break
        if size:
            tally.note_skipped(item, "it became shorter while it was read: its end is zeros")
        for piece in _zeros(size):
            tar.write(piece)
    tar.finish()
