"""The form of a listing on the socket: a page of jobs is sent as columns, and a value that all of its jobs have is sent once.

A page is ``{"count": 500, "same": {"user": "ann", …}, "each": {"id": [1, 2, …], …}}``. Neither side ever has the text of more than a page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import repeat

from dockless.base.dataclass import columns as columns_of
from dockless.base.dataclass import dataclass, field, many
from dockless.base.records import differences
from dockless.base.typing import TYPE_CHECKING, Any
from dockless.sched.jobs import NO_OPTIONS, Job, State, read_options

if TYPE_CHECKING:
    from dockless.sched.policy.waiting import WaitingJob

_FIELDS = tuple(name for name in Job.__slots__ if name != "attempts")
_READ: dict[str, Callable[[Any], Any]] = {"state": State, "devices": tuple, "options": read_options}


@dataclass(frozen=True, slots=True)
class Part:
    """Jobs of a listing. ``seen``: what the policy sees of those that wait, ``places``, ``starts`` (``Job.starts_in``), ``after``
    (``Job.starts_after``): by their numbers; of those that are not there nothing is said."""

    jobs: Sequence[Job]
    seen: Mapping[int, WaitingJob] = field(default_factory=dict)
    places: Mapping[int, int] = field(default_factory=dict)
    starts: Mapping[int, float] = field(default_factory=dict)
    after: Mapping[int, float] = field(default_factory=dict)


class Listing(list[Job]):
    """Jobs; ``more``: how many there are beyond the limit that was given."""

    more: int = 0


def page(part: Part, reason: Callable[[Job], str], hidden: Callable[[int], bool]) -> dict[str, Any]:
    """``reason``: why a job waits; ``hidden``: whether the words of this uid's jobs are not the caller's to see."""
    jobs = part.jobs
    state, why, options, uid = map(_FIELDS.index, ("state", "reason", "options", "uid"))
    words = [_FIELDS.index(name) for name in ("name", "image", "command")]
    columns = columns_of(jobs, _FIELDS)
    columns[why] = [
        said or (reason(job) if now is State.PENDING else "") for job, now, said in zip(jobs, columns[state], columns[why], strict=True)
    ]
    strangers = {*filter(hidden, {*columns[uid]})}
    for place in [place for place, of in enumerate(columns[uid]) if of in strangers] if strangers else ():
        for column in words if columns[state][place] is State.PENDING else (*words, why):
            columns[column][place] = ""
        columns[options][place] = NO_OPTIONS
    for name, said_of in (("place", part.places), ("starts_in", part.starts), ("starts_after", part.after)):
        if said_of:
            column = _FIELDS.index(name)
            columns[column] = [*map(said_of.get, columns[_FIELDS.index("id")], columns[column])]
    asked = dict(zip(map(id, columns[options]), columns[options], strict=True))  # most share theirs
    said = {key: {} if found is NO_OPTIONS else differences(found) for key, found in asked.items()}
    columns[options] = [*map(said.__getitem__, map(id, columns[options]))]
    found: dict[str, Any] = {"count": len(jobs), "same": {}, "each": {}}
    for name, values in zip(_FIELDS, columns, strict=True):
        if values.count(values[0]) == len(values):
            found["same"][name] = values[0]
        else:
            found["each"][name] = values
    return found


def read_page(page: dict[str, Any]) -> list[Job]:
    """Its jobs. Fields of a newer daemon are ignored."""
    same = {name: repeat(_READ[name](value) if name in _READ else value) for name, value in page["same"].items()}
    each = {name: map(_READ[name], values) if name in _READ else values for name, values in page["each"].items()}
    return many(Job, int(page["count"]), same | each)
