"""What a batch is made of, decided once: the document that the driver writes by create-if-absent.

    spark/commits/<stream uuid>/<application>/<batch:020d>.json   the decision
    spark/commits/<stream uuid>/<application>/<batch:020d>.done   all of it is in the stream
    spark/staging/<stream uuid>/<application>/<batch:020d>/...    what tasks staged for it

`liftpy_spark.sink.accounts` has the rest of what is below `spark/commits/`.

What tasks staged may be in a directory instead (`liftpy_spark.sink.directory`), which the decision names then: it is
published from there, whatever the options of a later execution say. Such a decision has version 3, so that a liftpy
that would look for it in the bucket refuses it.

It also tells the subjects of chunks, as leaders read chunks by messages on their subjects. A liftpy that does not know
of that publishes them by itself, as it does where there are too many to be told.

A re-execution of the batch uses what the decision names, and ignores what it staged anew. Chunks are numbered by
partition in the order of the sections, so what a producer's sequence means follows from the decision alone.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from liftpy_bucket.errors import StagingDamagedError
from liftpy_bucket.staging.directory import check_path
from liftpy_bucket.staging.section import STAGING, SUBJECTS_MAX, Section, is_staged_key
from liftpy_envelope.limits import SUBJECT_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = ["COMMITS", "SINGLE", "Decision", "Numbered", "SinkBatch"]

COMMITS: Final = "spark/commits/"
SINGLE: Final = "once-"

_VERSION: Final = 2
_DIRECTORY_VERSION: Final = 3
_READABLE: Final = (_VERSION, _DIRECTORY_VERSION)
_PRODUCER_ID_BYTES: Final = 16
_SUBJECTS_BYTES_MAX: Final = 4 * 1024 * 1024  # of a decision, which is read at once
_CONTENTS: Final = "rows_sum"  # "contents" was a sum of another kind, and is not compared


class Numbered(NamedTuple):
    """A section, and the number of its first chunk among those of its partition."""

    section: Section
    first_chunk: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkBatch:
    """Which batch of whose.

    Attributes:
        stream: Name of the stream that it is written to.
        uuid: UUID of the stream, in hexadecimal.
        application: The id of who writes: of a streaming query, or what the user says.
        number: Number of the batch among the application's, from 0 on.
    """

    stream: str
    uuid: str
    application: str
    number: int

    @property
    def decision_key(self) -> str:
        """Where the decision is."""
        return self.commit_key(self.number, "json")

    @property
    def done_key(self) -> str:
        """What is there when all of the batch is in the stream."""
        return self.commit_key(self.number, "done")

    @property
    def commits_prefix(self) -> str:
        """Where the documents of the application's batches are."""
        return f"{COMMITS}{self.uuid}/{self.application}/"

    @property
    def settled_key(self) -> str:
        """Where it is noted up to which batch the application's documents are deleted."""
        return f"{self.commits_prefix}settled"

    @property
    def is_single(self) -> bool:
        """Whether it is the only batch of an application whose id was made up for it."""
        return re.fullmatch(f"{SINGLE}[0-9a-f]{{32}}", self.application) is not None

    def at(self, number: int) -> SinkBatch:
        """Another one of the application's batches."""
        return replace(self, number=number)

    @property
    def staging_prefix(self) -> str:
        """Where tasks stage its objects."""
        return f"{STAGING}{self.uuid}/{self.application}/{self.number:020d}/"

    def commit_key(self, number: int, suffix: str) -> str:
        """Where a document of one of the application's batches is."""
        return f"{self.commits_prefix}{number:020d}.{suffix}"

    def producer_id(self, partition: int) -> bytes:
        """The 16 bytes by which nodes know the chunks of this batch in a partition."""
        text = f"liftpy-spark/{self.application}/{self.uuid}/{partition}/{self.number}"
        return sha256(text.encode()).digest()[:_PRODUCER_ID_BYTES]

    def __str__(self) -> str:
        return f"batch {self.number} of {self.application} into stream {self.stream}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The content of a batch, fixed once by the driver.

    Attributes:
        batch: Batch that it is the content of.
        ends: Offset after the last committed record of each partition before any chunk was published.
        sections: Sections in their order.
        contents: What its rows come to, see `RowTally`; None in a decision of an older liftpy.
        directory: Where they are staged, an absolute path; None for the bucket.
    """

    batch: SinkBatch
    ends: tuple[int, ...]
    sections: tuple[Section, ...]
    contents: int | None = None
    directory: str | None = None

    @property
    def rows(self) -> int:
        """How many records the batch has."""
        return sum(section.rows for section in self.sections)

    def partitions(self) -> list[int]:
        """Those that get something."""
        return sorted({section.partition for section in self.sections})

    def share(self, partition: int) -> Iterator[Numbered]:
        """What a partition gets, in its order."""
        chunk = 0
        for section in self.sections:
            if section.partition == partition:
                yield Numbered(section, chunk)
                chunk += section.chunks

    def encode(self) -> bytes:
        """The document."""
        keys = sorted({section.key for section in self.sections})
        places = {key: place for place, key in enumerate(keys)}
        document = {
            "version": _VERSION if self.directory is None else _DIRECTORY_VERSION,
            "stream": self.batch.stream,
            "uuid": self.batch.uuid,
            "application": self.batch.application,
            "batch": self.batch.number,
            "ends": self.ends,
            "objects": keys,
            "sections": [
                [places[each.key], each.partition, each.start, each.length, each.rows, each.chunks, each.crc]
                for each in self.sections
            ],
        }
        document |= _encode_subjects(self.sections)
        if self.contents is not None:
            document[_CONTENTS] = f"{self.contents:016x}"
        if self.directory is not None:
            document["directory"] = self.directory
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, batch: SinkBatch, body: bytes) -> Decision:
        """Read the document of a batch.

        Raises:
            StagingDamagedError: it is none that this liftpy can read.
        """
        try:
            document = json.loads(body)
            version = document["version"]
            if version not in _READABLE:
                raise StagingDamagedError(
                    f"{batch}: its decision {batch.decision_key} has version {version}; this liftpy reads versions "
                    f"{_READABLE[0]} and {_READABLE[-1]}: use the one that wrote it, or a newer one"
                )
            keys = document["objects"]
            sections = [Section(keys[place], *_numbers_of(rest)) for place, *rest in document["sections"]]
            sections = _with_subjects(sections, document)
            found = (document["uuid"], document["application"], document["batch"])
            ends = tuple(_integers(document["ends"]))
            contents = None if document.get(_CONTENTS) is None else int(document[_CONTENTS], 16)
            directory = _directory(batch, document["directory"], keys) if version == _DIRECTORY_VERSION else None
        except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
            raise StagingDamagedError(
                f"{batch}: its decision {batch.decision_key} can not be read: {error!r:.200}"
            ) from None
        if found != (batch.uuid, batch.application, batch.number):
            raise StagingDamagedError(f"{batch}: its decision {batch.decision_key} is that of another batch: {found}")
        if any(not 0 <= section.partition < len(ends) for section in sections):
            raise StagingDamagedError(f"{batch}: its decision {batch.decision_key} names partitions that have no end")
        return cls(batch=batch, ends=ends, sections=tuple(sections), contents=contents, directory=directory)


def _encode_subjects(sections: Sequence[Section]) -> dict[str, Any]:
    """What a document says of the subjects of chunks; nothing where that is too long.

    There are all names, and for each section which of them how many of its chunks have, in their order.
    """
    names = sorted({subject for section in sections for subject in section.subjects})
    places = {name: place for place, name in enumerate(names)}
    told = [
        [number for name, chunks in groupby(section.subjects) for number in (places[name], len(list(chunks)))]
        for section in sections
    ]
    subjects = {"subjects": names, "subjects_of_sections": told}
    return subjects if len(json.dumps(subjects)) <= _SUBJECTS_BYTES_MAX else {}


def _with_subjects(sections: Sequence[Section], document: Mapping[str, Any]) -> list[Section]:
    """The sections with the subjects of their chunks, as far as a document tells them."""
    if "subjects" not in document:
        return list(sections)
    names = document["subjects"]
    if any(type(name) is not str or len(name.encode()) > SUBJECT_BYTES_MAX for name in names):
        raise ValueError(f"{names!r:.200} are no subjects")
    found = []
    for section, told in zip(sections, document["subjects_of_sections"], strict=True):
        numbers = _integers(told)
        runs = list(zip(numbers[::2], numbers[1::2], strict=True))
        if runs and not sum(count for _, count in runs) == section.chunks <= SUBJECTS_MAX:
            raise ValueError(f"subjects of {told!r:.200} chunks are told, and there are {section.chunks}")
        found.append(section._replace(subjects=tuple(names[place] for place, count in runs for _ in range(count))))
    return found


def _directory(batch: SinkBatch, directory: str, keys: list[str]) -> str:
    """The directory of a decision, in which it may name files of its own batch alone."""
    if type(directory) is not str or check_path(directory) != directory:
        raise ValueError(f"{directory!r:.200} is not the path of a directory as liftpy writes it")
    foreign = [key for key in keys if not is_staged_key(key) or not key.startswith(batch.staging_prefix)]
    if foreign:
        raise ValueError(f"{foreign[0]!r:.200} is no file that tasks stage for this batch")
    return directory


def _numbers_of(section: Iterable[Any]) -> tuple[int, int, int, int, int, int]:
    """What a document says of a section, behind its object."""
    partition, start, length, rows, chunks, crc = _integers(section)
    return partition, start, length, rows, chunks, crc


def _integers(numbers: Iterable[Any]) -> list[int]:
    found = list(numbers)
    if any(type(number) is not int or number < 0 for number in found):
        raise ValueError(f"{found} are not whole numbers from 0 on")
    return found
