"""Human units: what is read, what is refused, and that printing and reading agree."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockless.base.units import (
    format_duration,
    format_rate,
    format_size,
    parse_cores,
    parse_count,
    parse_duration,
    parse_rate,
    parse_signal,
    parse_size,
    parse_time,
)
from dockless.errors import BadInput

SIZES = st.integers(min_value=0, max_value=2**62)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (0, 0), (4096, 4096), ("0", 0), ("1", 1), ("512b", 512), ("1k", 1024), ("1K", 1024), ("1KB", 1024), ("1KiB", 1024),
        ("512m", 512 << 20),
        ("4G", 4 << 30), ("4GB", 4 << 30), ("4GiB", 4 << 30), ("4 GiB", 4 << 30), (" 4G ", 4 << 30), ("1.5GiB", 3 << 29), (".5g", 1 << 29),
        ("2T", 2 << 40), ("1P", 1 << 50), ("1E", 1 << 60), ("0.1k", 102), ("9223372036854775807", 2**63 - 1),
    ],
)  # fmt: skip
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "G", "-1", -1, "4X", "4GG", "4Gi", "1e9", "1_000", "0x10", "1,5G", "4 G B", "4\nG", "4G\n", "٤", "max", "inf", "nan",
        "8E", 2**63,
        "9223372036854775808", True, None, 1.5, b"4G", "4" * 5000,
    ],
)  # fmt: skip
def test_sizes_refused(text):
    with pytest.raises(BadInput) as caught:
        parse_size(text)
    assert caught.value.hint


@given(SIZES)
def test_a_number_of_bytes_is_itself(size):
    assert parse_size(size) == parse_size(str(size)) == size


@given(SIZES)
def test_printed_sizes_read_back_within_one_per_cent(size):
    shown = format_size(size)
    assert len(shown) <= 9
    assert abs(parse_size(shown) - size) <= size * 0.01


@given(st.integers(1, 999), st.sampled_from("kmgt"))
def test_round_sizes_print_round(number, unit):
    size = parse_size(f"{number}{unit}")
    assert format_size(size) == f"{number} {unit.upper()}iB"


@given(st.text(max_size=12))
def test_any_text_is_a_size_or_bad_input(text):
    for parse in (parse_size, parse_rate, parse_count, parse_cores, parse_duration):
        try:
            value = parse(text)
        except BadInput as error:
            assert str(error) and error.hint
        else:
            assert value >= 0 and math.isfinite(value)


def test_rates():
    assert parse_rate("50MB/s") == parse_rate("50M") == parse_rate(50 << 20) == 50 << 20
    assert parse_rate("1.5 GiB/s") == 3 << 29
    for text in ("50MB/h", "50Mbit/s", "/s", "50MB/s/s", "50MBps", -1):
        with pytest.raises(BadInput):
            parse_rate(text)
    assert format_rate(50 << 20) == "50 MiB/s"


def test_counts():
    assert parse_count("10k") == 10_000
    assert parse_count("1.5k") == 1500
    assert parse_count(7) == 7
    for text in ("0.5", "1.2345k", "-1", "", "1T", -3, True, "10 000"):
        with pytest.raises(BadInput):
            parse_count(text)


def test_cores():
    assert parse_cores("1.5") == parse_cores(1.5) == parse_cores("1500m") == 1.5
    assert parse_cores(2) == 2.0
    for text in (0, "0", "0.0", -1, "-1", "", "x", math.nan, math.inf, "inf", "1.5 cores", "1,5", True, None, 10**400):
        with pytest.raises(BadInput):
            parse_cores(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (90, 90), (0.5, 0.5), ("90", 90), ("0", 0), ("90s", 90), ("1.5s", 1.5), ("1h30m", 5400), ("1d", 86400), ("1d2h3m4s", 93784),
        ("2:00:00", 7200),
        ("5:00", 300), ("90:00", 5400), ("1-12:00:00", 129600), ("100:00:00", 360000), ("0:00:01.5", 1.5), ("350ms", 0.35),
        ("42us", 42e-6), ("42µs", 42e-6),
        ("1s500ms", 1.5),
    ],
)  # fmt: skip
def test_durations(text, seconds):
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    ["", "s", "-1", -1, "1h30", "30m1h", "1h1h", "1:60", "1:60:00", "1:2:3:4", "1-5:00", "1-24:00:00", "1e3", "1 h", "forever", math.nan,
    math.inf, True, None,
     10**400, "9" * 400],
)  # fmt: skip
def test_durations_refused(text):
    with pytest.raises(BadInput):
        parse_duration(text)


@given(st.floats(min_value=1e-6, max_value=1e8))
def test_printed_durations_read_back(seconds):
    again = parse_duration(format_duration(seconds))
    assert again == pytest.approx(seconds, rel=0.05 if seconds < 1e-5 else 0.01, abs=6e-7)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (4.2e-5, "42us"), (0.35, "350ms"), (0.0042, "4.2ms"), (1.5, "1.5s"), (60, "1m"), (90, "1m30s"), (7200, "2h"),
    (102600, "1d4h30m"), (-90, "-1m30s"),
     (59.96, "1m"), (0.9996, "1s")],
)  # fmt: skip
def test_how_durations_look(seconds, text):
    assert format_duration(seconds) == text


@pytest.mark.parametrize("parse", [parse_size, parse_rate, parse_count, parse_cores, parse_duration, parse_signal])
@pytest.mark.parametrize("value", ["?", "?" * 65, b"1", -1, True, None])
def test_a_refusal_names_what_and_shows_it(parse, value):
    """In that order: what was to be read, and what stood there, shortened."""
    with pytest.raises(BadInput) as caught:
        parse(value, "the thing")
    assert caught.value.subject == "the thing" and str(caught.value).startswith("the thing ") and caught.value.hint
    assert len(str(caught.value)) < 200
    if parse is parse_rate and isinstance(value, str):
        assert "bytes per second" in caught.value.hint


@pytest.mark.parametrize("parse", [parse_size, parse_rate, parse_count, parse_cores, parse_duration])
def test_a_number_may_have_so_many_characters(parse):
    assert parse("0" * 63 + "7") == parse(" " * 99 + "7" + " " * 99) == 7
    with pytest.raises(BadInput):
        parse("0" * 64 + "7")


def test_the_least_and_the_most():
    for parse in (parse_size, parse_rate, parse_count):
        assert parse(0) == parse("0") == 0 and parse((1 << 63) - 1) == (1 << 63) - 1
        with pytest.raises(BadInput, match="more than any kernel counts") as caught:
            parse(1 << 63, "the thing")
        assert caught.value.subject == "the thing"
    assert parse_duration(0) == 0 and parse_duration(0.0) == 0
    assert parse_cores(0.01) == 0.01 and parse_cores("10m") == 0.01
    for value in (b"7", 1.5, None):
        with pytest.raises(BadInput):
            parse_count(value)
    assert parse_signal(0) == 0 and parse_signal("1") == 1 and parse_signal("64") == 64
    for value in (False, "1000", "0009", "065536", "²", "٩", "TERM!", "RTMIN+300"):
        with pytest.raises(BadInput):
            parse_signal(value)


def test_clocks():
    """Below its leading field a clock has sixty of each at most, and a day twenty-four hours."""
    for text, seconds in (("59:59", 3599), ("90:00", 5400), ("1:59:59", 7199), ("1-23:59:59", 172799), ("2-0:0:0", 172800)):
        assert parse_duration(text) == seconds
    for text in ("0:60", "0:60:00", "1-24:00:00", "1-00:60:00", "1-5:00", "1-5"):
        with pytest.raises(BadInput):
            parse_duration(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"), (1, "1 B"), (-1, "-1 B"), (-512, "-512 B"), (1023, "1023 B"), (1024, "1 KiB"), (1024.9, "1 KiB"), (-1024, "-1 KiB"),
        (1536, "1.5 KiB"), (9.99 * 1024, "9.99 KiB"), (9.995 * 1024, "10 KiB"), (10.25 * 1024, "10.2 KiB"), (99.9 * 1024, "99.9 KiB"),
        (100.7 * 1024, "101 KiB"), (1023.4 * 1024, "1023 KiB"), (1023.5 * 1024, "1 MiB"), (2000 * 2**60, "2000 EiB"),
    ],
)  # fmt: skip
def test_how_sizes_look(size, text):
    assert format_size(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.00099949, "999us"), (0.0009995, "0.999ms"), (0.0995, "99.5ms"), (0.09995, "100ms"), (0.1234, "123ms"), (0.9994, "999ms"),
        (0.9995, "1s"), (1.2345, "1.23s"), (59.94, "59.94s"), (59.95, "1m"),
    ],
)  # fmt: skip
def test_where_durations_change_their_unit(seconds, text):
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-11-24T08:00:00Z", 1_795_507_200.0),
        ("2026-11-24 08:00", 1_795_507_200.0),
        ("2026-11-24T09:00:00+01:00", 1_795_507_200.0),
        ("1795507200", 1_795_507_200.0),
        (1_795_507_200, 1_795_507_200.0),
    ],
)
def test_times(text, seconds):
    assert parse_time(text) == seconds


def test_a_time_from_now(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    assert (parse_time("+2h"), parse_time("+90s")) == (8200.0, 1090.0)


@pytest.mark.parametrize(
    "text", ["", "tomorrow", "2h", "+", "+x", "25:00", "2026-13-01", True, -1.0, float("nan"), float("inf"), None, 1e12]
)
def test_times_that_cannot_be_read(text):
    with pytest.raises(BadInput):
        parse_time(text, "begin")
