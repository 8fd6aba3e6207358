"""A layer's way from a blob's bytes into the store: everything arrives, and nothing passes that is not what was announced."""

from __future__ import annotations

import io
import os
import threading
from pathlib import Path

import pytest
from support import make_image as make
from support.requires import requires

from dockless.errors import BadDigest, BadImage, ImageError, NoRoom, UnsafeLayer
from dockless.images import Store, UnpackLimits
from dockless.images.archive.discover import LayerSource
from dockless.images.catalog import unpacking
from dockless.images.layers import pipeline
from dockless.images.layers.compression import CHUNK
from dockless.images.layers.pipeline import GivenUp, Passed, Pipeline
from dockless.images.model import digest

CONTENT = os.urandom(3 * CHUNK + 5)


class Kept:
    """A sink that keeps what it gets, and fails at a piece where it is told to."""

    def __init__(self, fails_with: Exception | None = None) -> None:
        self.data = bytearray()
        self.aborted = 0
        self.fails_with = fails_with

    def feed(self, data: bytes) -> None:
        self.data += data
        if self.fails_with is not None:
            raise self.fails_with

    def abort(self) -> None:
        self.aborted += 1


LIMITS = UnpackLimits()


def through(raw, *, content=CONTENT, sinks=(), size=None, name=None, limits=LIMITS, tell=lambda done: None, keep=-1, stream=None) -> Passed:
    """Send the blob ``raw``; ``size`` and ``name`` are what was announced of it."""
    source = LayerSource(lambda: io.BytesIO(raw), name, size, "the layer")
    return Pipeline(source, digest.of(content), limits, list(sinks), tell, keep).run(stream or source.open())


@pytest.mark.parametrize("algorithm", ["sha256", "sha512"])
@pytest.mark.parametrize(("how", "media"), [("none", ""), ("gzip", "+gzip"), ("zstd", "+zstd"), ("xz", "+xz"), ("bzip2", "+bzip2")])
def test_everything_arrives(tmp_path, how, media, algorithm):
    raw = make.compress(CONTENT, how)
    sinks = [Kept(), Kept()]
    with open(tmp_path / "blob", "w+b", buffering=0) as kept:
        passed = through(raw, sinks=sinks, size=len(raw), name=digest.of(raw, algorithm), keep=kept.fileno())
    assert passed == Passed(digest.of(raw, algorithm), len(raw), how)
    assert passed.media_type == f"application/vnd.oci.image.layer.v1.tar{media}"
    assert [sink.data for sink in sinks] == [CONTENT, CONTENT]
    assert (tmp_path / "blob").read_bytes() == raw


def test_a_blob_of_which_nothing_was_said():
    assert through(CONTENT).blob == digest.of(CONTENT)
    assert through(b"", content=b"").size == 0


def test_how_much_may_come_out():
    """Content of the limit's size, and a header and padding for each entry; not a byte more."""
    most = 100 + 4096 * 3
    limits = UnpackLimits(size=100, entries=3)
    assert through(bytes(most), content=bytes(most), limits=limits).size == most
    with pytest.raises(ImageError, match="decompresses to too much"):
        through(bytes(most + 1), content=bytes(most + 1), limits=limits)


class Endless(io.RawIOBase):
    """Zeros without end; counts them."""

    given = 0

    def read(self, size=-1):
        self.given += size
        return bytes(size)


def test_a_blob_without_end_is_read_no_further_than_announced():
    endless = Endless()
    with pytest.raises(BadDigest, match="has more than the expected 1000 bytes"):
        through(b"", size=1000, name=digest.of(b""), stream=endless)
    assert endless.given <= 1000 + CHUNK


@pytest.mark.parametrize("more", [-1, 1])
def test_another_size_than_announced(more):
    with pytest.raises(BadDigest, match=str(len(CONTENT) + more)):
        through(CONTENT, size=len(CONTENT) + more)


def test_another_digest_than_announced():
    found, other = digest.of(CONTENT), digest.of(b"other")
    with pytest.raises(BadDigest, match=f"^the layer: its bytes have the digest {found}, expected {other}"):
        through(CONTENT, name=other)
    with pytest.raises(BadDigest, match=f"^the layer: uncompressed content: its bytes have the digest {found}, expected {other}"):
        through(CONTENT, content=b"other", name=found)


DAMAGED = make.compress(CONTENT, "gzip")[:-5] + bytes(5)
TORN = make.compress(CONTENT, "zstd")[:-5]
BROKEN_AT_ONCE = b"\xfd7zXZ\x00" + bytes(50)


@pytest.mark.parametrize("raw", [DAMAGED, TORN, BROKEN_AT_ONCE], ids=["damaged", "torn", "at once"])
def test_damage_is_the_blobs_where_its_bytes_are_not_those_announced(raw):
    """Whoever made the image is to blame for bytes that are those announced; otherwise whoever sent them."""
    with pytest.raises(BadImage):
        through(raw, name=digest.of(raw), size=len(raw))
    for name, size in ((digest.of(b"other"), len(raw)), (digest.of(raw), len(raw) + 1)):
        with pytest.raises(BadDigest) as caught:
            through(raw, name=name, size=size)
        assert isinstance(caught.value.__cause__, BadImage)
    with pytest.raises(BadImage):
        through(raw)


@pytest.mark.parametrize("failure", [BadImage("it", subject="x", hint="x"), UnsafeLayer("it", subject="x"), OSError(5, "it")])
def test_a_sink_that_fails(tmp_path, failure):
    """Its error is what is told, the rest comes to an end, and nothing more is kept of the blob."""
    content = bytes(40 * CHUNK)
    with open(tmp_path / "blob", "wb", buffering=0) as kept, pytest.raises(type(failure)) as caught:
        through(content, content=content, sinks=[Kept(failure)], name=digest.of(content), keep=kept.fileno())
    assert caught.value is failure
    assert (tmp_path / "blob").stat().st_size < len(content)
    if not isinstance(failure, OSError):
        with pytest.raises(BadDigest):
            through(content, content=content, sinks=[Kept(failure)], name=digest.of(b"other"))


def test_nothing_is_fed_after_a_failure():
    sink = Kept(BadImage("it", subject="x", hint="x"))
    with pytest.raises(BadImage):
        through(CONTENT, sinks=[sink])
    assert bytes(sink.data) == CONTENT[: len(sink.data)] and len(sink.data) <= CHUNK


def test_a_sink_that_fails_at_the_last_piece_fails_all():
    with pytest.raises(BadImage):
        through(b"few", content=b"few", sinks=[Kept(BadImage("it", subject="x", hint="x"))])


def test_giving_up():
    """From another thread, as soon as the next piece comes."""
    sink = Kept()

    class Stopping(io.BytesIO):
        def read(self, size=-1):
            if self.tell() > CHUNK:
                running.abort()
            return super().read(size)

    running = Pipeline(LayerSource(io.BytesIO, None, None, "the layer"), digest.of(CONTENT), LIMITS, [sink], lambda done: None)
    before = threading.active_count()
    with pytest.raises(GivenUp, match=r"^the layer: given up"):
        running.run(Stopping(CONTENT))
    assert sink.aborted and len(sink.data) < len(CONTENT)
    assert threading.active_count() == before


class Pieces(io.RawIOBase):
    """Gives what it has piece by piece, however much is asked for."""

    def __init__(self, *pieces: int) -> None:
        self.pieces = list(pieces)

    def read(self, size=-1):
        return bytes(self.pieces.pop(0)) if self.pieces else b""


def test_what_has_come_is_told_at_each_megabyte():
    told: list[int] = []
    mega = 1 << 20
    pieces = (6, mega - 7, 1, mega - 1, 2, 3 * mega, mega - 1)
    through(b"", content=bytes(sum(pieces)), tell=told.append, stream=Pieces(*pieces))
    assert told == [mega, 2 * mega + 1, 5 * mega + 1]


@pytest.fixture
def asked(monkeypatch):
    """What was asked of the disk: (descriptor, bytes)."""
    found: list[tuple[int, int]] = []
    for module in (pipeline, unpacking):
        monkeypatch.setattr(module, "_ROOM", 10)
        monkeypatch.setattr(module, "check_room", lambda fd, coming, what: found.append((fd, coming)))
    return found


def test_room_is_asked_for_before_a_blob_is_kept(tmp_path, asked):
    """At the first byte, and again each time that so much has come that the first answer does not hold any more."""
    with open(tmp_path / "blob", "wb", buffering=0) as kept:
        through(CONTENT, keep=kept.fileno())
        assert asked and all(fd == kept.fileno() and 0 < coming <= CHUNK for fd, coming in asked)
    assert sum(coming for _, coming in asked) == len(CONTENT)
    asked.clear()
    through(CONTENT)
    assert asked == []


def test_a_full_disk_is_said(tmp_path, monkeypatch):
    def full(fd, coming, what):
        raise NoRoom(what, subject=what, hint="make room")

    monkeypatch.setattr(pipeline, "check_room", full)
    with open(tmp_path / "blob", "wb", buffering=0) as kept, pytest.raises(NoRoom, match="the layer"):
        through(CONTENT, keep=kept.fileno())
    assert (tmp_path / "blob").stat().st_size == 0


# -- the form that keeps the tar -----------------------------------------------------------------------------------------------------


def indexing(place: Path, **limits) -> unpacking.Unpacking:
    (place / "layer").mkdir()
    return unpacking._Indexing(Store(limits=UnpackLimits(**limits)), place, True, "the layer")


@requires("root", "erofs")
def test_layers_that_do_not_list_their_directories_are_indexed(tmp_path):
    """As buildkit and kaniko make them; a layer that is kept as files all the same says why."""
    base = [make.directory("a", 0o2770, uid=5), make.directory("a/b", 0o700, uid=6), make.file("a/b/f"), make.file("a/b/g")]
    layers = [base, [make.file("a/b/new", "n"), make.whiteout("a/b/f")], [make.hardlink("h", "a/b/g")]]
    make.make_oci_layout(tmp_path / "layout", layers=layers, config=make.config(), ref="one:1")
    image = Store(tmp_path / "store", index=True).load(tmp_path / "layout")[0]
    assert [layer.tar is not None for layer in image.layers] == [True, True, False]
    assert len(image.warnings) == 1 and "kept as files" in image.warnings[0] and "'h' is a hard link" in image.warnings[0]
    fd = image.layers[1].open()
    try:
        found = {path: os.stat(path, dir_fd=fd) for path in ("a", "a/b")}
    finally:
        os.close(fd)
    assert [(info.st_mode & 0o7777, info.st_uid) for info in found.values()] == [(0o2770, 5), (0o700, 6)]


def test_a_tar_is_kept_while_it_is_indexed(tmp_path, asked):
    """What was fed lies in the file at once: nothing is held back, so nothing is lost between the last byte and the flush."""
    raw = make.layer_tar([make.file("f", "x" * 5000)])
    form = indexing(tmp_path)
    for at in range(0, len(raw), 1000):
        form.feed(raw[at : at + 1000])
        assert (tmp_path / "tar").read_bytes() == raw[: at + 1000]
    form.set_lower([])
    assert sum(coming for _, coming in asked) == len(raw)
    written = form.finish()
    assert (written.size, written.entries, form.form, form.tar) == (5000, 1, "indexed", tmp_path / "tar")
    assert sorted(os.listdir(tmp_path / "layer")) == ["index.erofs"]
    form.close()


@pytest.mark.parametrize(
    ("limits", "fits"), [({"size": 5000}, True), ({"size": 4999}, False), ({"entries": 1}, True), ({"entries": 0}, False)]
)
def test_an_index_has_the_stores_limits(tmp_path, limits, fits):
    form = indexing(tmp_path, **limits)
    form.set_lower([])
    try:
        raw = make.layer_tar([make.file("f", "x" * 5000)])
        if fits:
            form.feed(raw)
            assert form.finish().entries == 1
        else:
            with pytest.raises(ImageError, match="too large"):
                form.feed(raw)
                form.finish()
    finally:
        form.close()


def test_a_form_that_is_given_up_waits_for_nobody(tmp_path):
    form = indexing(tmp_path)
    form.feed(make.layer_tar([make.file("f")]))
    form.abort()
    with pytest.raises(GivenUp, match=r"^the layer: given up"):
        form.finish()
    form.close()
