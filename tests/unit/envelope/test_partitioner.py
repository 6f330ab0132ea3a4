"""Proves that the partition of a key is the persisted function: CRC-32C, modulo the number of partitions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_envelope.partitioner import partition_of
from support.examples import examples


def crc32c(data):
    """Bit by bit, from the polynomial."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@pytest.mark.parametrize(
    ("key", "checksum"), [(b"", 0), (b"123456789", 0xE3069283), (bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43)]
)
def test_published_checksums(key, checksum):
    assert checksum == crc32c(key)
    assert [checksum % count for count in (1, 2, 3, 1_024)] == [partition_of(key, count) for count in (1, 2, 3, 1_024)]


@examples(200)
@given(st.binary(max_size=60), st.integers(1, 1_024))
def test_partition_is_the_checksum_modulo_the_count(key, count):
    assert crc32c(key) % count == partition_of(key, count)


def test_keys_spread_over_all_partitions():
    counts = [0] * 8
    for number in range(8_000):
        counts[partition_of(b"key-%d" % number, 8)] += 1
    assert min(counts) > 800
    assert max(counts) < 1_200
