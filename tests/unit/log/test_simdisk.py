"""The simulated disk keeps its promises: it is a real disk while all goes well, and as bad as its docstring else."""

import errno
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_log.storage.disk import OsDisk
from support.examples import examples
from support.simdisk import ROOT, Operation, Order, SimDisk

PATH = ROOT / "file"


def synced(content, path=PATH):
    disk = SimDisk()
    file = disk.open(path, create=True)
    file.write(0, [content])
    file.sync()
    disk.sync_directory(path.parent)
    return disk, file


def outcomes(disk, order, path=PATH, count=400):
    crashed = [disk.crash(random.Random(seed), order) for seed in range(count)]
    return {one.content(path) if one.exists(path) else None for one in crashed}


@pytest.mark.parametrize("order", Order)
def test_what_was_synced_survives(order):
    disk, _ = synced(b"kept")
    assert outcomes(disk, order) == {b"kept"}


@pytest.mark.parametrize("order", Order)
def test_what_was_not_synced_may_go_may_stay_and_may_be_torn(order):
    disk, file = synced(b"a" * 512)
    file.write(512, [b"b" * 512, b"c" * 512])
    found = outcomes(disk, order)
    assert b"a" * 512 in found, "all of it gone"
    assert b"a" * 512 + b"b" * 512 + b"c" * 512 in found, "all of it there"
    assert b"a" * 512 + b"b" * 512 in found, "the end gone"
    assert b"a" * 512 + bytes(512) + b"c" * 512 in found, "a hole"
    assert all(content.startswith(b"a" * 512) for content in found)


def test_a_sector_is_written_as_a_whole():
    disk, file = synced(b"")
    for number in range(4):
        file.write(number * 100, [bytes((65 + number,)) * 100])
    whole = b"".join(bytes((65 + number,)) * 100 for number in range(4))
    for content in outcomes(disk, Order.UNORDERED):
        assert whole.startswith(content.rstrip(b"\0"))


@pytest.mark.parametrize("order", [Order.IN_ORDER, Order.NAMES_UNORDERED])
def test_writes_in_order_leave_no_later_write_without_the_earlier_ones(order):
    disk, file = synced(b"")
    for number in range(3):
        file.write(number * 512, [bytes((65 + number,)) * 512])
    found = {content.rstrip(b"\0") for content in outcomes(disk, order)}
    assert found == {
        b"A" * 512 * (count > 0) + b"B" * 512 * (count > 1) + b"C" * 512 * (count > 2) for count in range(4)
    }


def test_writes_without_order_leave_a_later_write_without_an_earlier_one():
    disk, file = synced(b"")
    file.write(0, [b"A" * 512])
    file.write(512, [b"B" * 512])
    assert bytes(512) + b"B" * 512 in outcomes(disk, Order.UNORDERED)


@pytest.mark.parametrize("order", Order)
def test_a_cut_that_was_not_synced_may_come_undone(order):
    disk, file = synced(b"a" * 1000)
    file.truncate(10)
    assert outcomes(disk, order) >= {b"a" * 10, b"a" * 1000}


@pytest.mark.parametrize("order", Order)
def test_names_survive_after_sync_directory_only(order):
    disk = SimDisk()
    disk.open(PATH, create=True).sync()
    assert outcomes(disk, order) == {None, b""}
    disk.sync_directory(ROOT)
    assert outcomes(disk, order) == {b""}
    disk.remove(PATH)
    assert outcomes(disk, order) == {None, b""}
    disk.sync_directory(ROOT)
    assert outcomes(disk, order) == {None}


@pytest.mark.parametrize("order", Order)
def test_a_rename_happens_or_does_not(order):
    disk, _ = synced(b"old")
    file = disk.open(ROOT / "new", create=True)
    file.write(0, [b"new"])
    file.sync()
    disk.rename(ROOT / "new", PATH)
    assert outcomes(disk, order) == {b"old", b"new"}
    disk.sync_directory(ROOT)
    assert outcomes(disk, order) == {b"new"}


def removed_two(order):
    disk = SimDisk()
    for name in "ab":
        disk.open(ROOT / name, create=True)
    disk.sync_directory(ROOT)
    for name in "ab":
        disk.remove(ROOT / name)
    return {tuple(disk.crash(random.Random(seed), order).names(ROOT)) for seed in range(200)}


def test_changes_of_names_keep_to_the_order():
    assert removed_two(Order.IN_ORDER) == {("a", "b"), ("b",), ()}
    for order in (Order.NAMES_UNORDERED, Order.UNORDERED):
        assert removed_two(order) == {("a", "b"), ("a",), ("b",), ()}


def test_a_killed_process_leaves_everything_and_the_power_may_still_go():
    disk, file = synced(b"a" * 512)
    file.write(512, [b"b" * 512])
    disk.open(ROOT / "other", create=True)
    killed = disk.kill()
    file.write(0, [b"z"])
    assert killed.files() == {PATH: b"a" * 512 + b"b" * 512, ROOT / "other": b""}
    assert outcomes(killed, Order.IN_ORDER) == {b"a" * 512, b"a" * 512 + bytes(512), b"a" * 512 + b"b" * 512}
    assert outcomes(killed, Order.IN_ORDER, ROOT / "other") == {None, b""}


def test_a_crash_is_a_function_of_its_seed():
    disk, file = synced(b"")
    for number in range(50):
        file.write(number * 300, [bytes((number,)) * 300])
    for order in Order:
        assert disk.crash(random.Random(7), order).files() == disk.crash(random.Random(7), order).files()


def test_a_failed_sync_loses_what_it_should_have_written_for_good():
    disk, file = synced(b"a" * 512)
    file.write(512, [b"b" * 512])
    disk.fail("sync", code=errno.EIO)
    with pytest.raises(OSError, match=r"Input/output error"):
        file.sync()
    file.write(1024, [b"c" * 512])
    file.sync()
    assert disk.content(PATH) == b"a" * 512 + b"b" * 512 + b"c" * 512, "the cache shows it still"
    assert outcomes(disk, Order.UNORDERED) == {b"a" * 512 + bytes(512) + b"c" * 512}


def test_a_disk_that_lies_loses_what_it_said_was_synced_when_the_power_goes_and_not_before():
    disk, file = synced(b"honest")
    disk.is_lying = True
    file.write(6, [b" and not"])
    file.sync()
    disk.open(ROOT / "new", create=True).sync()
    disk.sync_directory(ROOT)
    killed = disk.kill()
    assert (killed.content(PATH), killed.exists(ROOT / "new"), killed.is_lying) == (b"honest and not", True, True)
    for order in Order:
        assert {b"honest", b"honest and not"} <= outcomes(killed, order)
        assert outcomes(killed, order, ROOT / "new") == {b"", None}
    assert not killed.crash(random.Random(0)).is_lying


def test_a_full_disk_takes_what_fits():
    disk, file = synced(b"a" * 10)
    disk.capacity = 15
    with pytest.raises(OSError, match="No space") as caught:
        file.write(10, [b"bbbb", b"cccc"])
    assert caught.value.errno == errno.ENOSPC
    assert disk.content(PATH) == b"a" * 10 + b"bbbbc"
    with pytest.raises(OSError, match="No space"):
        disk.open(ROOT / "other", create=True)
    file.write(0, [b"overwriting needs no room"[:10]])
    disk.heal()
    file.write(10, [b"bbbb", b"cccc"])
    assert disk.content(PATH)[10:] == b"bbbbcccc"


def test_faults_strike_the_operation_they_are_meant_for():
    disk, file = synced(b"")
    disk.fail("write", code=errno.EIO, skip=1, times=1, where=lambda path: path == PATH)
    file.write(0, [b"1"])
    disk.open(ROOT / "other", create=True).write(0, [b"x"])
    with pytest.raises(OSError, match=r"Input/output error"):
        file.write(1, [b"23"])
    assert disk.content(PATH) == b"12", "half of it got through"
    file.write(1, [b"23"])
    assert disk.content(PATH) == b"123"


def test_operations_are_counted_and_shown_before_they_happen():
    disk, file = synced(b"")
    seen = []
    disk.before = seen.append
    file.write(0, [b"1"])
    file.sync()
    disk.remove(PATH)
    disk.remove(PATH)
    assert seen == [Operation("write", PATH), Operation("sync", PATH), Operation("remove", PATH)]
    assert disk.counts["sync"] == 2


def test_a_closed_file_is_closed():
    disk, file = synced(b"x")
    assert disk.open_files == {file}
    file.close()
    assert disk.open_files == set()
    for use in (lambda: file.read(0, 1), lambda: file.write(0, [b"y"]), file.size, file.sync, file.close, file.fileno):
        with pytest.raises(OSError, match="Bad file descriptor"):
            use()


NAMES = st.sampled_from(("a", "b", "c"))
STEPS = st.one_of(
    st.tuples(st.just("create"), NAMES),
    st.tuples(st.just("remove"), NAMES),
    st.tuples(st.just("rename"), NAMES, NAMES),
    st.tuples(st.just("write"), NAMES, st.integers(0, 1500), st.lists(st.binary(max_size=700), min_size=1, max_size=3)),
    st.tuples(st.just("truncate"), NAMES, st.integers(0, 2000)),
    st.tuples(st.just("sync"), NAMES),
    st.tuples(st.just("read"), NAMES, st.integers(0, 1500), st.integers(0, 1500)),
    st.tuples(st.just("size"), NAMES),
    st.tuples(st.just("names")),
)


def take(disk, root, files, step):
    kind, *given_ = step
    try:
        if kind == "names":
            return disk.names(root)
        if kind == "create":
            files.append(disk.open(root / given_[0], create=True))
            return None
        if kind == "remove":
            return disk.remove(root / given_[0])
        if kind == "rename":
            return disk.rename(root / given_[0], root / given_[1])
        file = disk.open(root / given_[0])
        files.append(file)
        return getattr(file, kind)(*given_[1:])
    except OSError as error:
        return error.errno


@given(st.lists(STEPS, max_size=25))
@examples(60)
def test_it_does_what_the_real_disk_does(tmp_path_factory, steps):
    real_root = tmp_path_factory.mktemp("real")
    disks = (SimDisk(), ROOT, []), (OsDisk(), real_root, [])
    for step in steps:
        if step[0] == "rename" and step[1] == step[2]:
            continue
        simulated, real = (take(disk, root, files, step) for disk, root, files in disks)
        assert simulated == real, step
    for _, _, files in disks:
        for file in files:
            file.close()
