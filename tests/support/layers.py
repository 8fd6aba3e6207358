"""What the tests of layers share: loading layers given as entries, looking at the merged result, and a victim that must not change."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from support import make_image as make

from dockless.images import Image, Store
from dockless.images.merged import Merged, Node


def load(tmp_path: Path, layers: Sequence[make.Layer], store: Store | None = None, **more) -> Image:
    """An image of these layers, through the whole loader."""
    number = len(list(tmp_path.glob("layout-*")))
    path = make.make_oci_layout(tmp_path / f"layout-{number}", layers, more.pop("config", {}), more.pop("ref", "test:latest"), **more)
    (image,) = (store or Store()).load(path)
    return image


def tree(layers: Sequence[Path]) -> dict[str, str]:
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
