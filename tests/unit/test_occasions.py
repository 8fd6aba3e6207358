"""Times that settings name: what can be read, and when it is next, also where the clock is changed."""

from __future__ import annotations

import time
from datetime import datetime

import pytest

from dockless.base.occasions import Occasion, parse
from dockless.errors import BadInput


@pytest.fixture(autouse=True)
def berlin(monkeypatch):
    """Summer time: 2026-03-29 02:00 becomes 03:00; 2026-10-25 03:00 becomes 02:00."""
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@pytest.mark.parametrize(
    ("text", "occasion"),
    [
        ("Mon 10:00", Occasion(0.0, (0,), 10, 0)),
        ("wed,MON  9:05", Occasion(0.0, (0, 2), 9, 5)),
        ("Mon-Fri 8:30", Occasion(0.0, (0, 1, 2, 3, 4), 8, 30)),
        ("Sat-Mon,thu 23:59", Occasion(0.0, (0, 3, 5, 6), 23, 59)),
        ("daily 00:00", Occasion(0.0, tuple(range(7)))),
    ],
)
def test_each_week(text, occasion):
    assert parse(text) == occasion


@pytest.mark.parametrize(
    ("text", "days"), [("Mon 10:00", 7), ("daily 10:00", 1), ("Mon,Wed 10:00", 2), ("Sun,Mon 10:00", 1), ("2026-11-24T10:00", 0)]
)
def test_how_long_it_is_to_the_next(text, days):
    assert parse(text).every == days * 86400.0


def test_once():
    assert parse("2026-11-24T10:00").once == parse("2026-11-24 10:00:00").once == parse("2026-11-24T09:00+00:00").once
    assert parse("2026-11-24T10:00").next(60.0, at("2026-11-24T10:00:59")) == (at("2026-11-24T10:00"), at("2026-11-24T10:01"))
    assert parse("2026-11-24T10:00").next(60.0, at("2026-11-24T10:01")) is None


@pytest.mark.parametrize(
    "text", ["", "Mon", "10:00", "Mon 24:00", "Mon 10:60", "Mon- 10:00", "Mond 10:00", "Mon;Tue 1:00", "2026-02-30", "soon"]
)
def test_what_is_no_time(text):
    with pytest.raises(BadInput, match="is no time") as caught:
        parse(text)
    assert "Mon,Wed 10:00" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "lasts", "now", "starts"),
    [
        ("Mon,Wed 10:00", 7200, "2026-11-23T09:00", "2026-11-23T10:00"),
        ("Mon,Wed 10:00", 7200, "2026-11-23T11:59", "2026-11-23T10:00"),  # it has begun
        ("Mon,Wed 10:00", 7200, "2026-11-23T12:00", "2026-11-25T10:00"),
        ("Mon,Wed 10:00", 7200, "2026-11-28T12:00", "2026-11-30T10:00"),
        ("Sun 22:00", 86400, "2026-11-23T21:59", "2026-11-22T22:00"),
        ("Mon 10:00", 7 * 86400, "2026-11-30T09:59", "2026-11-23T10:00"),
        ("Mon 10:00", 7 * 86400, "2026-11-30T10:00", "2026-11-30T10:00"),
        ("Fri 10:00", 3600, "2026-10-24T10:00", "2026-10-30T10:00"),  # the same time of day on the other side of the change
        ("Sun 02:30", 3600, "2026-03-28T10:00", "2026-03-29T03:30"),  # there is no 2:30 that day
        ("Sun 02:30", 600, "2026-10-24T10:00", "2026-10-25T02:30+02:00"),  # there are two
    ],
)
def test_the_next_time(text, lasts, now, starts):
    assert parse(text).next(lasts, at(now)) == (at(starts), at(starts) + lasts)
