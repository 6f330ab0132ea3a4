"""Structs of Thrift's compact protocol that are copied but for some fields, as if they had been taken apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_bucket.objects.thrift import BINARY, I16, I32, I64, LIST, STRUCT, ThriftList, ThriftReader, encode_struct

NUMBERS = st.integers(-(2**62), 2**62)
FIELDS = st.integers(1, 40)


def lists(of):
    kinds = {I32: NUMBERS, BINARY: st.binary(max_size=200), STRUCT: of}
    return st.sampled_from(list(kinds)).flatmap(
        lambda kind: st.lists(kinds[kind], max_size=20).map(lambda values: (LIST, ThriftList(kind, values)))
    )


STRUCTS = st.recursive(
    st.just({}),
    lambda inner: st.dictionaries(
        FIELDS,
        st.tuples(st.sampled_from([I16, I32, I64]), NUMBERS)
        | st.tuples(st.just(BINARY), st.binary(max_size=200))
        | st.tuples(st.just(STRUCT), inner)
        | st.booleans().map(lambda value: (1 if value else 2, value))
        | lists(inner),
        max_size=8,
    ),
    max_leaves=12,
)


def changed(struct, changes):
    """The same by taking it apart."""
    found = {}
    for field, (kind, value) in struct.items():
        change = changes.get(field)
        if callable(change):
            if (number := change(value)) is not None:
                found[field] = (kind, number)
        elif change is None:
            found[field] = (kind, value)
        elif kind == STRUCT:
            found[field] = (kind, changed(value, change))
        else:
            found[field] = (kind, ThriftList(STRUCT, [changed(each, change) for each in value.values]))
    return found


def changes_of(struct, fields, depth=0):
    """Changes that fit: numbers grow by one or go, structs change inside."""
    changes = {}
    for field, (kind, value) in struct.items():
        if field not in fields:
            continue
        if kind in (I16, I32, I64):
            changes[field] = (lambda number: number + 1) if field % 2 else (lambda _: None)
        elif kind == STRUCT:
            changes[field] = changes_of(value, fields, depth + 1)
        elif kind == LIST and value.kind == STRUCT and value.values:
            common = changes_of(value.values[0], fields, depth + 1)
            changes[field] = {
                name: change
                for name, change in common.items()
                if callable(change)
                and all(name not in each or each[name][0] in (I16, I32, I64) for each in value.values)
            }
    return changes


@given(STRUCTS, st.sets(FIELDS), st.binary(max_size=5))
def test_a_struct_is_copied_with_its_changes(struct, fields, behind):
    changes = changes_of(struct, fields)
    body = encode_struct(struct)
    reader = ThriftReader(b"xy" + body + behind, 2)
    assert reader.copied(changes) == encode_struct(changed(struct, changes))
    assert reader.at == 2 + len(body)


@given(STRUCTS)
def test_a_struct_that_was_copied_is_written_as_it_stands(struct):
    body = encode_struct(struct)
    assert encode_struct({1: (STRUCT, body), 3: (LIST, ThriftList(STRUCT, [body, body]))}) == encode_struct(
        {1: (STRUCT, struct), 3: (LIST, ThriftList(STRUCT, [struct, struct]))}
    )


def test_a_field_that_is_no_number_is_refused():
    body = encode_struct({2: (BINARY, b"abc")})
    with pytest.raises(ValueError, match="a value of type 8 is no number"):
        ThriftReader(body).copied({2: lambda number: number})
    with pytest.raises(ValueError, match="are no structs"):
        ThriftReader(encode_struct({2: (LIST, ThriftList(I32, [1]))})).copied({2: {}})


def test_structs_that_lie_too_deep_are_refused():
    struct = {}
    for _ in range(40):
        struct = {1: (STRUCT, struct)}
    with pytest.raises(ValueError, match="more than 32 structs"):
        ThriftReader(encode_struct(struct)).copied({})


def test_a_copy_that_ends_too_early_is_refused():
    with pytest.raises(IndexError):
        ThriftReader(encode_struct({1: (I64, 5), 2: (BINARY, b"abc")})[:-2]).copied({})
