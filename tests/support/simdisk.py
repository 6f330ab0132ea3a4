"""A disk in memory that can lose power, be full, and fail: a simulated `liftpy_log.storage.disk`.

What was written is in the "page cache" until `sync`; a name that was created, renamed or removed is there until
`sync_directory`. `kill` gives the disk as the next process finds it after `kill -9`: the cache is still there.
`crash` gives the disk as the next boot finds it: of everything that was not synced some is there and some is not.

A sector of 512 bytes is written as a whole, with what was in the cache at some moment. How much more order there is
between sectors, and between names of one directory, is what `Order` says:

    IN_ORDER         writes to a file reach the disk one after the other; the last one that did is torn anywhere, in
                     sectors that need not be its first. Likewise for names: the oldest changes survive.
    NAMES_UNORDERED  every change of a name survives, or not, for itself.
    UNORDERED        so does every sector, and the size of a file.

A sync that fails drops what it should have written, as Linux does: the cache still shows it, a later sync that
succeeds does not save it. A disk that lies says of syncs that they are through, and keeps what it was to make durable
in a cache of its own, which loses power as well.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["ROOT", "Fault", "Operation", "Order", "SimDisk", "SimFile"]

ROOT = Path("/sim")
SECTOR = 512


class Order(Enum):
    """Which orders the disk keeps to; see the module."""

    IN_ORDER = "in order"
    NAMES_UNORDERED = "names unordered"
    UNORDERED = "unordered"


class Operation(NamedTuple):
    """Something that changes the disk, or makes a change durable."""

    kind: str
    path: Path


@dataclass
class Fault:
    """Operations of some kinds fail: after `skip` that match, `times` of them do; None is for ever."""

    kinds: frozenset[str]
    code: int
    skip: int
    times: int | None
    where: Callable[[Path], bool]

    def strikes(self, operation: Operation) -> bool:
        if operation.kind not in self.kinds or not self.where(operation.path) or self.times == 0:
            return False
        if self.skip:
            self.skip -= 1
            return False
        if self.times is not None:
            self.times -= 1
        return True


class _Write(NamedTuple):
    position: int
    data: bytes

    def apply(self, content: bytearray) -> None:
        _put(content, self.position, self.data)

    def sectors(self, _size: int) -> range:
        return range(self.position // SECTOR, -(-(self.position + len(self.data)) // SECTOR))


class _Truncate(NamedTuple):
    size: int

    def apply(self, content: bytearray) -> None:
        _resize(content, self.size)

    def sectors(self, size: int) -> range:
        return range(min(size, self.size) // SECTOR, -(-max(size, self.size) // SECTOR))


@dataclass
class _Inode:
    durable: bytes = b""
    content: bytearray = field(default_factory=bytearray)
    pending: list[_Write | _Truncate] = field(default_factory=list)
    forgotten: bool = False  # a sync failed: the cache holds what no later sync will write

    def change(self, change: _Write | _Truncate) -> None:
        change.apply(self.content)
        self.pending.append(change)

    def save(self) -> None:
        if self.forgotten:
            saved = bytearray(self.durable)
            for change in self.pending:
                _settle(saved, self.content, change.sectors(len(saved)), len(self.content))
            self.durable = bytes(saved)
        else:
            self.durable = bytes(self.content)
        self.pending.clear()

    def forget(self) -> None:
        self.forgotten = self.forgotten or bool(self.pending)
        self.pending.clear()

    def after_power_loss(self, rng: random.Random, order: Order) -> bytes:
        if not self.pending:
            return self.durable
        if order is not Order.UNORDERED:
            return _in_order(self.durable, self.pending, rng)
        return _unordered(self.durable, self.pending, rng)


def _put(content: bytearray, position: int, data: bytes) -> None:
    if len(content) < position:
        content.extend(bytes(position - len(content)))
    content[position : position + len(data)] = data


def _resize(content: bytearray, size: int) -> None:
    del content[size:]
    content.extend(bytes(size - len(content)))


def _settle(old: bytearray, new: bytes | bytearray, sectors: Sequence[int], size: int) -> None:
    """Bring some sectors of `old` to what they are in `new`, and the file to `size`."""
    for sector in sectors:
        piece = new[sector * SECTOR : (sector + 1) * SECTOR]
        if piece:
            _put(old, sector * SECTOR, bytes(piece))
    _resize(old, size)


def _in_order(durable: bytes, pending: Sequence[_Write | _Truncate], rng: random.Random) -> bytes:
    content = bytearray(durable)
    whole = rng.randint(0, len(pending))
    for change in pending[:whole]:
        change.apply(content)
    if whole == len(pending):
        return bytes(content)
    torn = pending[whole]
    if isinstance(torn, _Truncate):  # happens or does not
        return bytes(content)
    old_size, after = len(content), bytearray(content)
    torn.apply(after)
    kept = [sector for sector in torn.sectors(old_size) if rng.random() < 0.5]
    if rng.random() < 0.5:  # the beginning of it and no more, which is the commonest
        kept = list(torn.sectors(old_size))[: len(kept)]
    reached = min(len(after), max(old_size, (kept[-1] + 1) * SECTOR if kept else 0))
    _settle(content, after, kept, rng.choice((reached, len(after))))
    return bytes(content)


def _unordered(durable: bytes, pending: Sequence[_Write | _Truncate], rng: random.Random) -> bytes:
    content, sizes = bytearray(durable), [len(durable)]
    versions: dict[int, list[bytes]] = {}
    for change in pending:
        touched = change.sectors(len(content))
        for sector in touched:
            versions.setdefault(sector, [bytes(content[sector * SECTOR : (sector + 1) * SECTOR])])
        change.apply(content)
        for sector in touched:
            versions[sector].append(bytes(content[sector * SECTOR : (sector + 1) * SECTOR]))
        sizes += range((sizes[-1] // SECTOR + 1) * SECTOR, len(content), SECTOR)
        sizes.append(len(content))
    pick = _bias(rng)
    result = bytearray(durable)
    for sector, states in versions.items():
        _put(result, sector * SECTOR, pick(states).ljust(SECTOR, b"\0"))
    _resize(result, pick(sizes))
    return bytes(result)


def _bias(rng: random.Random) -> Callable[[list], object]:
    """How one crash chooses between the states a thing went through: the first, the last, or any of them."""
    mood = rng.random()
    if mood < 0.1:
        return lambda states: states[0]
    if mood < 0.2:
        return lambda states: states[-1]
    newest = rng.random()
    return lambda states: states[-1] if rng.random() < newest else rng.choice(states)


class _NameChange(NamedTuple):
    """A name was given to a file, or taken from one; a rename is both at once."""

    removed: Path | None
    added: Path | None
    inode: _Inode | None

    def apply(self, names: dict[Path, _Inode]) -> None:
        if self.removed is not None and self.added is not None and self.removed not in names:
            return  # the file to be renamed never got its first name
        if self.removed is not None:
            names.pop(self.removed, None)
        if self.added is not None and self.inode is not None:
            names[self.added] = self.inode


class SimFile:
    """An open file of a `SimDisk`."""

    def __init__(self, disk: SimDisk, path: Path, inode: _Inode, number: int) -> None:
        self.path = path
        self.closed = False
        self._disk = disk
        self._inode = inode
        self._number = number

    def write(self, position: int, parts: Sequence[bytes]) -> None:
        self._check_open()
        self._disk._write(self.path, self._inode, position, b"".join(bytes(part) for part in parts))

    def read(self, position: int, size: int) -> bytes:
        self._check_open()
        self._disk._read(self.path)
        return bytes(self._inode.content[position : position + size])

    def size(self) -> int:
        self._check_open()
        return len(self._inode.content)

    def truncate(self, size: int) -> None:
        self._check_open()
        self._disk._truncate(self.path, self._inode, size)

    def sync(self) -> None:
        self._check_open()
        self._disk._sync(self.path, self._inode)

    def fileno(self) -> int:
        self._check_open()
        return self._number

    def close(self) -> None:
        self._check_open()
        self.closed = True
        self._disk.open_files.discard(self)

    def _check_open(self) -> None:
        if self.closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), str(self.path))


class SimDisk:
    """See the module.

    Attributes:
        before: called before every operation that changes something; may raise.
        counts: how many operations there were, by kind.
        capacity: bytes that all files together may have; None is no limit.
        open_files: the files that were opened and not closed yet.
        is_lying: syncs return, and make nothing durable.
    """

    def __init__(self) -> None:
        self.is_lying = False
        self.before: Callable[[Operation], None] | None = None
        self.counts: Counter[str] = Counter()
        self.capacity: int | None = None
        self.open_files: set[SimFile] = set()
        self._names: dict[Path, _Inode] = {}
        self._durable_names: dict[Path, _Inode] = {}
        self._changes: dict[Path, list[_NameChange]] = {}
        self._directories: set[Path] = {ROOT}
        self._fleeting: set[Path] = set()  # directories whose names were not synced
        self._faults: list[Fault] = []
        self._opened = 0
        self._lock = RLock()

    # What `liftpy_log.storage.disk.Disk` asks for.

    def open(self, path: Path, *, create: bool = False) -> SimFile:
        with self._lock:
            if path.parent not in self._directories:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            if create and path in self._names:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
            if not create:
                self._check_fault(Operation("open", path))  # Linux gives EMFILE for a file that is not there, too
                if path not in self._names:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            else:
                self._begin("create", path)
                if self._room() == 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
                self._change_name(_NameChange(None, path, _Inode()))
            self._opened += 1
            file = SimFile(self, path, self._names[path], 1_000 + self._opened)
            self.open_files.add(file)
            return file

    def names(self, directory: Path) -> list[str]:
        with self._lock:
            if directory not in self._directories:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(directory))
            children = {path for path in (*self._names, *self._directories) if path.parent == directory}
            return sorted(path.name for path in children if path != directory)

    def make_directory(self, directory: Path, *, durable: bool = True) -> None:
        with self._lock:
            if directory not in self._directories:
                self._begin("make_directory", directory)
                made = {directory, *directory.parents} - self._directories
                self._directories |= made
                if not durable:
                    self._fleeting |= made

    def remove(self, path: Path) -> None:
        with self._lock:
            if path in self._names:
                self._begin("remove", path)
                self._change_name(_NameChange(path, None, None))

    def rename(self, old: Path, new: Path) -> None:
        if old in self._directories:
            self._move_directory(old, new)
            return
        assert old.parent == new.parent, "a rename of a file within one directory is all that is simulated"
        with self._lock:
            if old not in self._names:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(old))
            self._begin("rename", new)
            self._change_name(_NameChange(old, new, self._names[old]))

    def _move_directory(self, old: Path, new: Path) -> None:
        """With all that is in it; it is durable at once."""
        with self._lock:
            self._begin("rename", new)
            moved = lambda path: new / path.relative_to(old) if path.is_relative_to(old) else path
            self._directories = {moved(path) for path in self._directories}
            self._fleeting = {path for path in self._fleeting if not path.is_relative_to(old)}
            for path in [path for path in (*self._names, *self._durable_names) if path.is_relative_to(old)]:
                for names in (self._names, self._durable_names):
                    if path in names:
                        names[moved(path)] = names.pop(path)
            for directory in [path for path in self._changes if path.is_relative_to(old)]:
                for change in self._changes.pop(directory):
                    change.apply(self._durable_names)
            self._durable_names = {moved(path): inode for path, inode in self._durable_names.items()}

    def sync_directory(self, directory: Path) -> None:
        with self._lock:
            self._begin("sync_directory", directory)
            if self.is_lying:
                return
            self._fleeting = {made for made in self._fleeting if made.parent != directory}
            for change in self._changes.pop(directory, []):
                change.apply(self._durable_names)

    # What tests ask for.

    def fail(
        self,
        *kinds: str,
        code: int,
        skip: int = 0,
        times: int | None = 1,
        where: Callable[[Path], bool] = lambda _path: True,
    ) -> None:
        """Let operations of these kinds fail with an `errno`; see `Fault`.

        Kinds are write, truncate, sync, create, remove, rename, sync_directory, make_directory, and also open and read.
        """
        self._faults.append(Fault(frozenset(kinds), code, skip, times, where))

    def heal(self) -> None:
        """Take back every `fail`, and the limit of the capacity."""
        self._faults.clear()
        self.capacity = None

    def kill(self) -> SimDisk:
        """The disk as the next process finds it after `kill -9`."""
        with self._lock:
            copies: dict[int, _Inode] = {}

            def copy(inode: _Inode | None) -> _Inode | None:
                if inode is None:
                    return None
                if id(inode) not in copies:
                    copies[id(inode)] = _Inode(
                        inode.durable, bytearray(inode.content), list(inode.pending), inode.forgotten
                    )
                return copies[id(inode)]

            disk = SimDisk()
            disk.is_lying = self.is_lying
            disk._directories = set(self._directories)
            disk._fleeting = set(self._fleeting)
            disk._names = {path: copy(inode) for path, inode in self._names.items()}
            disk._durable_names = {path: copy(inode) for path, inode in self._durable_names.items()}
            disk._changes = {
                directory: [change._replace(inode=copy(change.inode)) for change in changes]
                for directory, changes in self._changes.items()
            }
            return disk

    def crash(self, rng: random.Random, order: Order = Order.UNORDERED) -> SimDisk:
        """The disk as the next boot finds it after the power went."""
        with self._lock:
            disk = SimDisk()
            gone = {made for made in sorted(self._fleeting) if rng.random() < 0.5}
            disk._directories = {made for made in self._directories if gone.isdisjoint((made, *made.parents))}
            names = dict(self._durable_names)
            for directory in sorted(self._changes):
                for change in _surviving(self._changes[directory], rng, order):
                    change.apply(names)
            for path in sorted(names):
                if path.parent in disk._directories:
                    disk.overwrite(path, names[path].after_power_loss(rng, order))
            return disk

    def content(self, path: Path) -> bytes:
        """What a file holds for those who read it now."""
        return bytes(self._names[path].content)

    def overwrite(self, path: Path, content: bytes) -> None:
        """Make a file hold something, durably, behind everybody's back."""
        inode = self._names.get(path)
        if inode is None:
            inode = self._names[path] = _Inode()
        inode.durable, inode.content, inode.forgotten = bytes(content), bytearray(content), False
        inode.pending.clear()
        self._durable_names[path] = inode
        self._directories.update(path.parents)
        self._forget_changes(path)

    def delete(self, path: Path) -> None:
        """Take a file away, durably, behind everybody's back."""
        self._names.pop(path, None)
        self._durable_names.pop(path, None)
        self._forget_changes(path)

    def delete_directory(self, directory: Path) -> None:
        """Take a directory away with all that is in it, durably, behind everybody's back."""
        for path in [path for path in {**self._names, **self._durable_names} if path.is_relative_to(directory)]:
            self.delete(path)
        for known in (self._directories, self._fleeting):
            known -= {path for path in known if path.is_relative_to(directory)}

    def has_directory(self, directory: Path) -> bool:
        """Whether there is a directory of that name."""
        return directory in self._directories

    def exists(self, path: Path) -> bool:
        """Whether there is a file of that name."""
        return path in self._names

    def files(self, suffix: str = "") -> dict[Path, bytes]:
        """The content of every file whose name ends so, in the order of their paths."""
        return {path: self.content(path) for path in self._walk(suffix)}

    def _walk(self, suffix: str) -> Iterator[Path]:
        return (path for path in sorted(self._names) if path.name.endswith(suffix))

    # What files and the operations above are made of.

    def _begin(self, kind: str, path: Path) -> None:
        operation = Operation(kind, path)
        if self.before is not None:
            self.before(operation)
        self.counts[kind] += 1
        self._check_fault(operation)

    def _check_fault(self, operation: Operation) -> None:
        for fault in self._faults:
            if fault.strikes(operation):
                raise OSError(fault.code, os.strerror(fault.code), str(operation.path))

    def _change_name(self, change: _NameChange) -> None:
        change.apply(self._names)
        path = change.added or change.removed
        assert path is not None
        self._changes.setdefault(path.parent, []).append(change)

    def _forget_changes(self, path: Path) -> None:
        changes = self._changes.get(path.parent, [])
        changes[:] = [change for change in changes if path not in {change.removed, change.added}]

    def _room(self) -> int | None:
        if self.capacity is None:
            return None
        return max(0, self.capacity - sum(len(inode.content) for inode in self._names.values()))

    def _write(self, path: Path, inode: _Inode, position: int, data: bytes) -> None:
        with self._lock:
            try:
                self._begin("write", path)
            except OSError:
                self._write_some(inode, position, data[: len(data) // 2])
                raise
            room = self._room()
            grows = position + len(data) - len(inode.content)
            if room is not None and grows > room:
                self._write_some(inode, position, data[: max(0, len(data) - grows + room)])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            self._write_some(inode, position, data)

    @staticmethod
    def _write_some(inode: _Inode, position: int, data: bytes) -> None:
        if data:
            inode.change(_Write(position, data))

    def _read(self, path: Path) -> None:
        with self._lock:
            self._check_fault(Operation("read", path))

    def _truncate(self, path: Path, inode: _Inode, size: int) -> None:
        with self._lock:
            self._begin("truncate", path)
            inode.change(_Truncate(size))

    def _sync(self, path: Path, inode: _Inode) -> None:
        with self._lock:
            try:
                self._begin("sync", path)
            except OSError:
                inode.forget()
                raise
            if not self.is_lying:
                inode.save()


def _surviving(changes: Sequence[_NameChange], rng: random.Random, order: Order) -> list[_NameChange]:
    if order is Order.IN_ORDER:
        return list(changes[: rng.choice((0, rng.randint(0, len(changes)), len(changes)))])
    kept = rng.choice((0.0, 0.5, 1.0))
    return [change for change in changes if rng.random() < kept]
