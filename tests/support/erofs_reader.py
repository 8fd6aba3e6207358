"""An EROFS index read back byte by byte: what it says, and that it says it in the one form that the builder promises.

https://docs.kernel.org/filesystems/erofs.html, linux: fs/erofs/erofs_fs.h
"""

from __future__ import annotations

import bisect
import stat
import struct
from dataclasses import dataclass, field

BLOCK, SLOT, SUPER, DEVICES, INODES = 512, 32, 1024, 1152, 1536
_SUPER = struct.Struct("<IIIBBHQQIIII16s16sIHHHBBIQ24s")
_DEVICE = struct.Struct("<64sII56s")
_INODE = struct.Struct("<HHHHQIIIIqII16s")
_DIRENT = struct.Struct("<QHBB")
_PREFIXES = {1: "user.", 2: "system.posix_acl_access", 3: "system.posix_acl_default", 4: "trusted.", 6: "security."}
_TYPES = {stat.S_IFREG: 1, stat.S_IFDIR: 2, stat.S_IFCHR: 3, stat.S_IFBLK: 4, stat.S_IFIFO: 5, stat.S_IFLNK: 7}
PLAIN, INLINE, CHUNKS = 0, 2, 4


@dataclass
class Node:
    nid: int
    mode: int
    uid: int
    gid: int
    mtime: int
    links: int
    size: int
    number: int
    device: int = 0
    xattrs: dict[str, bytes] = field(default_factory=dict)
    content: bytes = b""
    children: dict[bytes, int] = field(default_factory=dict)


class Reader:
    """``nodes`` by nid; every claim about the form is an assertion."""

    def __init__(self, index: bytes, tar: bytes) -> None:
        self.index, self.tar = index, tar
        self.claimed: list[tuple[int, int]] = []
        self.whole: list[tuple[int, int]] = []
        self.types: list[tuple[int, int]] = []
        self.nodes: dict[int, Node] = {}
        self._super()
        root = self._node(INODES // SLOT)
        assert root.children[b".."] == root.nid
        todo = [root]
        while todo:
            directory = todo.pop(0)
            assert directory.children[b"."] == directory.nid
            for name, nid in directory.children.items():
                if name in (b".", b".."):
                    continue
                if nid not in self.nodes:
                    child = self._node(nid)
                    if stat.S_ISDIR(child.mode):
                        assert child.children[b".."] == directory.nid
                        todo.append(child)
        self._types()
        self._links()
        self._nothing_else()

    def path(self, name: str) -> Node:
        here = INODES // SLOT
        for part in filter(None, name.split("/")):
            here = self.nodes[here].children[part.encode()]
        return self.nodes[here]

    def paths(self) -> dict[str, Node]:
        """All but the root, by path."""
        found: dict[str, Node] = {}

        def walk(prefix: str, node: Node) -> None:
            for name, nid in node.children.items():
                if name not in (b".", b".."):
                    found[prefix + name.decode()] = self.nodes[nid]
                    walk(f"{prefix}{name.decode()}/", self.nodes[nid])

        walk("", self.nodes[INODES // SLOT])
        return found

    def _bytes(self, at: int, size: int) -> bytes:
        assert at + size <= len(self.index)
        if size:
            self.claimed.append((at, at + size))
        return self.index[at : at + size]

    def _super(self) -> None:
        made = _SUPER.unpack(self._bytes(SUPER, _SUPER.size))
        magic, checksum, compat, block_bits, extra, root, self.inodes, time, time_ns, self.blocks, meta, shared, uuid, name = made[:14]
        assert (magic, checksum, compat, block_bits, extra, root) == (0xE0F5E1E2, 0, 2, 9, 0, INODES // SLOT)
        assert (time, time_ns, meta, shared, name) == (0, 0, 0, 0, bytes(16))
        assert (uuid[6] >> 4, uuid[8] >> 6) == (8, 2)
        assert made[14:] == (4 | 8, 0, 1, DEVICES // 128, 0, 0, 0, 0, bytes(24))
        assert self.blocks * BLOCK == len(self.index)
        tag, blocks, mapped, rest = _DEVICE.unpack(self._bytes(DEVICES, _DEVICE.size))
        assert (tag, blocks, mapped, rest) == (bytes(64), -(-len(self.tar) // BLOCK), 0, bytes(56))

    def _node(self, nid: int) -> Node:
        at = nid * SLOT
        made = _INODE.unpack(self._bytes(at, _INODE.size))
        form, units, mode, reserved, size, where, number, uid, gid, mtime, mtime_ns, links, rest = made
        assert (form & 1, reserved, rest, mtime_ns < 10**9) == (1, 0, bytes(16), True)
        node = self.nodes[nid] = Node(nid, mode, uid, gid, mtime * 10**9 + mtime_ns, links, size, number)
        behind = at + _INODE.size
        if units:
            behind += self._xattrs(node, behind, 12 + 4 * (units - 1))
        layout = form >> 1
        if stat.S_ISREG(mode):
            assert layout == (CHUNKS if size else PLAIN) and (size or where == 0)
            node.content = self._chunks(behind, size, where) if size else b""
        elif stat.S_ISDIR(mode) or stat.S_ISLNK(mode):
            tail = size % BLOCK
            fits = behind - at + tail <= BLOCK
            assert layout == (INLINE if tail and fits else PLAIN)
            if layout == INLINE:
                assert at // BLOCK == (behind + tail - 1) // BLOCK, "the kernel reads it with its inode's block"
            whole = size - tail if layout == INLINE else size
            if whole:
                self.whole.append((where * BLOCK, whole))
            node.content = self._bytes(where * BLOCK, whole) + (self._bytes(behind, tail) if layout == INLINE else b"")
            if stat.S_ISDIR(mode):
                node.children = self._names(node.content)
        else:
            assert (layout, size) == (PLAIN, 0)
            node.device = where
        return node

    def _xattrs(self, node: Node, at: int, size: int) -> int:
        raw = self._bytes(at, size)
        assert raw[:12] == bytes(12)
        here = 12
        while here < size:
            length, prefix, value_size = struct.unpack_from("<BBH", raw, here)
            name = raw[here + 4 : here + 4 + length].decode()
            value = raw[here + 4 + length : here + 4 + length + value_size]
            assert len(value) == value_size
            end = here + 4 + length + value_size
            here = -(-end // 4) * 4
            assert raw[end:here] == bytes(here - end)
            assert _PREFIXES[prefix] + name not in node.xattrs
            node.xattrs[_PREFIXES[prefix] + name] = value
        assert here == size
        return size

    def _chunks(self, at: int, size: int, where: int) -> bytes:
        bits = where & 0x1F
        assert where == bits | 0x20
        assert bits == 0 or BLOCK << (bits - 1) < size, "as few chunks as can be"
        start, count = -(-at // 8) * 8, -(-size // (BLOCK << bits))
        content = b""
        for n in range(count):
            advise, device, block = struct.unpack("<HHI", self._bytes(start + 8 * n, 8))
            assert (advise, device) == (0, 1)
            content += self.tar[block * BLOCK : block * BLOCK + (BLOCK << bits)]
        assert -(-size // BLOCK) * BLOCK <= len(content) or len(self.tar) % BLOCK == 0
        return content[:size]

    def _names(self, raw: bytes) -> dict[bytes, int]:
        found: dict[bytes, int] = {}
        rest = 0  # bytes that the block before had left
        for start in range(0, len(raw), BLOCK):
            block = raw[start : start + BLOCK]
            count = _DIRENT.unpack_from(block)[1] // _DIRENT.size
            entries = [_DIRENT.unpack_from(block, n * _DIRENT.size) for n in range(count)]
            last = start + BLOCK >= len(raw)
            used = len(block) if last else len(block.rstrip(b"\0"))
            ends = [entry[1] for entry in entries[1:]] + [len(block.rstrip(b"\0")) if last and len(raw) % BLOCK == 0 else used]
            for (nid, name_at, kind, reserved), end in zip(entries, ends, strict=True):
                name = block[name_at:end]
                assert name and b"\0" not in name and reserved == 0
                assert not found or name > list(found)[-1]
                if name == next(iter([block[entries[0][1] : ends[0]]])) and start:
                    assert _DIRENT.size + len(name) > rest, "it would have fitted the block before"
                found[name] = nid
                self.types.append((nid, kind))
            rest = BLOCK - ends[-1]
        return found

    def _types(self) -> None:
        for nid, kind in self.types:
            assert kind == _TYPES[stat.S_IFMT(self.nodes[nid].mode)]

    def _links(self) -> None:
        seen = dict.fromkeys(self.nodes, 0)
        for node in self.nodes.values():
            for name, nid in node.children.items():
                if name not in (b".", b".."):
                    seen[nid] += 1
                    if stat.S_ISDIR(self.nodes[nid].mode):
                        seen[node.nid] += 1
        for nid, node in self.nodes.items():
            if stat.S_ISDIR(node.mode):
                assert node.links == 2 + sum(stat.S_ISDIR(self.nodes[child].mode) for child in _others(node))
            else:
                assert node.links == seen[nid]

    def _nothing_else(self) -> None:
        """No two parts overlap, what belongs to none is zero, no inode lies further behind than it has to, and all are counted."""
        self.claimed.sort()
        end = 0
        for start, stop in self.claimed:
            assert start >= end, "parts overlap"
            assert self.index[end:start] == bytes(start - end)
            end = stop
        assert self.index[end:] == bytes(len(self.index) - end) and len(self.index) - end < BLOCK
        nodes = sorted(self.nodes.values(), key=lambda node: node.nid)
        assert [node.number for node in nodes] == list(range(1, len(nodes) + 1)) and self.inodes == len(nodes)
        bounds = [node.nid * SLOT for node in nodes] + [1 << 60]
        stops = {}
        for start, stop in self.claimed:
            if start >= INODES and start < self._data_at():
                stops[bisect.bisect(bounds, start)] = stop
        for number in range(1, len(nodes)):
            tight = -(-stops[number] // SLOT) * SLOT
            size = stops[number + 1] - bounds[number]
            assert bounds[number] == tight or (bounds[number] == -(-tight // BLOCK) * BLOCK and tight % BLOCK + size > BLOCK)

    def _data_at(self) -> int:
        """Where inodes end and whole blocks begin."""
        return min((start for start, _ in self.whole), default=1 << 60)


def _others(node: Node) -> list[int]:
    return [nid for name, nid in node.children.items() if name not in (b".", b"..")]
