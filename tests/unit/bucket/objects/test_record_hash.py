"""The digest of a record is what the docs say, and differs when anything but the epoch differs."""

from __future__ import annotations

import struct
from hashlib import blake2b

import pytest
from hypothesis import given
from xxhash import xxh3_128_digest

from liftpy_bucket.objects.record_hash import RecordHash, digests_of, setsum_of
from liftpy_bucket.objects.rows.schema import subject_texts
from liftpy_bucket.objects.setsum import NO_RECORDS, Setsum
from support.examples import examples
from support.tier_rows import Record, histories, plain_records, rows_from

every_hash = pytest.mark.parametrize("record_hash", RecordHash)


def digest_by_hand(record, text, record_hash):
    fields = [text.encode(), record.key, record.headers, record.value, record.message_id, record.reply]
    head = struct.pack("<qq6i", record.offset, record.timestamp, *[-1 if f is None else len(f) for f in fields])
    canonical = head + b"".join(field or b"" for field in fields)
    if record_hash is RecordHash.BLAKE2B:
        return blake2b(canonical, digest_size=32).digest()
    return xxh3_128_digest(canonical) + bytes(16)


@every_hash
@examples(100)
@given(histories())
def test_digests_are_of_the_canonical_form(record_hash, records):
    rows = rows_from(records, keeps_replies=True)
    texts = rows.column("subject").to_pylist()
    expected = [digest_by_hand(record, text, record_hash) for record, text in zip(records, texts, strict=True)]
    assert bytes(digests_of(rows, record_hash)) == b"".join(expected)
    middle = len(records) // 2
    assert bytes(digests_of(rows.slice(middle), record_hash)) == b"".join(expected[middle:])


@every_hash
def test_every_field_counts_and_null_is_not_empty(record_hash):
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
    digests = {bytes(digests_of(rows_from([record], keeps_replies=True), record_hash)) for record in [base, *others]}
    assert len(digests) == 1 + len(others)
    of_another_epoch = rows_from([base._replace(epoch=9)], keeps_replies=True)
    assert bytes(digests_of(of_another_epoch, record_hash)) in digests


@every_hash
def test_a_byte_that_moves_to_the_next_field_counts(record_hash):
    one = rows_from([Record(1, 2, b"s", key=b"ab", value=b"c")])
    other = rows_from([Record(1, 2, b"s", key=b"a", value=b"bc")])
    assert digests_of(one, record_hash) != digests_of(other, record_hash)


@every_hash
def test_the_sum_is_that_of_the_digests_however_rows_are_cut(record_hash):
    rows = rows_from(plain_records(20_000, size=200))
    whole = setsum_of(rows, record_hash)
    assert whole == Setsum.of_digests(digests_of(rows, record_hash))
    parts = NO_RECORDS
    for start in range(0, rows.num_rows, 3_333):
        parts += setsum_of(rows.slice(start, 3_333), record_hash)
    assert parts == whole
    assert setsum_of(rows.slice(0, 0), record_hash) == NO_RECORDS


@every_hash
def test_subjects_are_hashed_as_they_stand_in_rows(record_hash):
    record = Record(1, 2, b"\xff", value=b"v")
    rows = rows_from([record])
    text = subject_texts(rows.column("subject").cast("binary")).to_pylist()
    assert text != rows.column("subject").to_pylist()  # a mark that is there already is marked again
    assert bytes(digests_of(rows, record_hash)) == digest_by_hand(
        record, rows.column("subject")[0].as_py(), record_hash
    )
