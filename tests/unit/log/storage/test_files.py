"""Open files: never more than may be, none closed under its user's hands, none left open when it is forgotten."""

import errno
import random
from types import SimpleNamespace

import pytest

from liftpy_log.storage.files import FileCache
from support.simdisk import ROOT, SimDisk


class Owner(SimpleNamespace):
    __hash__ = object.__hash__
    __eq__ = object.__eq__


def owners_on(disk, count):
    owners = [Owner(path=ROOT / f"{number:03}", number=number) for number in range(count)]
    for owner in owners:
        disk.overwrite(owner.path, b"%03d" % owner.number)
    return owners


@pytest.fixture
def disk():
    return SimDisk()


def paths(disk):
    return sorted(file.path.name for file in disk.open_files)


def test_a_file_is_opened_once(disk):
    (owner,) = owners_on(disk, 1)
    files = FileCache(disk, 2)
    assert files.get(owner) is files.get(owner) is files.pin(owner)
    assert len(files) == len(disk.open_files) == 1


def test_the_least_recently_used_file_is_closed(disk):
    a, b, c, d = owners_on(disk, 4)
    files = FileCache(disk, 3)
    for owner in (a, b, c, a, d):
        files.get(owner)
    assert paths(disk) == ["000", "002", "003"]
    files.get(b)
    assert paths(disk) == ["000", "001", "003"]


def test_ten_thousand_owners_hold_no_more_files_than_may_be_open(disk):
    files = FileCache(disk, 7)
    for owner in owners_on(disk, 10_000):
        assert files.get(owner).read(0, 8) == b"%03d" % owner.number
        assert len(disk.open_files) == len(files) <= 7


def test_a_created_file_is_taken_over(disk):
    a, b, c = owners_on(disk, 3)
    files = FileCache(disk, 2)
    for owner in (a, b, c):
        files.add(owner, disk.open(owner.path))
    assert paths(disk) == ["001", "002"]
    assert files.get(c).read(0, 3) == b"002"


def test_a_pinned_file_stays_open(disk):
    pinned, *others = owners_on(disk, 20)
    files = FileCache(disk, 2)
    file = files.pin(pinned)
    for owner in others:
        files.get(owner)
    assert file.read(0, 3) == b"000"
    assert len(disk.open_files) == 2
    files.unpin(pinned, file)
    for owner in others:
        files.get(owner)
    assert file.closed


def test_a_file_may_be_pinned_twice(disk):
    pinned, a, b, c = owners_on(disk, 4)
    files = FileCache(disk, 1)
    first, second = files.pin(pinned), files.pin(pinned)
    assert first is second
    files.unpin(pinned, first)
    files.get(a)
    assert not first.closed
    files.unpin(pinned, second)
    files.get(b)
    files.get(c)
    assert first.closed


def test_more_pins_than_files_may_be_open_are_closed_again_afterwards(disk):
    *pinned, last = owners_on(disk, 10)
    files = FileCache(disk, 2)
    opened = [files.pin(owner) for owner in pinned]
    assert all(not file.closed for file in opened)
    for owner, file in zip(pinned, opened, strict=True):
        files.unpin(owner, file)
    files.get(last)
    assert len(disk.open_files) == len(files) <= 2


def test_a_file_from_get_is_valid_until_the_next_get_whatever_other_threads_pin(disk):
    mine, *others = owners_on(disk, 5)
    files = FileCache(disk, 2)
    file = files.get(mine)
    for owner in others:
        files.unpin(owner, files.pin(owner))
    assert file.read(0, 3) == b"000"


def test_a_forgotten_file_is_closed_at_once(disk):
    (owner,) = owners_on(disk, 1)
    files = FileCache(disk, 2)
    file = files.get(owner)
    files.forget(owner)
    files.forget(owner)
    assert file.closed
    assert len(files) == 0


def test_a_forgotten_file_is_closed_when_its_last_user_lets_go(disk):
    (owner,) = owners_on(disk, 1)
    files = FileCache(disk, 2)
    file = files.pin(owner)
    files.pin(owner)
    files.forget(owner)
    files.unpin(owner, file)
    assert file.read(0, 3) == b"000"
    files.unpin(owner, file)
    assert file.closed
    assert len(files) == 0


def test_a_pin_of_a_file_that_is_not_there_changes_nothing(disk):
    (owner,) = owners_on(disk, 1)
    files = FileCache(disk, 2)
    for use in (files.get, files.pin):
        with pytest.raises(FileNotFoundError):
            use(Owner(path=ROOT / "missing"))
    disk.fail("open", code=errno.EMFILE)
    with pytest.raises(OSError, match="Too many open files"):
        files.pin(owner)
    assert len(files) == 0
    assert files.get(owner).read(0, 3) == b"000"


def test_idle_files_are_closed_when_the_process_can_open_no_more(disk):
    a, b, c, d = owners_on(disk, 4)
    files = FileCache(disk, 10)
    pinned = files.pin(a)
    files.get(b)
    got = files.get(c)
    disk.fail("open", code=errno.EMFILE)
    files.pin(d)
    assert paths(disk) == ["000", "002", "003"]
    assert (pinned.read(0, 3), got.read(0, 3)) == (b"000", b"002")


def test_an_unpin_that_comes_after_close_is_harmless(disk):
    (owner,) = owners_on(disk, 1)
    files = FileCache(disk, 2)
    file = files.pin(owner)
    files.close()
    assert file.closed
    again = files.pin(owner)
    files.unpin(owner, file)
    files.forget(owner)
    assert not again.closed, "the old file's unpin did not count for the new one"


@pytest.mark.parametrize("seed", range(30))
def test_random_use(disk, seed):
    rng = random.Random(seed)
    owners = owners_on(disk, 8)
    capacity = rng.randint(1, 5)
    files, pins = FileCache(disk, capacity), []
    for _ in range(300):
        owner, step = rng.choice(owners), rng.choice(("get", "get", "pin", "unpin", "forget"))
        if step == "get":
            assert files.get(owner).path == owner.path
        elif step == "pin" and len(pins) < capacity - 1:
            pins.append((owner, files.pin(owner)))
        elif step == "unpin" and pins:
            files.unpin(*pins.pop(rng.randrange(len(pins))))
        elif step == "forget" and all(owner is not other for other, _ in pins):
            files.forget(owner)
        assert all(not file.closed for _, file in pins)
        assert len(disk.open_files) == len(files) <= capacity
    files.close()
    assert disk.open_files == set()
