"""Distances between GPUs and the packing rule."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from dockless.sandbox.gpus.topology import KINDS, best_set, link


def test_ranks_follow_the_order_of_kinds():
    assert [link("x", kind).rank for kind in KINDS] == list(range(len(KINDS)))
    assert KINDS[0] == "NVLINK" and KINDS[-1] == "SYS"


def pairs(a: int, b: int) -> int:
    return 0 if a // 2 == b // 2 else 6


def test_a_pair_is_kept_together():
    assert best_set([0, 2, 3], 2, pairs) == (2, 3)
    assert best_set([0, 2, 3], 1, pairs) == (0,)
    assert best_set([1, 3, 5], 2, pairs) == (1, 3)


def test_too_few_or_none():
    assert best_set([0, 1], 3, pairs) == ()
    assert best_set([0, 1], 0, pairs) == ()
    assert best_set([], 1, pairs) == ()


def test_a_large_host_is_packed_greedily_and_still_in_groups():
    assert best_set(range(32), 8, lambda a, b: 0 if a // 8 == b // 8 else 6) == tuple(range(8))


@given(st.integers(1, 7).flatmap(lambda n: st.tuples(st.lists(st.integers(0, 6), min_size=n * n, max_size=n * n), st.integers(1, n))))
def test_no_set_is_nearer_than_the_best(case):
    table, count = case
    size = int(len(table) ** 0.5)

    def distance(a: int, b: int) -> int:
        return table[min(a, b) * size + max(a, b)]

    def cost(members):
        return sum(distance(a, b) for a, b in combinations(members, 2))

    chosen = best_set(range(size), count, distance)
    assert len(set(chosen)) == count
    assert cost(chosen) == min(cost(members) for members in combinations(range(size), count))
