"""The directory of a new sandbox where there are no descriptors left: it is there with its lock and its door, or not at all."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource

import pytest

from dockless.errors import Unwritable
from dockless.sandbox.run.start import occupy


@contextlib.contextmanager
def descriptors(count):
    """So many more can be opened."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    fd = os.open(os.devnull, os.O_RDONLY)
    os.close(fd)
    taken = {int(number) for number in os.listdir("/proc/self/fd")} - {fd}  # by whoever looks
    free = (number for number in itertools.count() if number not in taken)
    limit = next(itertools.islice(free, count, None))
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("kept", [False, True])
def test_it_is_made_whole_or_not_at_all(tmp_path, kept):
    with contextlib.ExitStack() as opened:
        assert occupy(tmp_path / "first", opened, kept=kept)  # the extension is loaded
    made = []
    for count in range(8):
        directory = tmp_path / f"box{count}"
        with contextlib.ExitStack() as opened, descriptors(count):
            try:
                place = occupy(directory, opened, kept=kept)
            except (Unwritable, OSError):
                place = None
        made.append(place is not None)
        assert directory.exists() == made[-1], count
    assert made == sorted(made) and made[-1] and not made[0]
