"""The dynamic linker's cache, compared with what ldconfig writes and prints."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from dockless.sandbox.gpus import linker_cache
from dockless.sandbox.gpus.linker_cache import Cache, Entry

LDCONFIG = shutil.which("ldconfig", path="/sbin:/usr/sbin")
HOST = Path(linker_cache.PATH)
with_ldconfig = pytest.mark.skipif(LDCONFIG is None or not HOST.exists(), reason="this host has no ldconfig, or no cache")
CUDA = Entry(b"libcuda.so.1", b"/usr/lib64/libcuda.so.1", linker_cache.LIBC6 | linker_cache.X86_64)


def printed(cache: Path) -> list[str]:
    command = [str(LDCONFIG), "-p", "-C", str(cache)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


@with_ldconfig
def test_the_hosts_is_written_as_ldconfig_does(tmp_path):
    (tmp_path / "cache").write_bytes(linker_cache.encode(linker_cache.parse(HOST.read_bytes())))
    ours = printed(tmp_path / "cache")
    theirs = printed(HOST)
    assert [line for line in ours if line[0] == "\t"] == [line for line in theirs if line[0] == "\t"] != []


@with_ldconfig
def test_ours_take_the_place_of_the_same_name(tmp_path):
    known = linker_cache.parse(HOST.read_bytes())
    other = Entry(b"libcuda.so.1", b"/opt/stub/libcuda.so.1", CUDA.flags)
    narrow = Entry(b"libcuda.so.1", b"/usr/lib32/libcuda.so.1", linker_cache.LIBC6)
    before = Cache((*known.entries, other, narrow), known.hwcaps)
    (tmp_path / "cache").write_bytes(linker_cache.encode(linker_cache.merged(before, [CUDA])))
    assert [line for line in printed(tmp_path / "cache") if "libcuda.so" in line] == [
        "\tlibcuda.so.1 (libc6,x86-64) => /usr/lib64/libcuda.so.1",
        "\tlibcuda.so.1 (libc6) => /usr/lib32/libcuda.so.1",
    ]


def test_what_is_written_is_read_again():
    hwcaps = (b"x86-64-v2", b"x86-64-v3")
    cache = Cache((Entry(b"libz.so.10", b"/a/libz.so.10", 0x303), Entry(b"libz.so.9", b"/b", 0x303, 1 << 62 | 1), CUDA), hwcaps)
    assert linker_cache.parse(linker_cache.encode(cache)) == cache


def test_one_from_before_glibc_2_32_is_read():
    new = linker_cache.encode(Cache((CUDA,)))
    old = b"ld.so-1.7.0\0" + (3).to_bytes(4, "little") + bytes(36) + bytes(4)
    assert len(old) % 8 == 0
    assert linker_cache.parse(old + new[:32] + bytes(4) + new[36:]).entries == (CUDA,)


def test_digits_compare_as_numbers():
    names = [b"liba.so.9", b"liba.so.10", b"liba-b.so", b"liba.so.010.1", b"liba2.so", b"liba.so"]
    found = linker_cache.parse(linker_cache.encode(Cache(tuple(Entry(name, b"/x", 0x303) for name in names)))).entries
    assert [entry.name for entry in found] == [
        b"liba2.so", b"liba.so.010.1", b"liba.so.10", b"liba.so.9", b"liba.so", b"liba-b.so",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"glibc-ld.so.cache1.1",
        b"ld.so-1.7.0\0\xff\xff\xff\xff",
        linker_cache.encode(Cache((CUDA,)))[:-60],
        linker_cache.encode(Cache((CUDA,))).replace(b"cache1.1", b"cache2.1"),
        b"glibc-ld.so.cache1.1" + b"\xff\xff\xff\x7f" + bytes(24),
    ],
)
def test_nonsense_is_an_error(data):
    with pytest.raises(ValueError):
        linker_cache.parse(data)


def test_strings_that_entries_share_are_bounded():
    whole = linker_cache.encode(Cache(tuple(Entry(b"lib%d" % number, b"/" + b"x" * 3000, 0x303) for number in range(9000))))
    assert len(whole) < 1 << 20
    with pytest.raises(ValueError, match="too long"):
        linker_cache.parse(whole)


def test_any_byte_may_be_wrong():
    """It is read, or it is a ValueError."""
    sound = linker_cache.encode(Cache((CUDA, Entry(b"libc.so.6", b"/lib/libc.so.6", 0x303)), (b"x86-64-v3",)))
    chosen = random.Random(1)
    refused = 0
    for _ in range(3000):
        data = bytearray(sound)
        for _ in range(chosen.randint(1, 4)):
            data[chosen.randrange(len(data))] = chosen.randrange(256)
        try:
            linker_cache.parse(bytes(data))
        except ValueError:
            refused += 1
    assert 300 < refused < 3000
