"""A line of the report, and how much is measured."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field, replace

SIZES = {128: "128 B", 1_024: "1 KiB", 65_536: "64 KiB"}


@dataclass
class Row:
    """One line of the report: the median of each contestant's runs."""

    workload: str
    durability: str
    unit: str
    runs: dict[str, list[float]] = field(default_factory=dict)
    peer: str = "JetStream"
    note: str = ""
    smaller_is_better: bool = False
    is_absolute: bool = False  # the goal is a figure, not a ratio
    told: dict[str, str] = field(default_factory=dict)  # by system, what it says of itself; it was not run

    def add(self, contestant, value):
        self.runs.setdefault(contestant, []).append(value)

    def median(self, contestant):
        values = self.runs.get(contestant)
        return statistics.median(values) if values else None

    @property
    def ratio(self):
        ours, theirs = self.median("liftpy"), self.median(self.peer)
        return ours / theirs if ours and theirs else None


@dataclass(frozen=True)
class Plan:
    """How much of everything."""

    runs: int
    plain: int
    acked: dict[int, int]
    single: int
    streams: int
    consume: int
    followed: int
    follower_runs: int
    idle_s: float
    idle_streams: tuple[int, ...] = (1_000,)
    compacted: int = 10_000_000
    compacted_keys: int = 1_000_000
    offsets_s: float = 12.0
    places: int = 4_000
    replayed: int = 1_000_000
    tiered: int = 1 << 30
    ingested: int = 1 << 28
    quiet_streams: int = 1_000
    month_streams: int = 4_000
    month_days: int = 30
    restored: int = 1_000_000
    spark_records: int = 5_000_000
    micro_batches: int = 30
    chunked: int = 30_000
    s3a_jars: str | None = None  # a directory, or that they are to be fetched; without them there is no S3A

    @classmethod
    def full(cls):
        acked = {128: 400_000, 1_024: 200_000, 65_536: 6_000}
        return cls(5, 2_000_000, acked, 4_000, 1_000, 2_000_000, 3 << 20, 3, 20.0)

    @classmethod
    def quick(cls):
        acked = {128: 150_000, 1_024: 60_000, 65_536: 2_000}
        quick = cls(3, 1_000_000, acked, 2_000, 1_000, 1_000_000, 1 << 19, 1, 10.0)
        quick = replace(quick, tiered=1 << 28, quiet_streams=200, month_streams=500, restored=200_000)
        quick = replace(quick, spark_records=1_000_000, micro_batches=10)
        return replace(
            quick, compacted=1_000_000, compacted_keys=100_000, offsets_s=10.0, places=8_000, replayed=200_000
        )
