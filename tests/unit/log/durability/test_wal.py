"""The write-ahead log: what a round wrote is in the segments after any crash, once, and nothing else is.

Damage is told from an unfinished write; files go when nothing needs them any more, and not before.
"""

import errno
import random
from contextlib import suppress

import pytest

from liftpy_log.durability.wal import WriteAheadLog, replay_wal
from liftpy_log.durability.wal_format import DATA, ROUND_HEAD_SIZE, RoundHead, encode_entry, encode_head
from liftpy_log.errors import LiftError, StorageFullError, WalCorruptError
from support.log_model import body_of
from support.log_node import WAL_DIRECTORY, StorageNode, partition_directory
from support.simdisk import ROOT, Order, SimDisk


def node_of(partitions=3, wal_bytes=10**6, **given):
    return StorageNode(SimDisk(), partitions, wal_bytes=wal_bytes, **given).start()


def round_of(node, batches=2, size=40):
    """Append to every log, and write all of it ahead."""
    for _ in range(batches):
        for number in node.partitions:
            node.append(number, size=size)
    results = node.round()
    assert [error for _, _, error in results] == [None] * len(results)


def empty_segments(disk):
    """What a power loss may do to segments that were not synced."""
    for path in disk.files(".log"):
        disk.overwrite(path, b"")


def expected_logs(node, batches=None):
    """Content of every segment, with the first `batches` batches of each log."""
    return {
        log.active.path: b"".join(batch.data for batch in model.batches[:batches])
        for log, model in zip(node.logs, node.models, strict=True)
    }


def wal_paths(disk):
    return list(disk.files(".wal"))


def replay(disk):
    return replay_wal(disk, WAL_DIRECTORY, ROOT)


def error_of_replay(disk):
    try:
        replay(disk)
    except WalCorruptError as error:
        return str(error)
    return None


def positions(content, *magics):
    """Where something begins that bears one of these magic numbers."""
    return [at for at in range(len(content)) if content[at : at + 4] in magics]


ROUND, ENTRY = b"LWAL", b"LAWE"


def test_a_round_is_one_write_and_one_sync_beside_the_head():
    node = node_of(50)
    round_of(node)
    node.disk.counts.clear()
    for number in node.partitions:
        node.append(number)
    node.disk.counts.clear()
    node.round()
    assert node.disk.counts == {"write": 1, "sync": 1}


@pytest.mark.parametrize("rounds", [1, 3])
def test_replay_restores_every_byte(rounds):
    node = node_of()
    for _ in range(rounds):
        round_of(node)
    expected = node.disk.files(".log")
    assert expected == expected_logs(node)
    empty_segments(node.disk)
    assert replay(node.disk) == sum(map(len, expected.values()))
    assert node.disk.files() == expected, "and the log is gone"


@pytest.mark.parametrize("seed", range(30))
def test_replay_mends_holes_and_lost_ends(seed):
    node, rng = node_of(), random.Random(seed)
    for _ in range(4):
        round_of(node, rng.randint(1, 3), rng.randint(0, 700))
    expected = node.disk.files(".log")
    for path, content in expected.items():
        torn = bytearray(content)
        for _ in range(rng.randint(0, 3)):
            sector = rng.randrange(len(torn) // 512 + 1)
            torn[sector * 512 : (sector + 1) * 512] = bytes(len(torn[sector * 512 : (sector + 1) * 512]))
        node.disk.overwrite(path, torn[: rng.choice((len(torn), rng.randrange(len(torn))))])
    replay(node.disk)
    assert node.disk.files() == expected


def test_replay_of_what_is_in_its_place_restores_nothing():
    node = node_of()
    round_of(node)
    expected = node.disk.files(".log")
    node.disk.counts.clear()
    assert replay(node.disk) == 0
    assert node.disk.files() == expected
    assert node.disk.counts["sync"] == len(node.partitions), "the kernel may have it, and the disk not"
    assert replay(node.disk) == 0


@pytest.mark.parametrize("order", Order)
def test_what_a_failed_sync_left_in_the_kernel_alone_is_written_again(order):
    node = node_of(1)
    round_of(node)
    path, expected = node.logs[0].active.path, node.disk.files(".log")
    node.disk.fail("sync", code=errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        node.disk.open(path).sync()
    killed = node.disk.kill()
    assert replay(killed) == 0
    for seed in range(20):
        assert killed.crash(random.Random(seed), order).files(".log") == expected


def test_no_room_for_what_must_be_restored_is_named_and_changes_nothing_about_it():
    node = node_of(2)
    round_of(node)
    expected = node.disk.files(".log")
    empty_segments(node.disk)
    node.disk.capacity = sum(map(len, node.disk.files().values())) + 100
    with pytest.raises(StorageFullError, match="make room and start again"):
        replay(node.disk)
    node.disk.heal()
    replay(node.disk)
    assert node.disk.files() == expected


def test_replay_of_nothing():
    disk = SimDisk()
    assert replay(disk) == 0
    assert disk.files() == {}


def test_replay_applied_twice_is_harmless():
    node = node_of()
    round_of(node)
    kept = node.disk.files(".wal")
    round_of(node)
    expected = node.disk.files(".log")
    replay(node.disk)
    for path, content in kept.items():
        node.disk.overwrite(path, content)
    assert replay(node.disk) == 0
    assert node.disk.files() == expected


@pytest.mark.parametrize("order", Order)
def test_power_lost_during_replay_changes_nothing_about_it(order):
    node, wal = node_of(4, wal_bytes=2_000), {}
    for _ in range(3):
        round_of(node)
        wal |= node.disk.files(".wal")
    expected = node.disk.files(".log")
    assert len(wal) == 3
    empty_segments(node.disk)
    for path, content in wal.items():
        node.disk.overwrite(path, content)
    crashed = []
    for seed in range(10):
        disk = node.disk.kill()
        disk.before = lambda _, disk=disk, seed=seed: crashed.append(disk.crash(random.Random(seed), order))
        replay(disk)
        crashed.append(disk.crash(random.Random(seed), order))
    assert len(crashed) > 100
    for disk in crashed:
        replay(disk)
        assert disk.files() == expected


def test_a_void_cancels_what_came_before_it_in_its_directory():
    node = node_of(12)
    round_of(node)
    node.wal.void(partition_directory(1))
    expected = {
        path: b"" if path.parent == partition_directory(1) else content
        for path, content in node.disk.files(".log").items()
    }
    empty_segments(node.disk)
    replay(node.disk)
    assert node.disk.files() == expected, "and not those of partitions 10 and 11"


def test_a_void_is_durable_when_it_returns_and_leaves_what_comes_after_it():
    node = node_of(2)
    round_of(node)
    node.disk.counts.clear()
    node.wal.void(partition_directory(0))
    assert node.disk.counts["sync"] == 1
    (length,) = {len(batch.data) for batch in node.models[0].batches}
    for number in node.partitions:
        node.append(number)
    node.round()
    whole = node.disk.files(".log")
    empty_segments(node.disk)
    replay(node.disk)
    first, second = (log.active.path for log in node.logs)
    assert node.disk.content(second) == whole[second]
    assert node.disk.content(first) == bytes(2 * length) + whole[first][2 * length :]


def test_segments_that_were_deleted_are_passed_over():
    node = node_of(3)
    round_of(node)
    expected = node.disk.files(".log")
    gone = node.logs[1].active.path
    empty_segments(node.disk)
    node.disk.delete(gone)
    replay(node.disk)
    assert node.disk.files() == {path: content for path, content in expected.items() if path != gone}


def test_a_stream_that_was_deleted_is_passed_over():
    node = node_of(1)
    round_of(node)
    disk = SimDisk()
    for path, content in node.disk.files(".wal").items():
        disk.overwrite(path, content)
    assert replay(disk) == 0
    assert disk.files() == {}


# Unfinished writes and damage.


def test_every_cut_of_the_last_round_leaves_the_rounds_before_it():
    node = node_of(3)
    round_of(node, 1)
    (path,) = wal_paths(node.disk)
    first = len(node.disk.content(path))
    round_of(node, 1)
    content = node.disk.content(path)
    for cut in range(first, len(content)):
        disk = node.disk.kill()
        empty_segments(disk)
        disk.overwrite(path, content[:cut])
        replay(disk)
        for log_path, durable in expected_logs(node, 1).items():
            assert disk.content(log_path).startswith(durable)


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("rounds_before", [0, 2])
@pytest.mark.parametrize("size", [10, 700])
def test_a_round_torn_by_a_power_loss_is_no_damage(order, rounds_before, size):
    """Its sectors reach the disk in any order: the end of it may be there without its beginning, or the file's head."""
    node = node_of(5)
    for _ in range(rounds_before):
        round_of(node, 1, size)
    for number in node.partitions:
        node.append(number, size=size)
    crashed = []
    node.disk.before = lambda operation: (
        operation.kind == "sync" and crashed.extend(node.disk.crash(random.Random(seed), order) for seed in range(60))
    )
    node.round()
    assert len(crashed) == 60
    durable = expected_logs(node, rounds_before)
    for seed, disk in enumerate(crashed):
        replay(disk)
        for path, content in durable.items():
            assert disk.content(path).startswith(content), f"seed {seed}"


@pytest.mark.parametrize("order", Order)
def test_a_file_that_was_just_begun_when_the_power_went_is_no_damage(order):
    node = node_of(2)
    for number in node.partitions:
        node.append(number)
    crashed = []
    node.disk.before = lambda _: crashed.extend(node.disk.crash(random.Random(seed), order) for seed in range(20))
    node.round()
    for disk in crashed:
        replay(disk)
        assert wal_paths(disk) == []


@pytest.mark.parametrize("content", [b"", b"L", bytes(5), bytes(16), bytes(5_000)])
def test_a_head_that_was_never_written_is_no_damage(content):
    disk = SimDisk()
    disk.overwrite(WAL_DIRECTORY / f"{1:020d}.wal", content)
    assert replay(disk) == 0


def test_a_flipped_bit_before_the_last_round_is_an_error_and_changes_nothing():
    node = node_of(2)
    for _ in range(3):
        round_of(node, 1)
    (path,) = wal_paths(node.disk)
    content, rng = node.disk.content(path), random.Random(3)
    starts, last = positions(content, ROUND, ENTRY), positions(content, ROUND)[-1]
    assert len(starts) == 9
    expected, harmless = expected_logs(node), 0
    for at in range(last):
        disk = node.disk.kill()
        empty_segments(disk)
        turned = bytearray(content)
        turned[at] ^= 1 << rng.randrange(8)
        disk.overwrite(path, turned)
        before = disk.files()
        error = error_of_replay(disk)
        if error is None:  # padding
            assert disk.files() == expected
            harmless += 1
        else:
            position = max(start for start in starts if start <= at)
            assert f"{path} is damaged at byte {position}, " in error or 4 <= at < 8, "the version stands there"
            assert disk.files() == before
    assert harmless < 8 * len(starts)


def test_every_flipped_bit_in_the_head_of_a_round_before_the_last_is_an_error_and_changes_nothing():
    node = node_of(2)
    for _ in range(3):
        round_of(node, 1)
    (path,) = wal_paths(node.disk)
    content = node.disk.content(path)
    for start in positions(content, ROUND)[:-1]:
        for bit in range(8 * ROUND_HEAD_SIZE):
            turned = bytearray(content)
            turned[start + bit // 8] ^= 1 << bit % 8
            node.disk.overwrite(path, turned)
            before = node.disk.files()
            with pytest.raises(WalCorruptError, match=f"{path} "):
                replay(node.disk)
            assert node.disk.files() == before


def test_what_is_not_well_in_the_last_round_is_an_unfinished_write():
    """Nothing on the disk shows that its sync returned, so it may be torn in any way."""
    node = node_of(2)
    for _ in range(3):
        round_of(node, 1)
    (path,) = wal_paths(node.disk)
    content, durable = node.disk.content(path), expected_logs(node, 2)
    for at in range(positions(content, ROUND)[-1], len(content), 7):
        disk = node.disk.kill()
        empty_segments(disk)
        disk.overwrite(path, content[:at] + bytes((content[at] ^ 4,)) + content[at + 1 :])
        replay(disk)
        for log_path, data in durable.items():
            assert disk.content(log_path).startswith(data)


def test_a_file_of_another_version_is_an_error_and_changes_nothing():
    node = node_of(2)
    round_of(node)
    (path,) = wal_paths(node.disk)
    content = node.disk.content(path)
    for version in (1, 3):
        node.disk.overwrite(path, content[:4] + version.to_bytes(4, "little") + content[8:])
        before = node.disk.files()
        with pytest.raises(WalCorruptError, match=f"{path} is no write-ahead log of this version"):
            replay(node.disk)
        assert node.disk.files() == before


def test_a_damaged_end_of_a_file_that_has_a_successor_is_an_error_and_changes_nothing():
    """Only what was being written when the node died is unfinished; a file with a successor was durable."""
    node, wal = node_of(2, wal_bytes=1_500), {}
    for _ in range(3):
        round_of(node)
        wal |= node.disk.files(".wal")
    for path, data in wal.items():
        node.disk.overwrite(path, data)
    first, second, _ = wal_paths(node.disk)
    assert positions(node.disk.content(second), ENTRY)
    content = node.disk.content(first)
    for damaged in (content[:-1], content[:-1] + b"!", content[: positions(content, ENTRY)[-1]], content[:16], b""):
        node.disk.overwrite(first, damaged)
        before = node.disk.files()
        with pytest.raises(WalCorruptError):
            replay(node.disk)
        assert node.disk.files() == before


@pytest.mark.parametrize("name", ["notes.wal", f"{1:020d}.wal.bak"])
def test_files_that_are_none_of_ours_are_no_reason_to_crash(name):
    node = node_of(2)
    round_of(node)
    node.disk.overwrite(WAL_DIRECTORY / name, b"not ours")
    with suppress(LiftError):
        replay(node.disk)
    assert node.disk.content(WAL_DIRECTORY / name) == b"not ours"


def test_a_torn_entry_whose_records_hold_an_entry_is_no_damage():
    """A publisher who stores such bytes must not keep the node from starting after a crash."""
    node = node_of(1)
    round_of(node)
    entry = b"".join(encode_entry(DATA, "streams/orders.5f/0/00000000000000000000.log", 0, [b"evil"]))
    inner = encode_head(RoundHead(1, 0, len(entry), 0, 0)) + entry
    for value in (inner, bytes(5) + inner + bytes(50)):
        log = node.logs[0]
        log.append(body_of([value, bytes(300)]), leader_epoch=0, timestamp=node.now)
    before, kept = node.disk.files(".log"), len(expected_logs(node)[node.logs[0].active.path])
    node.round()
    (path,) = wal_paths(node.disk)
    content = node.disk.content(path)
    for cut in (1, 8, 250):
        disk = node.disk.kill()
        disk.overwrite(path, content[:-cut])
        empty_segments(disk)
        replay(disk)
        (restored,) = disk.files(".log").values()
        assert restored == next(iter(before.values()))[:kept]


@pytest.mark.parametrize("seed", range(60))
def test_random_damage_is_never_more_than_an_error(seed):
    rng = random.Random(seed)
    node = node_of(3, wal_bytes=rng.choice((1_500, 10**6)))
    for _ in range(4):
        round_of(node, rng.randint(1, 2))
    whole = node.disk.files(".log")
    path = rng.choice(wal_paths(node.disk))
    content = bytearray(node.disk.content(path))
    for _ in range(rng.randint(1, 4)):
        content[rng.randrange(len(content))] = rng.randrange(256)
    node.disk.overwrite(path, content[: rng.choice((len(content), rng.randrange(len(content))))])
    with suppress(WalCorruptError):
        replay(node.disk)
    assert node.disk.files(".log") == whole, "what was whole stays whole"


# Files that come and go.


def test_files_are_numbered_on_from_those_that_are_there():
    disk = SimDisk()
    disk.overwrite(WAL_DIRECTORY / f"{7:020d}.wal", b"")
    wal = WriteAheadLog(disk, WAL_DIRECTORY, ROOT)
    wal.void(partition_directory(0))
    assert [path.name for path in wal_paths(disk)] == [f"{7:020d}.wal", f"{8:020d}.wal"]


@pytest.mark.parametrize("order", Order)
def test_the_name_of_a_file_is_durable_when_the_round_is(order):
    node = node_of(2)
    round_of(node)
    expected = expected_logs(node)
    for seed in range(40):
        disk = node.disk.crash(random.Random(seed), order)
        replay(disk)
        for path, content in expected.items():
            assert disk.content(path) == content, f"seed {seed}"


def test_a_full_file_is_followed_by_another():
    node = node_of(1, wal_bytes=2_000)
    for _ in range(10):
        round_of(node, 1)
    names = [path.name for path in wal_paths(node.disk)]
    assert names
    assert f"{1:020d}.wal" not in names
    assert all(len(content) <= 2_000 + 600 for content in node.disk.files(".wal").values())


@pytest.mark.parametrize("partitions", [1, 2, 7])
@pytest.mark.parametrize("wal_bytes", [100, 1_500, 6_000])
def test_a_file_goes_only_when_every_segment_it_speaks_of_was_synced(partitions, wal_bytes):
    node = node_of(partitions, wal_bytes)
    held, synced_at, written_at, operations = {}, {}, {}, []
    rng = random.Random(wal_bytes + partitions)

    def watch(operation):
        operations.append(operation)
        now = len(operations)
        if operation.kind == "sync" and operation.path.suffix == ".log":
            synced_at[operation.path] = now
        elif operation.kind == "sync" and operation.path.suffix == ".wal":
            for path in dirty:
                held.setdefault(operation.path, set()).add(path)
                written_at[operation.path, path] = now
        elif operation.kind == "remove" and operation.path.suffix == ".wal":
            for path in held[operation.path]:
                assert synced_at.get(path, 0) > written_at[operation.path, path], (operation.path.name, str(path))

    node.disk.before = watch
    for _ in range(60):
        numbers = rng.sample(list(node.partitions), rng.randint(1, partitions))
        for number in numbers:
            node.append(number, size=rng.randint(0, 200))
        dirty = [node.logs[number].active.path for number in numbers]
        node.round(numbers)
    assert sum(operation.kind == "remove" for operation in operations) > 0


@pytest.mark.parametrize("seed", range(25))
def test_after_failed_writes_nothing_that_was_reported_is_lost(seed):
    rng = random.Random(seed)
    node = node_of(4, rng.choice((100, 1_500, 5_000)))
    for _ in range(40):
        if rng.random() < 0.15:
            kind = rng.choice(("write", "sync", "create", "sync_directory"))
            node.disk.fail(kind, code=errno.EIO, where=lambda path: "wal" in path.as_posix(), skip=rng.randint(0, 1))
        numbers = rng.sample(list(node.partitions), rng.randint(1, 3))
        for number in numbers:
            node.append(number, size=rng.randint(0, 200))
        node.round(numbers)
        if rng.random() < 0.3:
            node.crash(seed, Order.IN_ORDER).check_after_crash()


@pytest.mark.parametrize("kind", ["create", "write", "sync_directory", "sync"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("skip", [0, 1])
def test_a_file_that_was_given_up_is_in_nobodys_way(kind, code, skip):
    node = node_of(2)
    if skip:
        round_of(node)
    is_wal = lambda path: path.suffix == ".wal" or path == WAL_DIRECTORY
    node.disk.fail(kind, code=code, where=is_wal, skip=skip if kind in {"write", "sync"} else 0)
    for _ in range(3):
        round_of(node)
    node.disk.heal()
    round_of(node)
    for seed in range(20):
        node.crash(seed, Order.IN_ORDER).check_after_crash()
    node.found_on(node.disk.kill()).check_after_crash()


def test_a_file_that_could_not_be_begun_is_closed():
    node = node_of(1)
    node.disk.fail("write", "sync_directory", code=errno.ENOSPC, times=2, where=lambda path: "wal" in path.as_posix())
    for _ in range(3):
        node.append(0)
        node.round()
    assert len([file for file in node.disk.open_files if file.path.suffix == ".wal"]) == 1


@pytest.mark.parametrize("partitions", [3, 60])
@pytest.mark.parametrize("rounds_per_file", [1, 4, 30])
def test_the_files_before_the_present_one_are_gone_before_it_is_full(partitions, rounds_per_file):
    """Otherwise they would pile up under a steady load."""
    entry = 500 * partitions
    node = node_of(partitions, wal_bytes=entry * rounds_per_file, open_files=512)
    for _ in range(4 * rounds_per_file + 4):
        round_of(node, 1)
        assert len(wal_paths(node.disk)) <= 2


def test_segments_are_synced_a_few_at_a_time():
    node = node_of(200, wal_bytes=200 * 500 * 20, open_files=512)
    costs = []
    for _ in range(60):
        for number in node.partitions:
            node.append(number)
        node.disk.counts.clear()
        node.round()
        costs.append(node.disk.counts["sync"])
    assert max(costs) <= 200 // 4, "far fewer than there are dirty partitions"


def test_close_removes_the_files_or_leaves_them():
    node = node_of(2, wal_bytes=1_000)
    for _ in range(3):
        round_of(node)
    before = wal_paths(node.disk)
    node.wal.close(remove=False)
    assert wal_paths(node.disk) == before
    node.wal.close(remove=True)
    assert wal_paths(node.disk) == []
    node.files.close()
    assert node.disk.open_files == set()
