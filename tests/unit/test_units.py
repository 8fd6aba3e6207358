"""Human units: what is read, what is refused, and that printing and reading agree."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockless.errors import BadInput
from dockless.units import (
    format_duration,
    format_rate,
    format_size,
    parse_cores,
    parse_count,
    parse_duration,
    parse_rate,
    parse_size,
)

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
