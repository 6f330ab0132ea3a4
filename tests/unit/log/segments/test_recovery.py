"""Recovery of the newest segment: a torn tail is cut off, and nothing that ever was well is.

Every test of damage compares the whole file before and after: an error changes nothing.
"""

import random

import pytest

from liftpy_envelope.batch import HEADER_SIZE, MAGIC
from liftpy_log.errors import SegmentCorruptError
from liftpy_log.partition_log import LogConfig
from liftpy_log.segments import segment as segment_module
from support.log_batches import as_newer_version
from support.log_model import SUBJECT, T0, OpenLog, body_of, encode_batch, numbered_body
from support.simdisk import Order, SimDisk

TORN = pytest.mark.parametrize("indexed", [True, False])


def written(shapes=((1, 40), (3, 10), (1, 0), (2, 100))):
    """A log of batches of (records, value size), each durable before the next was written."""
    log = OpenLog(SimDisk())
    for number, (records, size) in enumerate(shapes):
        log.append(records, size, now=T0 + number)
        log.commit()
    return log


def keep_index(log, indexed):
    if indexed:
        log.log.active.flush_index()


def positions(log):
    found, position = [], 0
    for batch in log.model.batches:
        found.append(position)
        position += len(batch.data)
    return found


def damage(log, content):
    log.disk.overwrite(log.path, content)
    log.content = content


def check_refused(log, position, **given):
    with pytest.raises(SegmentCorruptError, match=f"{log.path} is damaged at byte {position}: ") as caught:
        log.reopen(**given)
    assert (caught.value.path, caught.value.position) == (log.path, position)
    assert log.disk.content(log.path) == log.content


def check_cut(log, batches_left, **given):
    log.model.truncate(log.model.batches[batches_left - 1].next_offset if batches_left else 0)
    log.reopen(**given)
    log.check()
    assert log.disk.content(log.path) == b"".join(batch.data for batch in log.model.batches)
    log.append()
    log.check()


@TORN
def test_a_batch_of_which_the_end_is_missing_is_cut_off(monkeypatch, indexed):
    monkeypatch.setattr(segment_module, "INDEX_INTERVAL_BYTES", 1)
    whole = written().disk.content(written().path)
    last = len(written().model.batches[-1].data)
    for missing in range(1, last + 1):
        log = written()
        keep_index(log, indexed)
        damage(log, whole[:-missing])
        check_cut(log, 3)


def garbage_of(rng):
    some = numbered_body(99, size=300)
    batch = encode_batch(some, 7, T0)
    return (
        *(b"\0", bytes(5_000), b"\xff" * 87, rng.randbytes(1), rng.randbytes(HEADER_SIZE), rng.randbytes(3_000)),
        *(MAGIC.to_bytes(4, "little") * 100, batch[:HEADER_SIZE], batch[:-1], bytes(100) + batch[1:]),
    )


def test_a_torn_tail_is_told_before_it_is_cut_off():
    log = written()
    content = log.disk.content(log.path)[:-5]
    damage(log, content)
    told = []
    log.reopen(on_torn=lambda tail: told.append((tail, log.disk.content(log.path))))
    start, offset = positions(log)[-1], log.model.batches[-1].base_offset
    assert told == [((log.path, start, len(content) - start, offset), content)]
    assert log.log.torn_tail == told[0][0]
    assert log.disk.content(log.path) == content[:start]
    log.reopen(on_torn=told.append)
    assert (len(told), log.log.torn_tail) == (1, None)


def test_a_torn_tail_is_not_cut_off_when_that_can_not_be_told():
    def no_room(_tail):
        raise OSError(28, "No space left on device")

    log = written()
    content = log.disk.content(log.path)[:-5]
    damage(log, content)
    with pytest.raises(OSError, match="No space left"):
        log.reopen(on_torn=no_room)
    assert log.disk.content(log.path) == content


@TORN
@pytest.mark.parametrize("kind", range(10))
def test_garbage_at_the_end_is_cut_off(indexed, kind):
    log = written()
    keep_index(log, indexed)
    garbage = garbage_of(random.Random(kind))[kind]
    damage(log, log.disk.content(log.path) + garbage)
    check_cut(log, 4, durable_end=log.model.end)


@TORN
def test_a_flipped_bit_in_any_batch_but_the_last_is_an_error_and_changes_nothing(indexed):
    log = written()
    keep_index(log, indexed)
    content, rng, starts = log.disk.content(log.path), random.Random(5), positions(log)
    for at in range(starts[-1]):
        turned = bytearray(content)
        turned[at] ^= 1 << rng.randrange(8)
        damage(log, bytes(turned))
        check_refused(log, max(start for start in starts if start <= at))


@TORN
def test_a_flipped_bit_in_the_last_batch_is_an_error_when_it_was_durable_and_else_a_torn_tail(indexed):
    log = written()
    keep_index(log, indexed)
    content, rng, starts = log.disk.content(log.path), random.Random(6), positions(log)
    end, before = log.model.end, log.model.batches[-1].base_offset
    for at in range(starts[-1], len(content)):
        turned = bytearray(content)
        bit = rng.randrange(8)
        turned[at] ^= 1 << bit
        damage(log, bytes(turned))
        check_refused(log, starts[-1], durable_end=end)
        check_refused(log, starts[-1], durable_end=before + 1)
        log.reopen(durable_end=before)
        assert log.log.log_end == before
        assert log.disk.content(log.path) == content[: starts[-1]]


def lose_sector(log, sector):
    """Let a sector be as it was before it was written; the number of the batch that misses it first."""
    content, starts = bytearray(log.disk.content(log.path)), positions(log)
    first = max(number for number, start in enumerate(starts) if start <= sector * 512)
    lost_from = sector * 512
    content[lost_from : lost_from + 512] = bytes(512)
    damage(log, bytes(content))
    return first


@pytest.mark.parametrize("seed", range(10))
def test_a_lost_sector_of_what_was_durable_is_an_error_and_changes_nothing(seed):
    log, rng = written([(1, 700)] * 8), random.Random(seed)
    starts = positions(log)
    first = lose_sector(log, rng.randrange(starts[-1] // 512))
    check_refused(log, starts[first], durable_end=log.model.batches[first].next_offset)


@pytest.mark.parametrize("sector", range(1, 10))
def test_a_lost_sector_of_what_need_not_have_been_durable_is_a_torn_tail(sector):
    """The power went: of writes that were not synced, later ones may have come to the disk without earlier ones."""
    log = written([(1, 700)] * 8)
    first = lose_sector(log, sector)
    check_cut(log, first, durable_end=log.model.batches[first].base_offset)


def test_a_lost_sector_that_was_followed_by_records_for_minutes_was_durable():
    log = OpenLog(SimDisk())
    for number in range(8):
        log.append(size=700, now=T0 + number * 30 * 10**9)
    starts = positions(log)
    for sector in (1, 4):
        whole = log.disk.content(log.path)
        first = lose_sector(log, sector)
        check_refused(log, starts[first])
        log.disk.overwrite(log.path, whole)


def test_a_value_of_zeros_is_no_lost_sector():
    log = written([(1, 40)] * 3)
    for value in (bytes(300), b"1"):
        body = body_of([value])
        log.log.append(body, leader_epoch=0, timestamp=T0 + 9)
        log.model.append(body, T0 + 9)
    content, starts = bytearray(log.disk.content(log.path)), positions(log)
    content[starts[3] + 80] ^= 1
    damage(log, bytes(content))
    check_refused(log, starts[3])


@TORN
@pytest.mark.parametrize("place", [0, 1, 3])
def test_a_batch_of_a_newer_version_is_never_cut_off(indexed, place):
    log = written()
    keep_index(log, indexed)
    batches = [batch.data for batch in log.model.batches]
    batches[place] = as_newer_version(batches[place])
    damage(log, b"".join(batches))
    check_refused(log, positions(log)[place])
    damage(log, b"".join(batches) + b"garbage after it")
    check_refused(log, positions(log)[place])


def test_a_damaged_batch_before_one_of_a_newer_version_is_never_cut_off():
    log = written()
    batches = [batch.data for batch in log.model.batches]
    damage(log, b"".join(batches[:2]) + b"damaged!" + as_newer_version(batches[3]))
    check_refused(log, positions(log)[2])


@pytest.mark.parametrize("kept", [[0, 2, 3], [0, 1, 1], [1, 2, 3], [0, 2, 1, 3]])
def test_batches_out_of_order_are_an_error(kept):
    log = written()
    batches = log.model.batches
    damage(log, b"".join(batches[place].data for place in kept))
    expected = next(number for number, place in enumerate(kept) if number != place)
    check_refused(log, sum(len(batches[place].data) for place in kept[:expected]))


def test_a_log_that_ends_before_what_was_durable_is_an_error():
    log = written()
    end = log.model.end
    damage(log, log.disk.content(log.path)[: positions(log)[3]])
    check_refused(log, positions(log)[3], durable_end=end)
    damage(log, b"")
    check_refused(log, 0, durable_end=1)


@pytest.mark.parametrize("index", ["", "lost", "damaged", "of another segment", "of more than there is"])
@pytest.mark.parametrize("verify_bytes", [0, 1, 700, 10**9])
def test_whatever_the_index_says_the_same_is_recovered(monkeypatch, index, verify_bytes):
    monkeypatch.setattr(segment_module, "INDEX_INTERVAL_BYTES", 500)
    shapes = [(1 + number % 3, 30 * number) for number in range(20)]
    log = written(shapes)
    log.log.active.flush_index()
    content = log.disk.content(log.path)
    files = [log.path.with_suffix(suffix) for suffix in (".index", ".timeindex")]
    if index == "lost":
        log.disk.delete(files[0])
    elif index == "damaged":
        log.disk.overwrite(files[1], log.disk.content(files[1])[:-1])
    elif index == "of another segment":
        other = OpenLog(SimDisk(), log_start=5).fill(20, size=33)
        other.log.active.flush_index()
        for path, (_, data) in zip(files, sorted(other.disk.files("index").items()), strict=True):
            log.disk.overwrite(path, data)
    elif index == "of more than there is":
        content = content[: positions(log)[12] + 5]
        log.model.truncate(log.model.batches[11].next_offset)
    damage(log, content)
    log.reopen(verify_bytes=verify_bytes)
    log.check()
    for batch in log.model.batches:
        assert log.log.offset_at_time(batch.timestamp) == batch.base_offset
        assert log.log.read(batch.base_offset, log.log.log_end, 1)[0].next_offset == batch.next_offset
    log.fill(5)
    log.check()


def test_an_index_from_before_a_power_loss_misleads_nobody(monkeypatch):
    """Batches of one size: the index of the ones that were lost fits the ones that took their place, but for times."""
    monkeypatch.setattr(segment_module, "INDEX_INTERVAL_BYTES", 1)
    log = OpenLog(SimDisk()).fill(8, now=T0)
    log.log.active.flush_index()
    log.disk.overwrite(log.path, b"")  # the power went; of these files the indexes happened to be on disk
    log.model.truncate(0)
    log.reopen()
    log.fill(8, now=T0 + 100)
    log.disk = log.disk.kill()
    log.reopen(verify_bytes=0)
    log.check()
    assert log.log.offset_at_time(T0 + 50) == 0


@pytest.mark.parametrize("cut", [1, 8, 100, 400])
def test_a_torn_batch_whose_value_holds_a_batch_is_cut_off(cut):
    """Whoever stores our batches as values must not find a partition offline after a crash."""
    log = written()
    inner = encode_batch(numbered_body(5), log.model.end + 1, T0)
    outer = encode_batch(body_of([inner, bytes(500)]), log.model.end, T0)
    damage(log, log.disk.content(log.path) + outer[:-cut])
    check_cut(log, 4)


def test_a_value_that_holds_a_batch_is_a_value():
    log = written()
    inner = encode_batch(numbered_body(5), log.model.end, T0)
    body = body_of([inner, SUBJECT])
    log.log.append(body, leader_epoch=0, timestamp=T0)
    log.model.append(body, T0)
    log.reopen()
    log.check()


@pytest.mark.parametrize("order", Order)
def test_power_lost_during_recovery_changes_nothing_about_it(order):
    log = written()
    damage(log, log.disk.content(log.path) + b"a torn tail")
    end, crashed = log.model.end, []
    for seed in range(30):
        disk = log.disk.kill()
        disk.before = lambda _, disk=disk, seed=seed: crashed.append(disk.crash(random.Random(seed), order))
        again = OpenLog.__new__(OpenLog)
        again.disk, again.config = disk, LogConfig()
        again.reopen()
    assert len(crashed) >= 60
    for disk in crashed:
        log.disk = disk
        log.reopen(durable_end=end)
        log.check()


@pytest.mark.parametrize("order", Order)
def test_what_was_recovered_is_durable(order):
    """A killed process had written records that no round had made durable; they are shown from now on."""
    log = OpenLog(SimDisk()).fill(5)
    log.disk = killed = log.disk.kill()
    log.reopen()
    assert log.log.synced_end == log.model.end
    for seed in range(40):
        log.disk = killed.crash(random.Random(seed), order)
        log.reopen(durable_end=log.model.end)
        log.check()
