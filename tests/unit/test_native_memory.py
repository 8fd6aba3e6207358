"""What the C side takes for a layer it gives back, however the layer ends."""

from __future__ import annotations

import ctypes
import gc
import os
import struct
from collections.abc import Callable

import pytest
from support import make_image as make

from dockless.native.erofs_index import IndexBuilder
from dockless.native.layers import Fault, LayerWriter, TarLister

ROUNDS = 20


class _Mallinfo2(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    )


LIBC = ctypes.CDLL(None)
if hasattr(LIBC, "mallinfo2"):
    LIBC.mallinfo2.restype = _Mallinfo2
pytestmark = pytest.mark.skipif(not hasattr(LIBC, "mallinfo2"), reason="this C library does not say what it has given out")


def in_use() -> int:
    """Bytes that malloc(3) has given out."""
    gc.collect()
    found = LIBC.mallinfo2()
    return int(found.uordblks + found.hblkhd)


def leaks(once: Callable[[], None]) -> bool:
    """Whether each call keeps something. Python and its threads take and give, too, but not in every batch."""
    once()
    for _ in range(20):
        before = in_use()
        for _ in range(ROUNDS):
            once()
        if in_use() - before < 8 * ROUNDS:
            return False
    return True


ACL = struct.pack("<I", 2) + b"".join(
    struct.pack("<HHI", tag, 7, who) for tag, who in ((1, 2**32 - 1), (2, 5), (4, 2**32 - 1), (16, 2**32 - 1), (32, 2**32 - 1))
)


def record(key: bytes, value: bytes) -> bytes:
    rest = b" " + key + b"=" + value + b"\n"
    size = len(rest) + len(str(len(rest) + 3))
    return b"%d" % size + rest


def with_acl() -> bytes:
    """A directory with a default ACL, which is set at the end."""
    body = record(b"SCHILY.xattr.system.posix_acl_default", ACL)
    info = make.tarfile.TarInfo("pax")
    info.type, info.size = b"x", len(body)
    head = info.tobuf(make.tarfile.USTAR_FORMAT) + body + bytes(-len(body) % 512)
    return head + make.layer_tar([make.directory("acl")])[:512]


ENTRIES = [
    *(make.directory("d"), make.file("d/f", b"x" * 3000, pax={"SCHILY.xattr.user.x": "v"}), make.symlink("s", "t" * 3000)),
    *(make.hardlink("h", "d/f"), make.whiteout("gone"), make.opaque("d"), make.file("n" * 200)),
]
SPARSE = make.file("sparse", b"abc", pax={"GNU.sparse.map": "0,1,5,2", "GNU.sparse.size": "9"})
SOUND = with_acl() + make.layer_tar([*ENTRIES, make.hardlink("up", "below/f"), SPARSE])
ENDS = {
    "sound": SOUND,
    "torn": SOUND[: len(SOUND) // 2],
    "unsafe": with_acl() + make.layer_tar([make.whiteout("gone"), make.file("../f")]),
    "in a file": make.layer_tar([make.file("f", b"x" * 3000)])[:1024],
    "in an extended header": make.layer_tar([make.file("f", pax={"path": "x" * 9000})])[:2048],
}


@pytest.mark.parametrize("raw", ENDS.values(), ids=ENDS.keys())
def test_a_lister(raw):
    def once() -> None:
        lister = TarLister(100)
        try:
            lister.feed(raw)
            lister.finish()
        except Fault:
            pass

    assert not leaks(once)


@pytest.mark.parametrize(("raw", "end"), [*((raw, "closed") for raw in ENDS.values()), (SOUND, "forgotten")], ids=[*ENDS, "forgotten"])
def test_a_writer(tmp_path, raw, end):
    """Memory and descriptors."""
    (tmp_path / "below/below").mkdir(parents=True)
    (tmp_path / "below/below/f").write_text("f")
    (tmp_path / "below/gone").touch()
    for place in (tmp_path / "below", tmp_path / "below/below", tmp_path / "below/below/f"):
        os.setxattr(place, "user.x", b"v" * 100)
    below = os.open(tmp_path / "below", os.O_RDONLY | os.O_DIRECTORY)
    number = 0

    def once() -> None:
        nonlocal number
        number += 1
        place = tmp_path / str(number)
        place.mkdir()
        fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
        writer = LayerWriter(fd, as_root=os.geteuid() == 0, size_max=1 << 20, entries_max=100, reserve=0)
        os.close(fd)
        try:
            writer.set_lower([below, below])
            writer.feed(raw)
            writer.finish()
        except Fault:
            pass
        if end == "closed":
            writer.close()

    before = len(os.listdir("/proc/self/fd"))
    assert not leaks(once)
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(below)


@pytest.mark.parametrize("end", ENDS)
def test_an_index(tmp_path, end):
    raw = with_acl() + make.layer_tar(ENTRIES) if end == "sound" else ENDS[end]

    def once() -> None:
        builder = IndexBuilder(base=True, size_max=1 << 20, entries_max=100)
        with open(tmp_path / "index", "wb") as out:
            try:
                builder.feed(raw)
                builder.finish(out.fileno())
            except Fault:
                assert end != "sound"

    assert not leaks(once)
