"""Files of the operating system: whole writes or an error, explicit positions, and replacement of a file as a whole."""

import errno
import os
import random
import resource
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from liftpy_log.storage.disk import OsDisk, is_full, write_atomically
from support.simdisk import ROOT, Order, SimDisk


def test_files_are_opened_with_spare_descriptors_when_others_took_the_rest(tmp_path):
    disk = OsDisk(spare_count=3)
    (tmp_path / "a").write_bytes(b"a")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (64 + max(int(each.name) for each in Path("/proc/self/fd").iterdir()), hard)
    )
    taken = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open("/", os.O_RDONLY))
        files = [disk.open(tmp_path / "a") for _ in range(2)]
        disk.sync_directory(tmp_path)
        write_atomically(disk, tmp_path / "b", b"b")
        files.append(disk.open(tmp_path / "a"))
        with pytest.raises(OSError, match="Too many open files"):
            disk.open(tmp_path / "a")
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (tmp_path / "b").read_bytes() == b"b"
    for opened in files:
        opened.close()


@pytest.mark.parametrize("name", ["fsync", "fdatasync"])
def test_a_sync_that_failed_is_never_for_a_moment(file, tmp_path, monkeypatch, name):
    def fail(_descriptor):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(os, name, fail)
    with pytest.raises(OSError, match="a sync failed: Cannot allocate memory") as caught:
        file.sync() if name == "fdatasync" else OsDisk().sync_directory(tmp_path)
    assert not is_full(caught.value)


@pytest.fixture
def file(tmp_path):
    file = OsDisk().open(tmp_path / "file", create=True)
    yield file
    file.close()


def content(file):
    return file.read(0, file.size())


@pytest.mark.parametrize("parts", [[b"one"], [b"one", b"two"], [pa.py_buffer(b"one"), b"two"], [pa.py_buffer(b"one")]])
def test_parts_stand_one_after_the_other(file, parts):
    file.write(2, parts)
    assert content(file) == b"\0\0" + b"".join(bytes(part) for part in parts)


def test_more_parts_than_one_call_takes(file):
    parts = [b"%06d" % number for number in range(2_500)]
    file.write(3, parts)
    assert content(file) == b"\0\0\0" + b"".join(parts)


@pytest.mark.parametrize("at_once", [1, 2, 5, 6, 7, 1000])
@pytest.mark.parametrize("parts", [[b"abcdefghijkl"], [b"abc", b"def", b"ghijkl"]])
def test_a_write_that_stops_early_goes_on(file, monkeypatch, parts, at_once):
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, bytes(data)[:at_once], at))
    monkeypatch.setattr(os, "pwritev", lambda fd, data, at: pwrite(fd, b"".join(data)[:at_once], at))
    file.write(5, parts)
    assert content(file) == bytes(5) + b"abcdefghijkl"


@pytest.mark.parametrize("parts", [[b"abcdef"], [b"abc", b"def"]])
@pytest.mark.parametrize("before", [0, 2])
def test_a_write_that_stops_for_good_is_an_error(file, monkeypatch, parts, before):
    pwrite, written = os.pwrite, []

    def write(fd, data, at):
        written.append(at)
        return pwrite(fd, bytes(data)[:before], at) if len(written) == 1 else 0

    monkeypatch.setattr(os, "pwrite", write)
    monkeypatch.setattr(os, "pwritev", lambda fd, data, at: write(fd, b"".join(data), at))
    with pytest.raises(OSError, match="nothing was written") as caught:
        file.write(0, parts)
    assert caught.value.errno == errno.ENOSPC
    assert content(file) == b"abcdef"[:before]


def test_reads_end_with_the_file(file):
    file.write(0, [b"abcdef"])
    assert [file.read(0, 6), file.read(4, 10), file.read(6, 1), file.read(100, 1), file.read(2, 0)] == [
        *(b"abcdef", b"ef", b"", b"", b""),
    ]


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_a_read_that_stops_early_goes_on(file, monkeypatch, at_once):
    file.write(0, [b"abcdef"])
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: pread(fd, min(size, at_once), at))
    assert [file.read(0, 6), file.read(1, 100), file.read(6, 3)] == [b"abcdef", b"bcdef", b""]


def test_truncate_and_size(file):
    file.write(0, [b"abcdef"])
    file.truncate(2)
    assert (file.size(), content(file)) == (2, b"ab")
    file.sync()
    assert os.fstat(file.fileno()).st_size == 2


def test_open_tells_new_files_from_old_ones(tmp_path):
    disk = OsDisk()
    with pytest.raises(FileNotFoundError):
        disk.open(tmp_path / "file")
    disk.open(tmp_path / "file", create=True).close()
    disk.open(tmp_path / "file").close()
    with pytest.raises(FileExistsError):
        disk.open(tmp_path / "file", create=True)


def test_descriptors_are_not_inherited(file):
    assert not os.get_inheritable(file.fileno())


def test_names_are_sorted_and_may_be_removed_and_replaced(tmp_path):
    disk = OsDisk()
    for name in ("b", "a", "c"):
        disk.open(tmp_path / name, create=True).close()
    (tmp_path / "a").write_bytes(b"A")
    disk.rename(tmp_path / "a", tmp_path / "b")
    disk.remove(tmp_path / "c")
    disk.remove(tmp_path / "c")
    assert disk.names(tmp_path) == ["b"]
    assert (tmp_path / "b").read_bytes() == b"A"


def test_make_directory_makes_its_parents_and_syncs_where_each_is_named(tmp_path, monkeypatch):
    disk, synced = OsDisk(), []
    monkeypatch.setattr(OsDisk, "sync_directory", lambda _self, directory: synced.append(directory))
    for _ in range(2):
        disk.make_directory(tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").is_dir()
    assert synced == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]


def test_sync_directory_gives_its_descriptor_back(tmp_path, monkeypatch):
    disk, opened, closed = OsDisk(), [], []
    os_open, os_close = os.open, os.close
    monkeypatch.setattr(os, "open", lambda *given: opened.append(os_open(*given)) or opened[-1])
    monkeypatch.setattr(os, "close", lambda descriptor: closed.append(descriptor) or os_close(descriptor))
    disk.sync_directory(tmp_path)
    assert len(opened) == 1
    assert closed == opened


@pytest.mark.parametrize("durable", [True, False])
def test_write_atomically_on_a_real_disk(tmp_path, durable):
    for text in (b"old", b"new and longer", b""):
        write_atomically(OsDisk(), tmp_path / "file", text, durable=durable)
        assert (tmp_path / "file").read_bytes() == text
    assert OsDisk().names(tmp_path) == ["file"]


def test_write_atomically_takes_no_notice_of_what_an_earlier_one_left(tmp_path):
    (tmp_path / "file.tmp").write_bytes(b"half of something long")
    write_atomically(OsDisk(), tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"


@pytest.mark.parametrize("order", Order)
def test_after_a_crash_the_old_content_is_there_or_the_new(order):
    path, old, new = ROOT / "file", b"old" * 300, b"new" * 500
    disk = SimDisk()
    write_atomically(disk, path, old)
    found = set()

    def crash(_operation=None):
        for seed in range(40):
            found.add(disk.crash(random.Random(seed), order).content(path))

    disk.before = crash
    write_atomically(disk, path, new)
    assert found == {old, new}
    found.clear()
    crash()
    assert found == {new}, "durable on return"


@pytest.mark.parametrize("kind", ["create", "write", "sync", "rename"])
def test_write_atomically_leaves_the_old_content_when_it_fails(kind):
    path, disk = ROOT / "file", SimDisk()
    write_atomically(disk, path, b"old")
    disk.fail(kind, code=errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        write_atomically(disk, path, b"new")
    assert disk.content(path) == b"old"
    assert disk.open_files == set()
    write_atomically(disk, path, b"new")
    assert disk.content(path) == b"new"
