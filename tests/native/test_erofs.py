"""The index builder under the sanitizers; what it writes is read back by other code, in erofs_check.c, and must be sound."""

from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path

import pytest
from support import make_image as make
from support.requires import requires, shared

NATIVE = Path(__file__).resolve().parents[2] / "native"  # an installed package has no sources
SOURCES = (
    "erofs.c",
    "erofs_below.c",
    "erofs_layout.c",
    "erofs_merge.c",
    "erofs_xattr.c",
    "lower.c",
    "tar.c",
    "tar_member.c",
    "pax.c",
    "fault.c",
)


def archives() -> list[bytes]:
    entries = [
        *(make.directory("a"), make.directory("a/b"), make.file("a/f", "x" * 700, pax={"SCHILY.xattr.user.x": "1"})),
        *(make.symlink("a/s", "y" * 500), make.hardlink("a/h", "a/f"), make.fifo("a/p"), make.device("a/d", 1, 3)),
        *(make.whiteout("a/w"), make.opaque("a/b"), *(make.file(f"a/b/{n}") for n in range(50))),
    ]
    found = [b"", make.layer_tar([]), make.layer_tar(entries), make.layer_tar([make.directory(".", 0o700), *entries])]
    place = shared()
    names = sorted((place / "corpus").rglob("*.tar")) if place is not None else []
    return found + [raw for raw in (path.read_bytes() for path in names) if len(raw) <= 64 << 10]


@pytest.mark.skipif(not NATIVE.is_dir(), reason="the C sources are not here: an installed package is tested")
@requires("gcc")
def test_under_the_sanitizers(tmp_path):
    """Archives whole, in odd pieces, torn off everywhere, and with changed headers whose checksums fit: A13, A14."""
    program = tmp_path / "check"
    command = [
        "gcc",
        "-DSTANDALONE",
        "-O1",
        "-g",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
        f"-I{NATIVE / 'layer'}",
        "-o",
        program,
    ]
    sources = [Path(__file__).with_name("erofs_check.c"), *(NATIVE / "layer" / name for name in SOURCES)]
    built = subprocess.run([*command, *sources], capture_output=True, text=True)
    if built.returncode != 0:
        assert "lasan" in built.stderr or "lubsan" in built.stderr, built.stderr
        pytest.skip("gcc has no sanitizers here (package libgcc-*-dev)")
    raws = archives()
    stream = b"".join(struct.pack("<I", len(raw)) + raw for raw in raws)
    changes = os.environ.get("DOCKLESS_MUTATIONS", "60")
    done = subprocess.run([program, changes], input=stream, capture_output=True, timeout=600, env={"ASAN_OPTIONS": "detect_leaks=1"})
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    verdicts = done.stdout.split()
    assert len(verdicts) == len(raws)
    assert verdicts[:4] == [b"0"] * 4
