"""A strict, bounded, streaming tar reader: v7, ustar, star, PAX and GNU, with every sparse format.

The standard library's ``tarfile`` trusts the sizes in extended headers (a 512-byte file can ask for gigabytes), accepts negative ones, and
resolves contradictions silently. Layers come from strangers, so this reader

- bounds every extended header (1 MiB) and sparse map before it reads them,
- refuses where GNU tar and Go's archive/tar would disagree (attack A13): a PAX path and a GNU long name for one member, two extended
  headers of a kind in a row, data behind a directory or device, one zero block alone, global headers that rename, resize or re-own,
- applies a PAX size to the member it describes and never to an extended header in between (CVE-2025-62518, CVE-2026-53655),
- keeps names as bytes and times as nanoseconds.

Two zero blocks, or the end of the stream at a header's place, end the archive; anything behind is not looked at, as in GNU tar and Go.

https://pubs.opengroup.org/onlinepubs/9799919799/utilities/pax.html, https://www.gnu.org/software/tar/manual/html_node/Tar-Internals.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from dockless.errors import BadImage
from dockless.images.compression import CHUNK

BLOCK = 512
EXTENDED_MAX = 1 << 20
SPARSE_SEGMENTS_MAX = 65536
SIZE_MAX = 1 << 44
"""The largest logical file size, bytes: 16 TiB, the limit of ext4."""
ID_MAX = 0xFFFF_FFFE
_ZERO = bytes(BLOCK)
_OCTAL = re.compile(rb"[ \0]*(?:([0-7]+)(?:[ \0].*)?)?\Z", re.DOTALL)
_DECIMAL = re.compile(rb"[0-9]{1,20}\Z")
_TIME = re.compile(rb"(-?)([0-9]{1,18})(?:\.([0-9]*))?\Z")

FILE, HARDLINK, SYMLINK, CHAR, BLOCK_DEVICE, DIRECTORY, FIFO = "file", "hardlink", "symlink", "char", "block", "directory", "fifo"
_KINDS = {
    b"\0": FILE,
    b"0": FILE,
    b"7": FILE,
    b"S": FILE,
    b"1": HARDLINK,
    b"2": SYMLINK,
    b"3": CHAR,
    b"4": BLOCK_DEVICE,
    b"5": DIRECTORY,
    b"6": FIFO,
}
_GLOBAL_HARMLESS = re.compile(rb"(comment|charset|hdrcharset|mtime|atime|ctime|uname|gname)\Z")


@dataclass(slots=True)
class Member:
    """One member. ``size`` is the file's length as it will be, ``stored`` the bytes of it in the archive (less where it is sparse)."""

    name: bytes
    kind: str
    mode: int
    uid: int
    gid: int
    mtime: int
    """Nanoseconds since 1970."""
    size: int = 0
    stored: int = 0
    link: bytes = b""
    major: int = 0
    minor: int = 0
    xattrs: dict[bytes, bytes] = field(default_factory=dict)
    sparse: tuple[tuple[int, int], ...] | None = None
    """Data segments as (offset, length) in ascending order; None for an ordinary file."""


class TarReader:
    """Iterate it for the members; ``data()`` gives the stored bytes of the one last returned. ``raw`` needs only ``read(n)``, n bytes or
    fewer only at the end (an ``io.BufferedReader``); where it can ``seek``, data that nobody asks for is skipped by seeking."""

    def __init__(self, raw: BinaryIO, what: str) -> None:
        self._raw = raw
        self._what = what
        self._left = 0  # stored bytes of the current member not read yet
        self._padding = 0
        self._seekable = raw.seekable()
        self.position = 0
        """Bytes consumed so far; right after a member was returned, the offset of its data."""

    def __iter__(self) -> Iterator[Member]:
        while (member := self.next()) is not None:
            yield member

    def next(self) -> Member | None:
        """The next member, None at the end of the archive; ``BadImage`` where it is torn or ambiguous."""
        self._skip()
        pax: dict[bytes, bytes] = {}
        pax_sparse: list[tuple[bytes, bytes]] = []
        long_name = long_link = None
        pending = False
        while True:
            block = self._header()
            if block is None:
                if pending:
                    raise self._bad("it ends after an extended header")
                return None
            kind = block[156:157]
            if kind in b"xgLK":
                content = self._extended(block)
                if kind == b"g":
                    self._check_global(content)
                    continue
                pending = True
                if kind == b"x":
                    if pax:
                        raise self._bad("it has two PAX headers for one member")
                    pax, pax_sparse = self._parse_pax(content)
                elif kind == b"L":
                    long_name = self._once(long_name, content)
                else:
                    long_link = self._once(long_link, content)
                continue
            if (long_name is not None and b"path" in pax) or (long_link is not None and b"linkpath" in pax):
                raise self._bad("it names one member twice, by a PAX header and by a GNU long name")
            member = self._member(block, pax, pax_sparse, long_name, long_link)
            if member is not None:
                return member
            self._skip()
            pax, pax_sparse, long_name, long_link, pending = {}, [], None, None, False

    def data(self) -> Iterator[bytes]:
        """The stored bytes of the current member, in pieces."""
        while self._left:
            piece = self._raw.read(min(self._left, CHUNK))
            if not piece:
                raise self._torn()
            self._left -= len(piece)
            self.position += len(piece)
            yield piece

    # -- reading ---------------------------------------------------------------------------------------------------------------------

    def _exactly(self, size: int) -> bytes:
        data = self._raw.read(size)
        if len(data) != size:
            raise self._torn()
        self.position += size
        return data

    def _skip(self) -> None:
        if self._seekable and self._left > CHUNK:
            # The last byte is read, so that an archive that ends too early is still noticed.
            self._raw.seek(self._left - 1, 1)
            self.position += self._left - 1
            self._left = 1
        for _ in self.data():
            pass
        self._tail(self._padding)
        self._padding = 0

    def _tail(self, size: int) -> None:
        """Padding after the data; some writers leave it out behind the very last member."""
        while size:
            piece = self._raw.read(min(size, CHUNK))
            if not piece:
                return
            size -= len(piece)
            self.position += len(piece)

    def _header(self) -> bytes | None:
        block = self._raw.read(BLOCK)
        self.position += len(block)
        if not block:
            return None
        if len(block) != BLOCK:
            raise self._torn()
        if block == _ZERO:
            second = self._raw.read(BLOCK)
            if second and second != _ZERO[: len(second)]:
                raise self._bad("a lone zero block stands between its members")
            return None
        unsigned = sum(block) - sum(block[148:156]) + 8 * 32
        expected = self._number(block[148:156], "checksum")
        if expected != unsigned and expected != unsigned - 256 * sum(1 for b in block[:148] + block[156:] if b > 127):
            raise self._bad("a header's checksum is wrong")
        return block

    def _extended(self, block: bytes) -> bytes:
        size = self._size(self._number(block[124:136], "size"))
        if size > EXTENDED_MAX:
            raise self._bad(f"an extended header is {size} bytes long, more than {EXTENDED_MAX}")
        content = self._exactly(size)
        self._exactly(-size % BLOCK)
        return content

    def _once(self, before: bytes | None, content: bytes) -> bytes:
        if before is not None:
            raise self._bad("it has two GNU long names for one member")
        return content.split(b"\0", 1)[0]

    # -- one member ------------------------------------------------------------------------------------------------------------------

    def _member(
        self, block: bytes, pax: dict[bytes, bytes], pax_sparse: list[tuple[bytes, bytes]], long_name: bytes | None, long_link: bytes | None
    ) -> Member | None:
        flag, magic = block[156:157], block[257:265]
        stored = self._size(_pax_number(pax, b"size", self) if b"size" in pax else self._number(block[124:136], "size"))
        if flag == b"V":
            self._left, self._padding = stored, -stored % BLOCK
            return None
        kind = _KINDS.get(flag)
        if kind is None:
            raise self._bad(f"a member has the type {flag!r}, which no layer should have")
        name = pax.get(b"path") or long_name or self._short_name(block, magic)
        link = pax.get(b"linkpath") or long_link or block[157:257].split(b"\0", 1)[0]
        if kind == FILE and name.endswith(b"/"):
            kind = DIRECTORY
        if kind != FILE:
            if stored and kind != HARDLINK:
                raise self._bad(f"the {kind} {_show(name)} claims to have {stored} bytes of data")
            stored = 0
        device = magic[:5] == b"ustar" and kind in (CHAR, BLOCK_DEVICE)
        member = Member(
            name=name,
            kind=kind,
            mode=self._number(block[100:108], "mode") & 0o7777,
            uid=self._id(_pax_number(pax, b"uid", self) if b"uid" in pax else self._number(block[108:116], "uid")),
            gid=self._id(_pax_number(pax, b"gid", self) if b"gid" in pax else self._number(block[116:124], "gid")),
            mtime=self._time(pax[b"mtime"]) if b"mtime" in pax else self._number(block[136:148], "mtime") * 1_000_000_000,
            size=stored,
            stored=stored,
            link=link if kind in (SYMLINK, HARDLINK) else b"",
            major=self._number(block[329:337], "device") if device else 0,
            minor=self._number(block[337:345], "device") if device else 0,
            xattrs=_xattrs(pax),
        )
        if not -(1 << 62) < member.mtime < 1 << 62:
            raise self._bad(f"the time of {_show(name)} is out of range")
        if flag == b"S":
            self._old_sparse(member, block)
        elif pax_sparse or any(key.startswith(b"GNU.sparse.") for key in pax):
            self._pax_sparse(member, pax, pax_sparse)
        if not member.name or b"\0" in member.name or b"\0" in member.link:
            raise self._bad(f"the name {_show(member.name)} is empty or has a NUL byte")
        self._left = member.stored
        self._padding = -stored % BLOCK
        return member

    def _short_name(self, block: bytes, magic: bytes) -> bytes:
        name = block[:100].split(b"\0", 1)[0]
        if magic[:6] == b"ustar\0":
            prefix = block[345 : 476 if block[508:512] == b"tar\0" else 500].split(b"\0", 1)[0]
            if prefix:
                name = prefix + b"/" + name
        return name

    def _old_sparse(self, member: Member, block: bytes) -> None:
        """Old GNU: four segments in the header, 21 in each block that follows it."""
        if block[257:265] != b"ustar  \0":
            raise self._bad("a sparse member is not in GNU format")
        member.size = self._size(self._number(block[483:495], "real size"))
        numbers = self._old_map(block[386:482], 4)
        more = block[482]
        while more:
            block = self._exactly(BLOCK)
            numbers += self._old_map(block, 21)
            more = block[504]
            if len(numbers) > 2 * SPARSE_SEGMENTS_MAX:
                raise self._bad("a sparse map is too long")
        self._set_sparse(member, numbers)

    def _old_map(self, raw: bytes, count: int) -> list[int]:
        numbers = []
        for at in range(0, 24 * count, 24):
            if raw[at] == 0:
                break
            numbers += [self._number(raw[at : at + 12], "sparse map"), self._number(raw[at + 12 : at + 24], "sparse map")]
        return numbers

    def _pax_sparse(self, member: Member, pax: dict[bytes, bytes], pairs: list[tuple[bytes, bytes]]) -> None:
        """PAX 0.0 (repeated keys), 0.1 (one map key), 1.0 (a map in front of the data)."""
        if member.kind != FILE:
            raise self._bad(f"{_show(member.name)} is sparse but no file")
        member.name = pax.get(b"GNU.sparse.name") or member.name
        size_key = b"GNU.sparse.realsize" if b"GNU.sparse.realsize" in pax else b"GNU.sparse.size"
        if size_key in pax:
            member.size = self._size(_pax_number(pax, size_key, self))
        if pax.get(b"GNU.sparse.major") == b"1" and pax.get(b"GNU.sparse.minor") == b"0":
            self._set_sparse(member, self._map_in_data(member))
        elif b"GNU.sparse.major" in pax and pax[b"GNU.sparse.major"] != b"0":
            raise self._bad("a sparse member has a format version nobody knows")
        elif b"GNU.sparse.map" in pax:
            text = pax[b"GNU.sparse.map"]
            self._set_sparse(member, [self._decimal(part) for part in text.split(b",")] if text else [])
        else:
            keys = [key for key, _ in pairs]
            if keys[::2] != [b"GNU.sparse.offset"] * (len(keys) // 2) or keys[1::2] != [b"GNU.sparse.numbytes"] * (len(keys) // 2):
                raise self._bad("a sparse map's offsets and lengths do not alternate")
            self._set_sparse(member, [self._decimal(value) for _, value in pairs])

    def _map_in_data(self, member: Member) -> list[int]:
        """Sparse 1.0: decimal lines, padded to whole blocks, counted in the member's stored size."""
        text = b""
        wanted: int | None = None
        while wanted is None or text.count(b"\n") < wanted:
            if member.stored < BLOCK or len(text) > 44 * SPARSE_SEGMENTS_MAX:
                raise self._bad("a sparse map is torn or too long")
            text += self._exactly(BLOCK)
            member.stored -= BLOCK
            if wanted is None and b"\n" in text:
                count = self._decimal(text.split(b"\n", 1)[0])
                if count > SPARSE_SEGMENTS_MAX:
                    raise self._bad("a sparse map is too long")
                wanted = 1 + 2 * count
        return [self._decimal(line) for line in text.split(b"\n")[1:wanted]]

    def _set_sparse(self, member: Member, numbers: list[int]) -> None:
        """Check a map: in order, no overlap, inside the file, and exactly the stored bytes."""
        if len(numbers) % 2 or len(numbers) > 2 * SPARSE_SEGMENTS_MAX:
            raise self._bad(f"the sparse map of {_show(member.name)} is malformed")
        end = total = 0
        segments = []
        for offset, length in zip(numbers[::2], numbers[1::2], strict=True):
            if offset < end or length < 0 or offset + length > member.size:
                raise self._bad(f"the sparse map of {_show(member.name)} is out of order or leaves the file")
            end = offset + length
            total += length
            if length:
                segments.append((offset, length))
        if total != member.stored:
            raise self._bad(f"the sparse map of {_show(member.name)} does not cover its {member.stored} stored bytes")
        member.sparse = tuple(segments)

    # -- numbers and records ---------------------------------------------------------------------------------------------------------

    def _parse_pax(self, content: bytes) -> tuple[dict[bytes, bytes], list[tuple[bytes, bytes]]]:
        """Records ``"<length> <key>=<value>\\n"``; the sparse 0.0 keys, which repeat, apart."""
        records: dict[bytes, bytes] = {}
        sparse: list[tuple[bytes, bytes]] = []
        at = 0
        while at < len(content):
            space = content.find(b" ", at, at + 21)
            if space < 0 or not _DECIMAL.match(content[at:space]):
                raise self._bad("a PAX record has no length")
            end = at + int(content[at:space])
            record = content[space + 1 : end]
            if end > len(content) or end <= space + 1 or not record.endswith(b"\n"):
                raise self._bad("a PAX record's length is wrong")
            key, equals, value = record[:-1].partition(b"=")
            if not equals or not key or b"\0" in key:
                raise self._bad("a PAX record has no key")
            if b"\0" in value and key in (b"path", b"linkpath", b"GNU.sparse.name"):
                raise self._bad("a PAX name has a NUL byte")
            if key in (b"GNU.sparse.offset", b"GNU.sparse.numbytes"):
                sparse.append((key, value))
            elif value or key.startswith((b"SCHILY.xattr.", b"LIBARCHIVE.xattr.", b"GNU.sparse.")):
                records[key] = value
            else:
                records.pop(key, None)  # an empty value takes an earlier one back
            at = end
        return records, sparse

    def _check_global(self, content: bytes) -> None:
        records, sparse = self._parse_pax(content)
        for key in [*records, *(key for key, _ in sparse)]:
            vendor = b"." in key and not key.startswith((b"SCHILY.xattr.", b"LIBARCHIVE.xattr.", b"GNU.", b"RHT."))
            if not vendor and not _GLOBAL_HARMLESS.match(key):
                raise self._bad(f"a global PAX header sets {_show(key)}, which readers understand differently")

    def _number(self, raw: bytes, what: str) -> int:
        if raw[0] & 0x80:  # base-256, two's complement over the rest
            value = int.from_bytes(raw, "big") & ((1 << (8 * len(raw) - 1)) - 1)
            return value - (1 << (8 * len(raw) - 1)) if raw[0] & 0x40 else value
        match = _OCTAL.match(raw)
        if match is None:
            raise self._bad(f"a header's {what} is not a number")
        return int(match[1] or b"0", 8)

    def _decimal(self, raw: bytes) -> int:
        if not _DECIMAL.match(raw):
            raise self._bad(f"{_show(raw)} is not a number")
        return int(raw)

    def _size(self, value: int) -> int:
        if not 0 <= value <= SIZE_MAX:
            raise self._bad(f"a member's size is {value}, not between 0 and {SIZE_MAX}")
        return value

    def _id(self, value: int) -> int:
        # -1 means "leave as it is" to chown(2), so it must never get there.
        if not 0 <= value <= ID_MAX:
            raise self._bad(f"a member's owner is {value}, which is not a user or group id")
        return value

    def _time(self, raw: bytes) -> int:
        match = _TIME.match(raw)
        if match is None:
            raise self._bad(f"the time {_show(raw)} is malformed")
        value = int(match[2]) * 1_000_000_000 + int(((match[3] or b"")[:9]).ljust(9, b"0"))
        return -value if match[1] else value

    def _bad(self, why: str) -> BadImage:
        return BadImage(f"{self._what}: not a sound tar archive: {why}", subject=self._what, hint="build or fetch the image again")

    def _torn(self) -> BadImage:
        return self._bad("it ends in the middle of a member")


def _pax_number(pax: dict[bytes, bytes], key: bytes, reader: TarReader) -> int:
    return reader._decimal(pax[key])


def _xattrs(pax: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Extended attributes as star and GNU tar (raw bytes) or libarchive (base64, percent-escaped names) write them."""
    found: dict[bytes, bytes] = {}
    for key, value in pax.items():
        if key.startswith(b"SCHILY.xattr."):
            found[key[13:]] = value
        elif key.startswith(b"LIBARCHIVE.xattr."):
            import base64
            import binascii
            from urllib.parse import unquote_to_bytes

            try:
                found.setdefault(unquote_to_bytes(key[17:]), base64.b64decode(value + b"=" * (-len(value) % 4)))
            except binascii.Error:
                continue
    return found


def _show(name: bytes) -> str:
    return repr(name[:100].decode("utf-8", "backslashreplace"))
