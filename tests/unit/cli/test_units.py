"""Sizes, spans and places as people write them on a command line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from liftpy.cli.units import (
    parse_bytes,
    parse_duration,
    parse_offset_or_time,
    show_bytes,
    show_count,
    show_duration,
)
from liftpy_client.errors import UsageError

WORDS = ("earliest", "latest", "new")


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("1000", 1000), ("512k", 512_000), ("1KiB", 1024), ("1.5 GiB", 1610612736), ("2tb", 2 * 10**12),
     ("9007199254740993", 9007199254740993), (" 10MB ", 10**7)],
)  # fmt: skip
def test_sizes(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "x", "-1", "1e3", "1 XB", "1.2.3", "1,000", "٣"])
def test_no_sizes(text):
    with pytest.raises(UsageError, match="is not a size"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("90", 90), ("1.5", 1.5), ("250ms", 0.25), ("1h30m", 5400), ("7d", 604800), ("1w", 604800)],
)
def test_spans(text, seconds):
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", " ", "x", "-1s", "1 h", "h", "1.5.5h", "5sec"])
def test_no_spans(text):
    with pytest.raises(UsageError, match="is not a time span"):
        parse_duration(text)


def test_places():
    assert parse_offset_or_time("latest", WORDS, "--start") == "latest"
    assert parse_offset_or_time("42", WORDS, "--start") == 42
    assert parse_offset_or_time("2026-01-31T12:00Z", WORDS, "--start") == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert parse_offset_or_time("2026-01-31", WORDS, "--start").tzinfo is not None
    before = datetime.now(UTC)
    hour_ago = parse_offset_or_time("1h", WORDS, "--start")
    assert before <= hour_ago + timedelta(hours=1) <= datetime.now(UTC)
    assert parse_offset_or_time("99999y", WORDS, "--start") == datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("text", ["", "yesterday", "-5", "2026-13-01", "12:00"])
def test_no_places(text):
    with pytest.raises(UsageError, match="--start"):
        parse_offset_or_time(text, WORDS, "--start")


def test_shown():
    assert [show_bytes(size) for size in (0, 1023, 1536, 5 * 2**40)] == ["0 B", "1023 B", "1.5 KiB", "5.0 TiB"]
    assert show_count(1234567) == "1,234,567"
    assert [show_duration(s) for s in (0.25, 59.5, 90, 3600, 273_600, 10**8)] == [
        "0.25s", "59.50s", "1m30s", "1h", "3d4h", "3y62d",
    ]  # fmt: skip
