"""The map of keys: the newest offset of each, whatever their number and lengths, in the memory that it is given."""

import random
from hashlib import blake2b

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_log.compaction.offset_map import MEMORY_BYTES_MIN, KeyHasher, OffsetMap
from support.examples import examples

SEED = bytes(range(32))
LENGTHS = (0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 255, 256, 257, 1_000)


def array_of(keys):
    return pa.array(keys, pa.binary())


def expected_hash(hasher, key):
    """The hash, a key at a time, as the module describes it."""
    content = key if len(key) <= 256 else blake2b(key, digest_size=32, key=SEED).digest()
    words = [int.from_bytes(content[at : at + 4], "little") for at in range(0, len(content), 4)]
    lanes = []
    for first, *rest in hasher._coefficients.T.tolist():
        total = first + sum(map(int.__mul__, rest, [len(key), *words]))
        lanes.append(total % 2**64 >> 32)
    return (lanes[0] << 32 | lanes[1], lanes[2] << 32 | lanes[3])


@given(st.lists(st.sampled_from(LENGTHS).flatmap(lambda size: st.binary(min_size=size, max_size=size)), max_size=20))
@examples(60)
def test_a_column_is_hashed_as_its_keys_are_one_by_one(keys):
    hasher = KeyHasher(SEED)
    hashes = hasher.hash(array_of(keys))
    assert [tuple(map(int, row)) for row in hashes] == [expected_hash(hasher, key) for key in keys]


def test_a_slice_of_a_column():
    hasher = KeyHasher(SEED)
    keys = array_of([b"key %d" % number for number in range(50)])
    assert (hasher.hash(keys)[7:20] == hasher.hash(keys.slice(7, 13))).all()


def test_keys_that_differ_only_in_zeros_at_their_end_differ():
    hashes = KeyHasher(SEED).hash(array_of([b"a", b"a\0", b"a\0\0\0", b"a\0\0\0\0", b"", b"\0"]))
    assert len({tuple(row) for row in hashes.tolist()}) == 6


def test_another_seed_gives_other_hashes():
    keys = array_of([b"a", b"b"])
    assert (KeyHasher(SEED).hash(keys) != KeyHasher(b"x" * 16).hash(keys)).all()


@pytest.mark.parametrize("seed", range(3))
def test_the_newest_offset_of_every_key(seed):
    rng = random.Random(seed)
    hasher, newest, expected = KeyHasher(SEED), OffsetMap(10**7), {}
    offset = 0
    for _ in range(60):
        keys = [b"%d" % rng.randrange(9_000) for _ in range(rng.choice((1, 10, 2_000)))]
        offsets = np.arange(offset, offset + len(keys)) * 3
        expected.update(zip(keys, offsets.tolist(), strict=True))
        assert newest.put(hasher.hash(array_of(keys)), offsets) == len(keys)
        offset += len(keys)
    assert len(newest) == len(expected)
    found = newest.newest(hasher.hash(array_of(list(expected)))).tolist()
    assert found == list(expected.values())
    assert newest.newest(hasher.hash(array_of([b"none", b"of these"]))).tolist() == [-1, -1]
    assert newest.memory_bytes <= 105 * len(newest)


def test_the_same_hash_in_one_slot_many_times():
    """Hashes that all begin in one slot, the last of a table, and are put in together."""
    newest = OffsetMap(10**6)
    hashes = np.array([[1_023, number % 40] for number in range(400)], np.uint64)
    assert newest.put(hashes, np.arange(400)) == 400
    assert len(newest) == 40
    assert newest.newest(hashes[:40]).tolist() == list(range(360, 400))


@pytest.mark.parametrize("piece", [1, 7, 700, 5_000])
def test_a_full_map_says_how_much_it_took(piece):
    hasher, newest = KeyHasher(SEED), OffsetMap(MEMORY_BYTES_MIN)
    hashes = hasher.hash(array_of([b"%d" % number for number in range(5_000)]))
    taken = 0
    while taken < 5_000:
        some = newest.put(hashes[taken : taken + piece], np.arange(taken, min(taken + piece, 5_000)))
        taken += some
        if some < piece:
            break
    assert 600 < taken == len(newest) <= 716
    assert newest.memory_bytes == MEMORY_BYTES_MIN
    assert newest.newest(hashes[: taken + 10]).tolist() == [*range(taken), *[-1] * 10]
