"""A blob on its way: bytes and their count, whatever happens to the process that writes them."""

from __future__ import annotations

import errno
import os
import threading

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dockless.images.transfer import partial
from dockless.images.transfer.partial import Partial

CHUNK = 100
SIZE = 1050
DATA = os.urandom(SIZE)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "partial" / "sha256" / "x"


def take(path, size=SIZE):
    found = Partial.take(path, size, CHUNK)
    assert found is not None
    return found


def fill(held, begin=0, end=SIZE, data=DATA):
    return held.write(begin, data[begin:end])


def test_written_in_one_go(path):
    held = take(path)
    assert (held.have, held.prefix, held.whole, held.inherited) == (0, 0, False, 0)
    assert fill(held) == SIZE
    held.finish()
    held.close()
    assert path.read_bytes() == DATA
    again = take(path)
    assert (again.whole, again.have, again.prefix, again.inherited) == (True, SIZE, SIZE, SIZE)
    assert again.claim(1) is None
    again.close()


def test_gone_on_with(path):
    held = take(path)
    fill(held, 0, 250)
    fill(held, 500, 530)
    held.close()
    again = take(path)
    assert (again.inherited, again.prefix, again.have) == (280, 250, 280)
    assert again.claim(1 << 30) == (250, 500)
    assert again.claim(1 << 30) == (530, SIZE)
    fill(again, 250, 500)
    assert again.prefix == 530
    fill(again, 530)
    again.finish()
    again.close()
    assert path.read_bytes() == DATA


def test_claims_are_in_order_and_nobody_elses(path):
    held = take(path)
    assert [held.claim(1), held.claim(1), held.claim(3)] == [(0, 100), (100, 200), (200, 500)]
    fill(held, 100, 140)
    held.release(100, 200)
    held.release(200, 500)
    assert [held.claim(1), held.claim(2), held.claim(1 << 30)] == [(140, 200), (200, 400), (400, SIZE)]
    assert held.claim(1) is None
    held.release(140, 200)
    assert held.claim(1) == (140, 200)
    held.close()


def test_bytes_that_are_here_are_not_written_again(path):
    held = take(path)
    fill(held, 0, 150)
    fill(held, 300, 310)
    assert held.write(0, b"\0" * 150 + DATA[150:]) == SIZE - 160
    held.finish()
    held.close()
    assert path.read_bytes() == DATA


def test_have_in(path):
    held = take(path)
    fill(held, 0, 150)
    assert [held.have_in(0, 100), held.have_in(0, SIZE), held.have_in(100, 200), held.have_in(120, 130), held.have_in(150, 400)] == [
        100,
        150,
        50,
        10,
        0,
    ]
    held.close()


def test_one_holder(path):
    held = take(path)
    assert Partial.take(path, SIZE, CHUNK) is None
    held.close()
    take(path).close()


def test_the_next_holder_finds_another_file_where_the_first_was_taken_away(path):
    held = take(path)
    fill(held)
    held.finish()
    os.rename(path, path.with_name("blob"))
    held.close()
    again = take(path)
    assert not again.whole
    again.close()
    assert path.with_name("blob").read_bytes() == DATA


def test_a_reader_may_go_on_when_the_file_is_replaced(path):
    held = take(path)
    fill(held)
    held.finish()
    reader = os.dup(held.fd)
    held.close()
    other = take(path, SIZE + 1)
    assert not other.whole
    assert os.pread(reader, SIZE, 0) == DATA
    os.close(reader)
    other.close()


@pytest.mark.parametrize("damage", [b"", b"x", b"x" * 2000, b"\xff" * (SIZE + 7 + 24 + 44)], ids=["empty", "short", "long", "same size"])
def test_what_is_of_no_use_is_replaced(path, damage):
    path.parent.mkdir(parents=True)
    path.write_bytes(damage)
    held = take(path)
    assert (held.have, held.whole) == (0, False)
    fill(held)
    held.finish()
    held.close()
    assert path.read_bytes() == DATA


def test_counts_that_cannot_be(path):
    take(path).close()
    with path.open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write((51).to_bytes(4, "little"))  # the last chunk has 50 bytes
    held = take(path)
    assert held.have == 0
    held.close()


def test_a_disk_that_was_full_is_not_a_holder(path, monkeypatch):
    """Whoever could not begin holds nothing: the next try in the same process is not kept waiting for it."""

    def full(fd, data, offset):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(partial, "_write", full)
        with pytest.raises(OSError, match="No space left"):
            take(path)
    held = take(path)
    fill(held)
    held.finish()
    held.close()
    assert path.read_bytes() == DATA


def test_a_link_is_not_followed(path, tmp_path):
    path.parent.mkdir(parents=True)
    (tmp_path / "victim").write_bytes(b"mine")
    path.symlink_to(tmp_path / "victim")
    with pytest.raises(OSError):
        Partial.take(path, SIZE, CHUNK)
    assert (tmp_path / "victim").read_bytes() == b"mine"


def test_nothing_at_all(path):
    held = take(path, 0)
    assert held.whole
    held.close()


def test_threads_write_at_once(path):
    held = take(path)

    def work():
        while (stretch := held.claim(1)) is not None:
            for at in range(*stretch, 7):
                held.write(at, DATA[at : min(at + 7, stretch[1])])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    held.finish()
    held.close()
    assert path.read_bytes() == DATA


def test_threads_that_write_the_same(path):
    held = take(path)

    def work(step):
        for at in range(0, SIZE, step):
            fill(held, at, min(at + step, SIZE))

    threads = [threading.Thread(target=work, args=(step,)) for step in (3, 5, 7, 11)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert held.have == SIZE
    held.finish()
    held.close()
    assert path.read_bytes() == DATA


class Dead(BaseException):
    pass


@given(
    writes=st.lists(st.tuples(st.integers(0, 10), st.integers(1, 260)), max_size=20),
    dies=st.integers(0, 60),
    halfway=st.booleans(),
)
@example(writes=[(0, 50)], dies=2, halfway=False)  # behind the head and the size: between a chunk's bytes and their count
@example(writes=[(0, 50)], dies=3, halfway=False)
@example(writes=[(0, 50)], dies=1, halfway=False)
@example(writes=[(0, 50)], dies=0, halfway=False)
def test_killed_at_any_write(tmp_path_factory, writes, dies, halfway):
    """After any number of writes, the last of them cut short: no byte is counted that is not in the file, none that was counted is lost."""
    path = tmp_path_factory.mktemp("p") / "x"
    plain, left = partial._write, [dies]

    def dying(fd, data, offset):
        left[0] -= 1
        if left[0] < 0:
            if halfway and len(data) > 4:
                plain(fd, memoryview(data)[: len(data) // 2], offset)
            raise Dead
        plain(fd, data, offset)

    counted = 0
    partial._write = dying
    try:
        held = take(path)
        for at, count in writes:
            begin = at * CHUNK + held._counts[at] if at < len(held._counts) else SIZE
            counted += held.write(begin, DATA[begin : min(begin + count, (at + 1) * CHUNK)])
    except Dead:
        pass
    finally:
        partial._write = plain
        if "held" in locals():
            held.close()
        else:
            return
    again = take(path)
    content = path.read_bytes()
    for at, count in enumerate(again._counts):
        assert content[at * CHUNK : at * CHUNK + count] == DATA[at * CHUNK : at * CHUNK + count]
    assert again.have >= counted
    while (stretch := again.claim(1)) is not None:
        again.write(stretch[0], DATA[slice(*stretch)])
    again.finish()
    again.close()
    assert path.read_bytes() == DATA
