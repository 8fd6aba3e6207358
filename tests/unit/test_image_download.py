"""A download as its readers see it: bytes as they come, its failure as their own, an end for whoever waits."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable

import pytest

from dockless.errors import BadDigest, BadImage, NotFound, RegistryUnavailable
from dockless.images import Store
from dockless.images.layers.pipeline import GivenUp
from dockless.images.model import digest
from dockless.images.model.manifest import Descriptor
from dockless.images.transfer import fetch
from dockless.images.transfer.fetch import Download, Fetcher, spool_path
from dockless.images.transfer.partial import Partial

DATA = bytes(range(256)) * 4
CHUNK = 100
ENTRY = Descriptor("application/x", digest.of(DATA), len(DATA))


@pytest.fixture
def held(tmp_path):
    partial = Partial.take(tmp_path / "partial" / "x", len(DATA), CHUNK)
    yield partial
    partial.close()


@pytest.fixture
def download(held):
    found = Download(ENTRY, "the layer", None)
    yield found
    found.close()


def come(download: Download, held: Partial, begin: int, end: int) -> None:
    new = held.write(begin, DATA[begin:end])
    download.moved(new)


def in_the_background(work: Callable[[], object]) -> Callable[[], object]:
    """Start it; what is returned waits for its end and gives what it gave or raised."""
    found: list[object] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def end() -> object:
        thread.join(20)
        assert not thread.is_alive(), "it still waits"
        return found[0]

    return end


def test_bytes_are_read_as_they_come(download, held):
    stream = download.open()
    download.follow(held)
    come(download, held, 0, 300)
    assert stream.read(10) == DATA[:10] and stream.read(290) == DATA[10:300]
    end = in_the_background(lambda: stream.read(50))
    come(download, held, 400, 450)
    come(download, held, 300, 350)
    assert end() == DATA[300:350]
    come(download, held, 350, 400)
    assert stream.read(100) == DATA[350:450]


def test_the_last_byte_comes_with_the_end(download, held):
    """Whoever has read all takes the file away, so nobody has before the download is over."""
    told = []
    download._report = lambda have, size: told.append((have, size))
    download.follow(held)
    come(download, held, 0, len(DATA))
    buffer = memoryview(bytearray(len(DATA) + 10))
    assert download.read_at(buffer, 0) == len(DATA) - 1
    end = in_the_background(lambda: download.read_at(buffer, len(DATA) - 1))
    download.done()
    assert end() == 1 and buffer[0] == DATA[-1] and download.settled
    assert download.read_at(buffer, len(DATA)) == 0
    assert told == [(0, len(DATA)), (len(DATA), len(DATA))]
    assert download.open().read() == DATA


def test_what_an_earlier_process_left_is_told(download, tmp_path):
    left = Partial.take(tmp_path / "left", len(DATA), CHUNK)
    left.write(0, DATA[:250])
    left.close()
    again = Partial.take(tmp_path / "left", len(DATA), CHUNK)
    download.follow(again)
    assert download.inherited == 250
    buffer = memoryview(bytearray(300))
    assert download.read_at(buffer, 0) == 250 and bytes(buffer[:250]) == DATA[:250]
    again.close()


def test_a_blob_that_the_store_has_by_now(download, tmp_path):
    end = in_the_background(lambda: download.open().read())
    (tmp_path / "blob").write_bytes(DATA)
    download.whole(os.open(tmp_path / "blob", os.O_RDONLY))
    assert end() == DATA and download.settled


def test_each_reader_gets_the_failure_as_its_own(download, held):
    download.follow(held)
    come(download, held, 0, 100)
    readers = [in_the_background(lambda: download.read_at(memoryview(bytearray(9)), 100)) for _ in range(2)]
    failure = RegistryUnavailable("it broke off", subject="x", hint="again")
    download.fail(failure)
    download.fail(BadDigest("later", subject="x"))
    first, second = (end() for end in readers)
    assert type(first) is type(second) is RegistryUnavailable and first is not second and first is not failure
    assert (str(first), first.subject, first.hint, first.__cause__) == ("it broke off", "x", "again", failure)
    buffer = memoryview(bytearray(200))
    assert download.read_at(buffer, 50) == 50, "what has come can still be read"
    assert download.read_at(buffer, len(DATA)) == 0


def test_a_failure_that_cannot_be_copied_is_told_as_it_is(download):
    class Odd(Exception):
        def __copy__(self):
            raise RuntimeError

    failure = Odd("x")
    download.fail(failure)
    assert in_the_background(lambda: download.read_at(memoryview(bytearray(1)), 0))() is failure


def test_a_failure_after_the_end_is_none(download, tmp_path):
    (tmp_path / "blob").write_bytes(DATA)
    download.whole(os.open(tmp_path / "blob", os.O_RDONLY))
    download.fail(BadDigest("later", subject="x"))
    assert download.open().read() == DATA


def test_cancelled_and_closed(download, held):
    download.follow(held)
    come(download, held, 0, 100)
    end = in_the_background(lambda: download.read_at(memoryview(bytearray(9)), 100))
    download.cancel()
    assert isinstance(end(), GivenUp) and str(end()) == "the layer"
    download.close()
    with pytest.raises(GivenUp, match="the layer"):
        download.read_at(memoryview(bytearray(9)), 0)


def test_a_blob_of_nothing(tmp_path):
    empty = Download(Descriptor("x", digest.of(b""), 0), "nothing", None)
    assert empty.open().read() == b""


# -- who fetches it ------------------------------------------------------------------------------------------------------------------


class Remote:
    """Stands for a registry in ``Fetcher``, with what its transfer is to do."""

    def __init__(self, does: Callable[[Partial], None]) -> None:
        self.does, self.lost, self.patient, self.what = does, False, True, "a registry"
        self.aborted = 0
        self.registry = self

    def abort(self) -> None:
        self.aborted += 1


@pytest.fixture
def fetched(monkeypatch):
    """``fetched(remote, …, entry=ENTRY)``: the bytes, or the error; every transfer does what its remote says."""

    class Transfer:
        def __init__(self, remote, name, partial, what, pace, stop, moved):
            self.remote, self.partial, self.moved = remote, partial, moved

        def run(self) -> None:
            asked.append(self.remote)
            before = self.partial.have
            try:
                self.remote.does(self.partial)
            finally:
                self.moved(self.partial.have - before)

        def abort(self) -> None: ...

    asked: list[Remote] = []
    monkeypatch.setattr(fetch, "Transfer", Transfer)

    def run(*remotes, entry=ENTRY, **more):
        asked.clear()
        store = Store()
        store.prepare()
        fetcher = Fetcher(store, remotes, **more)
        try:
            download = fetcher.add(entry, "the layer")
            assert fetcher.add(entry, "again") is download is fetcher.get(entry.digest)
            got = in_the_background(lambda: download.open().read())()
            return got, [remotes.index(one) for one in asked], download
        finally:
            fetcher.close()

    return run


def gives(begin: int = 0, end: int = len(DATA), then: Exception | None = None) -> Remote:
    def does(partial: Partial) -> None:
        partial.write(begin, DATA[begin:end])
        if then is not None:
            raise then

    return Remote(does)


def gone() -> RegistryUnavailable:
    return RegistryUnavailable("gone", subject="x", hint="x")


def missing() -> NotFound:
    return NotFound("it has none", subject="x", hint="x")


def test_the_next_remote_goes_on_where_one_broke_off(fetched):
    first, second, third = gives(0, 300, gone()), gives(300), gives()
    got, asked, download = fetched(first, second, third)
    assert (got, asked, download.sources, download.inherited) == (DATA, [0, 1], {0, 1}, 0)
    assert (first.lost, second.lost) == (True, False)


def test_who_gave_nothing_is_no_source(fetched):
    got, asked, download = fetched(gives(0, 0, missing()), gives())
    assert (got, asked, download.sources) == (DATA, [0, 1], {1})


def test_a_remote_that_only_lacks_the_blob_is_not_lost(fetched):
    first = gives(0, 0, missing())
    fetched(first, gives())
    assert not first.lost


def test_lost_and_doubted_remotes_are_passed_over(fetched):
    lost, last = gives(), gives()
    lost.lost = last.lost = True
    assert fetched(lost, last)[1] == [1], "the registry itself is asked all the same"
    other = Descriptor("x", digest.of(b"other"), len(DATA))
    assert fetched(gives(), gives(), entry=other, doubted={other.digest: {0}})[:2] == (DATA, [1])
    got, asked, _ = fetched(gives(), entry=Descriptor("x", digest.of(b"y"), len(DATA)), doubted={digest.of(b"y"): {0}})
    assert isinstance(got, BadDigest) and "nobody has the right bytes" in str(got) and asked == []


def test_wrong_bytes_are_thrown_away(fetched):
    got, asked, download = fetched(gives(0, 300, BadDigest("wrong size", subject="x")), gives())
    assert isinstance(got, BadDigest) and asked == [0] and download.sources == {0}
    assert not spool_path(Store(), ENTRY).exists()


def test_the_last_failure_is_told(fetched):
    got, asked, _ = fetched(gives(0, 0, gone()), gives(0, 0, missing()))
    assert isinstance(got, NotFound) and asked == [0, 1]
    got, asked, _ = fetched(gives(0, 0, missing()), gives(0, 0, gone()))
    assert isinstance(got, RegistryUnavailable) and asked == [0, 1]


@pytest.mark.parametrize(
    ("media_type", "foreign"),
    [
        ("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", True),
        ("application/vnd.oci.image.layer.nondistributable.v1.tar", True),
        ("application/vnd.oci.image.layer.v1.tar", False),
    ],
)
def test_foreign_layers(fetched, media_type, foreign):
    entry = Descriptor(media_type, ENTRY.digest, ENTRY.size)
    got, _, _ = fetched(gives(0, 0, missing()), entry=entry)
    assert entry.foreign is foreign
    assert isinstance(got, BadImage if foreign else NotFound)
    if foreign:
        assert "foreign layer" in str(got) and got.subject == "the layer" and isinstance(got.__cause__.__cause__ or got.__cause__, NotFound)


def test_what_is_there_is_not_fetched(fetched):
    store = Store()
    store.prepare()
    store.put_blob(DATA, ENTRY.digest)
    got, asked, _ = fetched(gives())
    assert (got, asked) == (DATA, [])


def test_a_blob_that_somebody_else_fetches_is_found_when_it_is_whole(fetched, monkeypatch):
    store = Store()
    store.prepare()
    other = Partial.take(spool_path(store, ENTRY), len(DATA), 1 << 20)
    other.write(0, DATA)
    other.finish()
    take, tries = Partial.take, []

    def tried(*words):
        tries.append(take(*words))
        if len(tries) == 3:
            other.close()
        return tries[-1]

    monkeypatch.setattr(Partial, "take", tried)
    got, asked, download = fetched(gives())
    assert tries[:3] == [None, None, None] and tries[3] is not None
    assert (got, asked, download.inherited) == (DATA, [], len(DATA))


def test_few_at_a_time(monkeypatch):
    """Three threads, however many blobs; the others wait for their turn, and closing ends them all."""
    seen, gate = [], threading.Event()

    def does(partial: Partial) -> None:
        seen.append(partial)
        gate.wait(20)
        raise gone()

    class Transfer:
        def __init__(self, remote, name, partial, *_):
            self.partial = partial

        def run(self) -> None:
            does(self.partial)

        def abort(self) -> None:
            gate.set()

    monkeypatch.setattr(fetch, "Transfer", Transfer)
    store, remote = Store(), Remote(does)
    store.prepare()
    fetcher = Fetcher(store, [remote])
    downloads = [fetcher.add(Descriptor("x", digest.of(b"%d" % number), 10), f"layer {number}") for number in range(7)]
    ends = [in_the_background(one.open().read) for one in downloads]
    end = time.monotonic() + 20
    while len(seen) < fetch.AT_ONCE and time.monotonic() < end:
        gate.wait(0.01)
    assert len(fetcher._threads) == fetch.AT_ONCE == 3
    fetcher.close()
    assert remote.aborted == 1 and not any(thread.is_alive() for thread in fetcher._threads)
    assert {type(end()) for end in ends} <= {GivenUp, RegistryUnavailable} and GivenUp in {type(end()) for end in ends}
    assert fetcher.get(digest.of(b"none")) is None


def test_a_fetcher_that_was_idle_works_again():
    """More blobs, one after the other, than it has threads."""
    store = Store()
    store.prepare()
    fetcher = Fetcher(store, [])
    try:
        for number in range(fetch.AT_ONCE + 2):
            raw = b"%d" % number
            store.put_blob(raw, digest.of(raw))
            download = fetcher.add(Descriptor("x", digest.of(raw), 1), "the layer")
            assert in_the_background(download.open().read)() == raw
    finally:
        fetcher.close()


def test_room_is_asked_for_what_is_still_to_come(fetched, monkeypatch):
    asked = []
    monkeypatch.setattr(fetch, "check_room", lambda fd, coming, what: asked.append((coming, what)))
    store = Store()
    store.prepare()
    left = Partial.take(spool_path(store, ENTRY), len(DATA), fetch.Pace().chunk)
    left.write(0, DATA[:250])
    left.close()
    assert fetched(gives())[0] == DATA and asked == [(len(DATA) - 250, "the layer")]


def test_what_the_store_got_while_the_file_was_taken(fetched, monkeypatch):
    """The file that was made for it goes again."""
    store = Store()
    store.prepare()
    take = Partial.take

    def late(*words):
        store.put_blob(DATA, ENTRY.digest)
        return take(*words)

    monkeypatch.setattr(Partial, "take", late)
    assert fetched(gives())[:2] == (DATA, [])
    assert not spool_path(store, ENTRY).exists()


@pytest.mark.parametrize("error", [None, errno.EPERM, errno.EMLINK, errno.EIO])
def test_a_file_becomes_a_blob(tmp_path, monkeypatch, error):
    """Under its own name and no other, also where there are no second names."""
    store = Store()
    store.prepare()
    (store.root / "file").write_bytes(DATA)
    if error is not None:

        def refused(*_):
            raise OSError(error, os.strerror(error))

        monkeypatch.setattr(os, "link", refused)
    if error == errno.EIO:
        with pytest.raises(OSError, match="Input/output"):
            store.keep_blob(store.root / "file", ENTRY.digest)
        return
    for _ in range(2):
        store.keep_blob(store.root / "file", ENTRY.digest)
        assert not (store.root / "file").exists()
        assert store.blob_path(ENTRY.digest).read_bytes() == DATA
        (store.root / "file").write_bytes(DATA)
