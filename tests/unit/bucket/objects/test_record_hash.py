"""The digest of a record is what the docs say, and differs when anything but the epoch differs."""

from __future__ import annotations

import struct
from hashlib import blake2b

from hypothesis import given

from liftpy_bucket.objects.record_hash import digests_of, setsum_of
from liftpy_bucket.objects.rows.schema import subject_texts
from liftpy_bucket.objects.setsum import NO_RECORDS, Setsum
from support.examples import examples
from support.tier_rows import Record, histories, plain_records, rows_from


def digest_by_hand(record, text):
    fields = [text.encode(), record.key, record.headers, record.value, record.message_id, record.reply]
    head = struct.pack("<qq6i", record.offset, record.timestamp, *[-1 if f is None else len(f) for f in fields])
    return blake2b(head + b"".join(field or b"" for field in fields), digest_size=32).digest()


@examples(100)
@given(histories())
def test_digests_are_of_the_canonical_form(records):
    rows = rows_from(records, keeps_replies=True)
    texts = rows.column("subject").to_pylist()
    expected = [digest_by_hand(record, text) for record, text in zip(records, texts, strict=True)]
    assert bytes(digests_of(rows)) == b"".join(expected)
    middle = len(records) // 2
    assert bytes(digests_of(rows.slice(middle))) == b"".join(expected[middle:])


def test_every_field_counts_and_null_is_not_empty():
    base = Record(5, 6, b"s", b"k", b"h", b"v", b"i", b"r", epoch=2)
    others = [
        base._replace(**{name: value})
        for name, values in {
            "offset": [6],
            "timestamp": [7],
            "subject": [b"t", b""],
            "key": [b"l", b"", None],
            "headers": [b"g", b"", None],
            "value": [b"w", b"", None],
            "message_id": [b"j", b"", None],
            "reply": [b"q", b"", None],
        }.items()
        for value in values
    ]
    digests = {bytes(digests_of(rows_from([record], keeps_replies=True))) for record in [base, *others]}
    assert len(digests) == 1 + len(others)
    assert digests_of(rows_from([base._replace(epoch=9)], keeps_replies=True)) == digests_of(
        rows_from([base], keeps_replies=True)
    )


def test_a_byte_that_moves_to_the_next_field_counts():
    one = rows_from([Record(1, 2, b"s", key=b"ab", value=b"c")])
    other = rows_from([Record(1, 2, b"s", key=b"a", value=b"bc")])
    assert digests_of(one) != digests_of(other)


def test_the_sum_is_that_of_the_digests_however_rows_are_cut():
    rows = rows_from(plain_records(20_000, size=200))
    whole = setsum_of(rows)
    assert whole == Setsum.of_digests(digests_of(rows))
    parts = NO_RECORDS
    for start in range(0, rows.num_rows, 3_333):
        parts += setsum_of(rows.slice(start, 3_333))
    assert parts == whole
    assert setsum_of(rows.slice(0, 0)) == NO_RECORDS


def test_subjects_are_hashed_as_they_stand_in_rows():
    record = Record(1, 2, b"\xff", value=b"v")
    rows = rows_from([record])
    text = subject_texts(rows.column("subject").cast("binary")).to_pylist()
    assert text != rows.column("subject").to_pylist()  # a mark that is there already is marked again
    assert bytes(digests_of(rows)) == digest_by_hand(record, rows.column("subject")[0].as_py())
