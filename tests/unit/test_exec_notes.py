"""Notes of the execs in a sandbox: what stands in them, and when none is made."""

from __future__ import annotations

import os

import pytest

from dockless.sandbox.run.exec_notes import NAME, OLDER, Notes, note_end, note_start

ONE, TWO = "0123456789", "abcdefghij"


@pytest.fixture
def place(tmp_path):
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


def test_an_end_makes_no_file_in_a_directory_that_is_being_removed(place):
    note_end(place, ONE, 0)
    assert not os.listdir(place)
    note_start(place, ONE, ("true",))
    note_end(place, ONE, 3)
    start, end = Notes(place).read()
    assert start.argv == ("true",) and end.exit_code == 3


def test_arguments_are_cut_to_200_characters_with_a_space_between_two(place):
    note_start(place, ONE, ("x" * 100, "y" * 200))
    note_start(place, TWO, ("x" * 98, "y" * 100))
    cut, whole = Notes(place).read()
    assert cut.argv == ("x" * 100, "y" * 99 + "…") and whole.argv == ("x" * 98, "y" * 100)


def test_a_line_is_read_when_its_end_is_there(place):
    notes = Notes(place)
    note_start(place, ONE, ("true",))
    line = (place / NAME).read_bytes()
    with open(place / NAME, "ab", buffering=0) as file:
        file.write(line[:-1])
        assert len([*notes.read()]) == 1
        file.write(line[-1:])
    assert len([*notes.read()]) == 1 and not [*notes.read()]


def test_an_end_behind_a_full_file_is_noted(place):
    notes = Notes(place)
    note_start(place, ONE, ("true",))
    [_] = notes.read()
    os.rename(place / NAME, place / OLDER)
    note_end(place, ONE, 3)
    assert [note.exit_code for note in notes.read()] == [3]
    note_start(place, TWO, ("true",))
    note_end(place, TWO, 4)
    assert [note.exit_code for note in notes.read()] == [None, 4]
