"""Row groups are passed over only where no record of theirs is wanted."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from liftpy_bucket.objects.rows.schema import subject_texts
from liftpy_envelope.subject import matches
from liftpy_spark.reading.record_filter import Match, RecordFilter

TOKEN = st.sampled_from(["a", "b", "ab", "~", "\ufffd", "é", "\U0001f600"])
SUBJECT = st.lists(TOKEN, min_size=1, max_size=3).map(".".join).map(str.encode) | st.binary(min_size=1, max_size=3)
PATTERN = st.lists(TOKEN | st.just("*"), min_size=1, max_size=3).map(".".join)
PATTERNS = st.lists(PATTERN | PATTERN.map(lambda text: text + ".>") | st.just(">"), max_size=3)
KEY = st.none() | st.binary(max_size=2)


@settings(deadline=None)
@given(st.lists(st.tuples(SUBJECT, KEY), min_size=1, max_size=8), PATTERNS, KEY)
def test_what_statistics_tell_is_what_rows_tell(rows, patterns, key):
    chosen = RecordFilter(patterns, key)
    subjects = pa.array([subject for subject, _ in rows], pa.binary())
    keys = [each for _, each in rows]
    wanted = [
        (not patterns or any(matches(pattern.encode().decode("latin-1"), text) for pattern in patterns))
        and (key is None or each == key)
        for text, each in zip([each.decode("latin-1") for each in subjects.to_pylist()], keys, strict=True)
    ]
    mask = chosen.mask({"subject": subjects, "key": pa.array(keys, pa.binary())})
    assert (mask.to_pylist() if mask is not None else [True] * len(rows)) == wanted

    texts = subject_texts(subjects).to_pylist()
    known = [each for each in keys if each is not None]
    least = {"subject": min(texts, key=str.encode)} | ({"key": min(known)} if known else {})
    most = {"subject": max(texts, key=str.encode)} | ({"key": max(known)} if known else {})
    match = chosen.judge(least, most, {"key": len(rows) - len(known)})
    if match is Match.NONE:
        assert not any(wanted)
    if match is Match.ALL:
        assert all(wanted)


def test_what_lies_elsewhere_is_passed_over():
    def judge(patterns, least, most, key=None, least_key=b"", most_key=b""):
        return RecordFilter(patterns, key).judge(
            {"subject": least, "key": least_key}, {"subject": most, "key": most_key}, {"key": 0}
        )

    assert judge(["orders.eu"], "orders.us", "orders.us") is Match.NONE
    assert judge(["orders.eu.>"], "orders.us.1", "orders.us.9") is Match.NONE
    assert judge(["orders.us.*"], "orders.us.1", "orders.us.9") is Match.SOME
    assert judge(["orders.*.1"], "orders.us.1", "orders.us.1") is Match.ALL
    assert judge(["*.us"], "orders.eu", "orders.us") is Match.SOME
    assert judge([], "a", "b", b"5", b"1", b"4") is Match.NONE
    assert judge([], "a", "b", b"5", b"1", b"9") is Match.SOME
    assert judge([], "a", "b", b"5", b"5", b"5") is Match.ALL
    assert RecordFilter(["a"], b"k").judge({}, {}, {}) is Match.SOME
