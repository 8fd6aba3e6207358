"""Which GPUs of the free ones: best fit on one host, keeping linked neighbours together.

Links are data: a weight for each pair, higher for a faster way between them (NVLink over a PCIe switch over the same NUMA node …).
Of all sets of the wanted size take the one with the most link weight inside; among equals the one that cuts the least weight to the
free GPUs left behind, so that a small job goes into a broken island and leaves the whole one whole; among equals the lowest indices.

Exact for a host of eight (70 sets at most); above ``EXACT`` sets a greedy search from every free GPU takes over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import comb

Links = Mapping[tuple[str, str], float]

EXACT = 2_000


def choose(count: int, free: Sequence[str], links: Links) -> tuple[str, ...]:
    """``count`` of ``free`` (which is in index order), in that order. Needs ``0 < count <= len(free)``."""
    if count >= len(free):
        return tuple(free[:count])
    if not links:
        return tuple(free[:count])
    weight = [[0.0 if a == b else _link(links, a, b) for b in free] for a in free]
    total = [sum(row) for row in weight]
    if max(map(max, weight)) == min(weight[i][j] for i in range(len(free)) for j in range(len(free)) if i != j):
        return tuple(free[:count])  # all pairs alike
    if comb(len(free), count) <= EXACT:
        chosen = min(combinations(range(len(free)), count), key=lambda picked: _rank(picked, weight, total))
    else:
        chosen = min((_grow(seed, count, weight) for seed in range(len(free))), key=lambda picked: _rank(picked, weight, total))
    return tuple(free[i] for i in chosen)


def _link(links: Links, a: str, b: str) -> float:
    return links.get((a, b), links.get((b, a), 0.0))


def _rank(picked: tuple[int, ...], weight: list[list[float]], total: list[float]) -> tuple[float, float, tuple[int, ...]]:
    inside = sum(weight[a][b] for a, b in combinations(picked, 2))
    cut = sum(total[a] for a in picked) - 2 * inside
    return -inside, cut, picked


def _grow(seed: int, count: int, weight: list[list[float]]) -> tuple[int, ...]:
    picked = [seed]
    rest = [i for i in range(len(weight)) if i != seed]
    while len(picked) < count:
        best = max(rest, key=lambda i: (sum(weight[i][j] for j in picked), -sum(weight[i][j] for j in rest if j != i), -i))
        picked.append(best)
        rest.remove(best)
    return tuple(sorted(picked))
