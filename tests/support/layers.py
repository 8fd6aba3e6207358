"""What the tests of layers share: loading layers given as entries, looking at the merged result, and a victim that must not change."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path

from support import make_image as make
from support.indexed import build
from support.requires import missing

from dockless.errors import DocklessError
from dockless.images import Image, Store
from dockless.images.files import remove_tree
from dockless.images.layers.layer import explained, unpack
from dockless.images.layers.layers import Layer
from dockless.images.layers.merged import Merged, Node
from dockless.native.layers import Member, TarLister


def load(tmp_path: Path, layers: Sequence[make.Layer], store: Store | None = None, **more) -> Image:
    """An image of these layers, through the whole loader."""
    number = len(list(tmp_path.glob("layout-*")))
    path = make.make_oci_layout(tmp_path / f"layout-{number}", layers, more.pop("config", {}), more.pop("ref", "test:latest"), **more)
    (image,) = (store or Store(index=False)).load(path)
    return image


def members(raw: bytes, step: int = 1 << 20) -> list[tuple[Member, bytes]]:
    """The members of a tar archive and their stored bytes, fed ``step`` bytes at a time."""
    lister = TarLister(1_000_000)
    with explained("test"):
        for at in range(0, len(raw), step):
            lister.feed(raw[at : at + step])
        lister.finish()
    return [(member, raw[member.offset : member.offset + member.stored]) for member in lister.members]


def tree(layers: Sequence[Layer]) -> dict[str, str]:
    """The merged view of ``layers`` (bottom first): path to ``dir``, ``file:content``, ``link:target`` or the kind of a special file."""
    with Merged(tuple(reversed(layers))) as merged:
        return _below(merged, merged.root, "") if merged else {}


def _below(merged: Merged, node: Node, prefix: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for raw, child in merged.children(node).items():
        path = prefix + os.fsdecode(raw)
        found[path] = _describe(merged, child)
        if child.is_dir:
            found |= _below(merged, child, path + "/")
    return found


def _describe(merged: Merged, node: Node) -> str:
    mode = node.info.st_mode
    if node.is_dir:
        return "dir"
    if stat.S_ISLNK(mode):
        return "link:" + os.fsdecode(merged.readlink(node))
    if stat.S_ISREG(mode):
        with merged.open_file(node) as stream:
            return "file:" + stream.read().decode(errors="replace")
    return {stat.S_IFCHR: "char", stat.S_IFBLK: "block", stat.S_IFIFO: "fifo"}.get(stat.S_IFMT(mode), "?")


def snapshot(root: Path) -> dict[str, tuple[object, ...]]:
    """Everything about everything below ``root``: kind, mode, owner, times, links, xattrs, content."""
    found: dict[str, tuple[object, ...]] = {}
    for path in [root, *sorted(root.rglob("*"))]:
        info = path.lstat()
        content: object = None
        if stat.S_ISLNK(info.st_mode):
            content = os.readlink(path)
        elif stat.S_ISREG(info.st_mode):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        xattrs = tuple((key, os.getxattr(path, key, follow_symlinks=False)) for key in os.listxattr(path, follow_symlinks=False))
        facts = (info.st_ino, info.st_mode, info.st_uid, info.st_gid, info.st_nlink, info.st_mtime_ns, info.st_ctime_ns, info.st_size)
        found[str(path.relative_to(root))] = (*facts, content, xattrs)
    return found


HOST = [Path("/etc/passwd"), Path("/etc"), Path("/tmp")]


class Scene:
    """A root to unpack into and, beside it, a victim that must stay as it is, to the inode."""

    def __init__(self, place: Path) -> None:
        self.root = place / "root"
        self.lower = place / "lower"
        self.victim = place / "victim"
        self.victim.mkdir()
        self.hello = self.victim / "hello"
        self.hello.write_text("hello")
        (self.victim / "sub").mkdir()
        self.before = snapshot(self.victim)
        self.beside = sorted(os.listdir(place))
        self.host = [(path.lstat().st_mode, path.lstat().st_uid, path.lstat().st_nlink if path.is_file() else 0) for path in HOST]

    def unpack(self, *entries: make.Entry, lower: list[make.Entry] | None = None) -> DocklessError | None:
        """Unpack; the error, if there was one. The victim is looked at in any case."""
        below = []
        try:
            if lower is not None:
                self.lower.mkdir()
                self.write(make.layer_tar(lower), self.lower, [])
                below = [self.lower]
            self.root.mkdir()
            self.write(make.layer_tar(entries), self.root, below)
            error = None
        except DocklessError as caught:
            error = caught
        self.unharmed()
        if os.geteuid() == 0 and not missing("erofs") and lower != []:
            self.index(entries, [Layer(path) for path in below], error)
        return error

    def index(self, entries: Sequence[make.Entry], below: list[Layer], error: DocklessError | None) -> None:
        """The other form of the same layer: refused where the writer refuses, or left to it; else it shows the same."""
        place = self.root.parent / "h" / "indexed"
        place.mkdir(parents=True, exist_ok=True)
        try:
            with explained("test"):
                layer, _ = build(make.layer_tar(entries), place, below=below or None)
        except DocklessError as refused:
            declined = getattr(refused.__cause__, "kind", "") == "declined"
            assert declined or type(refused) is type(error), (refused, error)
            return
        assert error is None
        if all(len(entry.name) < 1000 for entry in entries):
            assert tree([*below, layer]) == tree([*below, Layer(self.root)])
        self.unharmed()

    def both(self, link: list[make.Entry], then: list[make.Entry]) -> None:
        """The link and what goes through it: in one layer, and in two."""
        self.unpack(*link, *then)
        self.root.rename(self.root.with_name("first"))
        self.beside.append("first")
        self.unpack(*then, lower=link)

    @staticmethod
    def write(raw: bytes, target: Path, below: list[Path]) -> None:
        """Unpack one archive, with nothing around it."""
        unpack(io.BytesIO(raw), target, [Layer(path) for path in below], "test")

    def unharmed(self) -> None:
        assert snapshot(self.victim) == self.before
        place = self.victim.parent
        assert sorted({*os.listdir(place)} - {"root", "lower", "h"}) == sorted({*self.beside} - {"h"})
        assert self.host == [(path.lstat().st_mode, path.lstat().st_uid, path.lstat().st_nlink if path.is_file() else 0) for path in HOST]
        roots = [root for root in (self.root, self.lower) if root.exists()]
        found = subprocess.run(["find", *roots, "-printf", "%D:%i\n"], capture_output=True, text=True, check=True).stdout.split()
        ours = {f"{path.lstat().st_dev}:{path.lstat().st_ino}" for path in (self.hello, Path("/etc/passwd"))}
        assert ours.isdisjoint(found), "a file of the host is in the root"

    def remove(self) -> None:
        """Its trees may be deeper than other tools can remove."""
        for name in ("root", "lower", "first"):
            remove_tree(self.root.with_name(name))
