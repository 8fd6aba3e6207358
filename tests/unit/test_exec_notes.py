"""Notes of the execs in a sandbox: what stands in them, and when none is made."""

from __future__ import annotations

import contextlib
import os

import pytest

from dockless.sandbox.run.exec_notes import NAME, OLDER, Notes, note_end, note_start

ONE, TWO = "0123456789", "abcdefghij"


@pytest.fixture
def place(tmp_path):
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


@contextlib.contextmanager
def noted(place, id, *argv):
    held = note_start(place, id, argv or ("true",))
    try:
        yield held
    finally:
        os.close(held)


def test_an_end_makes_no_file_in_a_directory_that_is_being_removed(place):
    held = os.open(place, os.O_PATH)
    note_end(held, ONE, 0)
    os.close(held)
    assert not os.listdir(place)
    with noted(place, ONE) as held:
        note_end(held, ONE, 3)
    start, end = Notes(place).read()
    assert start.argv == ("true",) and end.exit_code == 3


def test_arguments_are_cut_to_200_characters_with_a_space_between_two(place):
    with noted(place, ONE, "x" * 100, "y" * 200), noted(place, TWO, "x" * 98, "y" * 100):
        pass
    cut, whole = Notes(place).read()
    assert cut.argv == ("x" * 100, "y" * 99 + "…") and whole.argv == ("x" * 98, "y" * 100)


def test_a_line_is_read_when_its_end_is_there(place):
    notes = Notes(place)
    with noted(place, ONE):
        pass
    line = (place / NAME).read_bytes()
    with open(place / NAME, "ab", buffering=0) as file:
        file.write(line[:-1])
        assert len([*notes.read()]) == 1
        file.write(line[-1:])
    assert len([*notes.read()]) == 1 and not [*notes.read()]


def test_an_end_behind_a_full_file_is_noted(place):
    notes = Notes(place)
    with noted(place, ONE) as held:
        [_] = notes.read()
        os.rename(place / NAME, place / OLDER)
        note_end(held, ONE, 3)
    assert [note.exit_code for note in notes.read()] == [3]
    with noted(place, TWO) as held:
        note_end(held, TWO, 4)
    assert [note.exit_code for note in notes.read()] == [None, 4]


def test_a_directory_that_has_gone(tmp_path):
    assert note_start(tmp_path / "gone", ONE, ("true",)) == -1
