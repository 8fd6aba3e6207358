"""GPUs that jobs which start together share with each other: who is on which, and of which class they are."""

from __future__ import annotations

import pytest

from dockless.sched.engine.gpus.seats import seated, seats

GIB = 1024
MIXED = {"": (40, 80), "H100": (80,), "A100": (40,), "whole,memory=60G": (80,), "whole,memory=41G": (80,), "A100,memory=60G": ()}


@pytest.mark.parametrize(
    ("shares", "places"),
    [((30, 30, 30), [1, 1, 2]), ((30, 0, 30), [1, 0, 1]), ((50, 50), [0, 0]), ((20,), [0]), ((), []), ((50, 60, 30), [1, 2, 1])],
)
def test_each_is_on_the_first_that_has_room(shares, places):
    assert seats(shares, 80) == places


@pytest.mark.parametrize(
    ("wishes", "places", "gpu_class"),
    [
        (((20, "memory=20G"), (10, "memory=10G")), [1, 1], ""),
        (((20, "H100,memory=20G"), (40, "H100,memory=40G")), [1, 1], "H100"),
        (((20, "whole,memory=20G"), (0, ""), (20, "memory=20G")), [1, 0, 1], ""),
        (((60, "memory=60G"), (10, "memory=10G"), (10, "memory=10G")), [1, 1, 1], "whole,memory=60G"),
        (((41, "memory=41G"), (41, "memory=41G"), (10, "memory=10G")), [1, 2, 1], "whole,memory=41G"),
        (((60, "A100,memory=60G"), (10, "A100,memory=10G")), [0, 0], "A100,memory=60G"),
        (((20, "H100,memory=20G"), (20, "A100,memory=20G")), [0, 0], ""),
        (((0, ""), (0, "")), [0, 0], ""),
    ],
)
def test_they_are_gpus_of_the_class_that_is_asked_for_with_room_for_the_largest_share(wishes, places, gpu_class):
    in_mib = [(share * GIB, name) for share, name in wishes]
    assert seated(in_mib, lambda name: [size * GIB for size in MIXED[name]]) == (places, gpu_class)
