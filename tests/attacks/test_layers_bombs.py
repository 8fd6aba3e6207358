"""Layers and archives that want to be larger, longer or more than they look: bounded memory, disk and time, one clear error."""

import json
import os
import resource
import struct
import subprocess
import sys
import tarfile
import zlib

import pytest
from support import make_image as make
from support.layers import Scene, load, members, tree
from support.requires import requires, shared

from dockless.errors import BadImage, DocklessError, ImageError
from dockless.images import Store, UnpackLimits

MEMORY = 150 << 20
"""Bytes of resident memory that a load may take, whatever it loads."""

MEASURE = """
import json, sys
from pathlib import Path
from dockless.errors import DocklessError
from dockless.images import Store, UnpackLimits
try:
    Store(limits=UnpackLimits(size=int(sys.argv[2]), entries=int(sys.argv[3]))).load(sys.argv[1])
    said = ["loaded", ""]
except DocklessError as error:
    said = [type(error).__name__, str(error)]
# Not ru_maxrss: that survives an exec, so it would tell of the process that started us.
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM:"))
print(json.dumps([*said, int(peak.split()[1]) * 1024]))
"""


def measured(path, size=64 << 20, entries=5_000_000) -> tuple[str, str]:
    """Load in a process of its own: the error's class and text. Its memory must have stayed small."""
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-c", MEASURE, str(path), str(size), str(entries)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, timeout=60)
    kind, text, memory = json.loads(result.stdout)
    assert memory < MEMORY, f"{memory >> 20} MiB"
    store = Store()
    assert list((store.root / "tmp").iterdir()) == []
    return kind, text


def layout(tmp_path, blob: bytes, diff_id: str = "sha256:" + "0" * 64):
    """A layout whose one layer is ``blob`` as it is."""
    blobs = make.Blobs()
    layer = blobs.add(blob, make.OCI_LAYER + "+gzip")
    entry = blobs.image([], {}, manifest={"layers": [layer]}, rootfs={"type": "layers", "diff_ids": [diff_id]})
    return blobs.write(tmp_path / "bomb", [entry])


def header(name: str, size: int, kind: bytes = b"0") -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT)


def zeros(count: int, first: bytes = b"") -> bytes:
    """``first`` and then ``count`` zero bytes, as gzip: about a thousandth of that."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, 31)
    out = [deflate.compress(first)]
    for _ in range(count >> 20):
        out.append(deflate.compress(bytes(1 << 20)))
    return b"".join([*out, deflate.flush()])


def test_gzip_1000_to_1(tmp_path):
    """A12: a file that unpacks to more than the limit."""
    kind, text = measured(layout(tmp_path, zeros(200 << 20, header("bomb", 200 << 20))))
    assert kind == "ImageError"
    assert "too large" in text


def test_zeros_behind_the_end(tmp_path):
    """A12: an archive that ends at once, and goes on for ever behind its end."""
    kind, text = measured(layout(tmp_path, zeros(200 << 20)), size=1 << 20, entries=1000)
    assert kind == "ImageError"
    assert "decompresses to too much" in text


def test_an_archive_that_is_a_bomb(tmp_path):
    """A12: the outer compression."""
    path = tmp_path / "bomb.tar.gz"
    path.write_bytes(zeros(200 << 20, header("x", 200 << 20)))
    kind, text = measured(path)
    assert kind == "ImageError"
    assert "decompresses to more than" in text


@pytest.mark.parametrize("log", [28, 31, 41])
def test_a_huge_zstd_window(tmp_path, log):
    """A12: a frame that asks for a window of up to 2 TiB."""
    frame = b"\x28\xb5\x2f\xfd\x00" + bytes([(log - 10) << 3]) + struct.pack("<I", (512 << 3) | 1)[:3] + bytes(512)
    kind, text = measured(layout(tmp_path, frame))
    assert kind == "BadImage"
    assert "damaged zstd data" in text


def test_a_huge_xz_dictionary(tmp_path):
    """A12: a stream that asks for a dictionary of 1.5 GiB."""
    import lzma

    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1536 << 20}]
    encoder = bytearray(lzma.compress(b"x" * 600, filters=[{"id": lzma.FILTER_LZMA2, "preset": 0}]))
    del filters
    # Block header: size, flags, filter id, size of properties, dictionary size; then padding and a CRC32 over all of it.
    start = 12
    length = (encoder[start] + 1) * 4
    at = encoder.index(b"\x21\x01", start) + 2
    encoder[at] = 39
    encoder[start + length - 4 : start + length] = struct.pack("<I", zlib.crc32(bytes(encoder[start : start + length - 4])))
    kind, _ = measured(layout(tmp_path, bytes(encoder)))
    assert kind == "BadImage"


def test_too_many_entries(tmp_path):
    """A12: a great many tiny entries."""
    raw = b"".join(header(f"f{n}", 0) for n in range(20_000))
    kind, text = measured(layout(tmp_path, make.compress(raw, "gzip")), entries=10_000)
    assert kind == "ImageError"
    assert "more than 10000 entries" in text


@pytest.mark.parametrize("kind", [b"x", b"g", b"L", b"K"])
def test_a_gigabyte_of_extended_header(tmp_path, kind):
    """A12: 512 bytes that ask for a gigabyte (cpython PR 151498)."""
    path = tmp_path / "tiny.tar"
    path.write_bytes(header("x", 1 << 30, kind) + bytes(512))
    error, text = measured(path)
    assert error == "BadImage"
    assert "extended header" in text


def test_sparse_files(tmp_path):
    """A12: 8 EiB are refused; a terabyte of holes takes no room."""
    with pytest.raises(BadImage, match="size is"):
        load(tmp_path, [make.layer_tar([make.file("f", pax={"GNU.sparse.map": "", "GNU.sparse.size": str(8 << 60)})])])
    image = load(tmp_path, [make.layer_tar([make.file("f", pax={"GNU.sparse.map": "", "GNU.sparse.size": str(1 << 40)})])])
    info = (image.layers[0].path / "f").stat()
    assert (info.st_size, info.st_blocks) == (1 << 40, 0)


def test_a_sparse_map_without_end(tmp_path):
    """A12: a map of millions of segments."""
    text = b"9999999\n" + b"0\n" * 252
    pax = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "1"}
    with pytest.raises(BadImage, match="sparse map is"):
        load(tmp_path, [make.layer_tar([make.file("f", text * 1000, pax=pax)])])


FULL = 'mount -t tmpfs -o "size=$3" tmpfs "$1" && exec "$4" -c "$5" "$2"'
LOAD = """
import os, sys
from pathlib import Path
from dockless.errors import DocklessError
from dockless.images import Store
place = Path(sys.argv[1])
store = Store(Path(os.environ["STORE"]) / "s")
try:
    store.load(place)
except DocklessError as error:
    print(type(error).__name__, error, "|", error.hint)
print(sorted(path.name for path in (store.root / "tmp").iterdir()), store.list())
"""


@requires("root", "program:unshare")
@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_a_full_disk(tmp_path, compression):
    """A12: a store without room says how much is missing, and stays sound."""
    path = make.make_oci_layout(tmp_path / "big", [[make.file(f"f{n}", bytes(4 << 20)) for n in range(8)]], {}, compression=compression)
    (tmp_path / "small").mkdir()
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path), "STORE": str(tmp_path / "small")}
    command = ["unshare", "-m", "sh", "-c", FULL, "sh", tmp_path / "small", path, "20m", sys.executable, LOAD]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    first, second = result.stdout.splitlines()
    assert first.startswith("NoRoom")
    assert "no room in the image store" in first
    assert second == "[] []"


# -- parsers that disagree -----------------------------------------------------------------------------------------------------------


def names(raw: bytes) -> list[bytes]:
    return [member.name for member, _ in members(raw)]


def pax_header(records: dict[str, str]) -> bytes:
    body = b""
    for key, value in records.items():
        rest = f" {key}={value}\n"
        body += f"{len(rest) + 2}{rest}".encode() if len(rest) < 98 else f"{len(rest) + 3}{rest}".encode()
    return header("pax", len(body), b"x") + body + bytes(-len(body) % 512)


def test_pax_size_against_ustar_size():
    """A13: the PAX size counts; what lies in the data is never taken for a member (CVE-2025-62518)."""
    inner = header("smuggled", 0)
    assert names(pax_header({"size": "1024"}) + header("outer", 0) + inner + bytes(512) + header("last", 0)) == [b"outer", b"last"]


def test_pax_size_does_not_touch_a_long_name():
    """A13: a PAX size before a GNU long name is the file's, not the name's (CVE-2026-53655)."""
    long = header("L", 5, b"L") + b"long\0" + bytes(507)
    raw = pax_header({"size": "512"}) + long + header("short", 0) + header("smuggled", 0) + header("last", 0)
    assert names(raw) == [b"long", b"last"]


@pytest.mark.parametrize("tail", [b"", bytes(512), bytes(1024), bytes(10240)])
def test_the_end_of_an_archive(tail):
    """A13: two zero blocks end it; a second archive behind it is not read, as in GNU tar."""
    assert names(header("a", 0) + tail) == [b"a"]
    if len(tail) >= 1024:
        assert names(header("a", 0) + tail + header("b", 0)) == [b"a"]


# -- loops ---------------------------------------------------------------------------------------------------------------------------


def negative(size: int) -> bytes:
    block = bytearray(header("f", 0))
    block[124:136] = ((size & ((1 << 96) - 1)) | (1 << 95)).to_bytes(12, "big")
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


@pytest.mark.parametrize("size", [-1, -512, -1024, -(1 << 40), 1 << 62, (1 << 94) - 1])
def test_negative_and_huge_sizes(tmp_path, size):
    """A14: CVE-2025-8194: no size leads backwards, and every archive ends."""
    with pytest.raises(BadImage, match=r"size is|middle of a member"):
        names(negative(size) + bytes(1024))
    path = tmp_path / "n.tar"
    path.write_bytes(negative(size) + bytes(1024))
    with pytest.raises(BadImage):
        Store().load(path)


def test_overlapping_sparse_segments(tmp_path):
    """A14: segments that overlap or go backwards are refused."""
    for segments in ("0,3,2,3", "5,3,0,3", "0,3,3,-3", f"0,3,{1 << 63},3"):
        with pytest.raises(BadImage, match=r"sparse map|is not a number"):
            load(tmp_path, [make.layer_tar([make.file("f", b"x" * 6, pax={"GNU.sparse.map": segments, "GNU.sparse.size": "10"})])])


# -- real hostile tars ---------------------------------------------------------------------------------------------------------------


def corpus() -> list[str]:
    found = shared()
    return sorted(path.name for path in (found / "corpus/moby-breakouts").glob("*.tar")) if found is not None else []


@requires("shared")
@pytest.mark.parametrize("name", corpus() or ["(absent)"])
def test_breakouts_of_moby(tmp_path, name):
    """A1-A5: moby's own break-out archives, with its victim beside the root."""
    scene = Scene(tmp_path)
    found = shared()
    assert found is not None
    raw = (found / "corpus/moby-breakouts" / name).read_bytes()
    scene.root.mkdir()
    try:
        scene.write(raw, scene.root, [])
    except DocklessError as error:
        assert isinstance(error, ImageError)
    scene.unharmed()


def test_many_layers(tmp_path):
    """A12: as many layers as the format allows are not as many descriptors or minutes."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    layers = [[make.file(f"f{n}")] for n in range(60)]
    before = len(os.listdir("/proc/self/fd"))
    image = load(tmp_path, layers, compression="none")
    assert len(tree(image.layers)) == 60 < soft
    assert len(os.listdir("/proc/self/fd")) == before


def test_limits_are_settable(tmp_path):
    """A12: the limits belong to the store that loads."""
    store = Store(limits=UnpackLimits(size=10, entries=10))
    with pytest.raises(ImageError, match="more than 10 bytes"):
        load(tmp_path, [[make.file("f", "x" * 11)]], store)
