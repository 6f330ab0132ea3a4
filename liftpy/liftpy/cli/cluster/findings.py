"""What `liftpy doctor` makes of what it measured: pure, so that each limit has a test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from liftpy.cli.units import show_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Finding", "judge_clocks", "judge_files", "judge_fsync", "judge_nats", "judge_space", "judge_versions"]

_FILES_MIN: Final = 16_384
_FSYNC_WARNING_S: Final = 0.02
_FSYNC_PROBLEM_S: Final = 0.2
_SPACE_WARNING: Final = 0.1
_CLOCK_WARNING_S: Final = 1.0
_CLOCK_PROBLEM_S: Final = 10.0
_NATS_MIN: Final = (2, 10)
_RTT_WARNING_S: Final = 0.02


class Finding(NamedTuple):
    """One thing that was looked at.

    Attributes:
        check: What it was.
        state: What to think of it; `unknown` if it could not be looked at.
        text: What was found, with numbers.
        advice: What to do; empty if nothing.
    """

    check: str
    state: Literal["ok", "warning", "problem", "unknown"]
    text: str
    advice: str = ""


def judge_files(soft: int, hard: int) -> Finding:
    """The limit of open files of this process."""
    if soft >= _FILES_MIN:
        return Finding("open files", "ok", f"limit {soft}")
    advice = (
        f"raise it to {_FILES_MIN} or more (LimitNOFILE= of systemd, ulimit -n): connections and segments are files"
    )
    return Finding("open files", "warning", f"limit {soft} (hard {hard})", advice)


def judge_fsync(durations_s: Sequence[float]) -> Finding:
    """How long the disk takes to keep 4 KiB for certain."""
    ordered = sorted(durations_s)
    median, p99 = ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
    text = f"median {median * 1e3:.2f} ms, p99 {p99 * 1e3:.2f} ms over {len(ordered)}"
    if p99 < _FSYNC_WARNING_S:
        return Finding("fsync", "ok", text)
    advice = "every ack waits for it: use a local SSD, and let nothing else write to that disk"
    return Finding("fsync", "warning" if p99 < _FSYNC_PROBLEM_S else "problem", text, advice)


def judge_space(free_bytes: int, total_bytes: int, reserve_bytes: int) -> Finding:
    """What is free where the data is."""
    text = f"{show_bytes(free_bytes)} of {show_bytes(total_bytes)} are free"
    if free_bytes <= reserve_bytes:
        return Finding("disk space", "problem", text, "free some: messages are refused (storage.disk_reserve_bytes)")
    if free_bytes < total_bytes * _SPACE_WARNING:
        return Finding("disk space", "warning", text, "shorten the retention of large streams, or use a larger disk")
    return Finding("disk space", "ok", text)


def judge_clocks(offsets: Mapping[str, tuple[float, float]]) -> Finding:
    """How far the clocks of the nodes are apart.

    Args:
        offsets: By node, seconds by which its clock is ahead of the clock here, and half of what the question took.
    """
    ahead = {node: offset for node, (offset, _) in offsets.items()}
    apart = max(ahead.values()) - min(ahead.values())
    unsure = max(doubt for _, doubt in offsets.values()) * 2
    widest = max(ahead, key=lambda node: abs(ahead[node] - sorted(ahead.values())[len(ahead) // 2]))
    text = f"{len(ahead)} clocks at most {apart:.3f} s apart (measured to {unsure:.3f} s)"
    if apart - unsure < _CLOCK_WARNING_S:
        return Finding("clocks", "ok", text)
    advice = f"let chrony or systemd-timesyncd set the clock of {widest}: times of records follow the leader's clock"
    return Finding("clocks", "warning" if apart - unsure < _CLOCK_PROBLEM_S else "problem", text, advice)


def judge_versions(versions: Mapping[str, str]) -> Finding:
    """The versions of liftpy, by node."""
    if len(set(versions.values())) == 1:
        return Finding("versions", "ok", f"all nodes ({len(versions)}) run {next(iter(versions.values()))}")
    text = ", ".join(f"{node} runs {version}" for node, version in sorted(versions.items()))
    return Finding("versions", "warning", text, "finish the upgrade: all nodes should run one version")


def judge_nats(version: str, rtt_s: float, advice: str | None) -> list[Finding]:
    """The nats-server.

    Args:
        version: Version of the node.
        rtt_s: How long its answer took.
        advice: What its limits for slow consumers call for; None if they are right.
    """
    found = []
    numbers: Any = version.partition("-")[0].split(".")
    is_old = all(each.isdecimal() for each in numbers) and tuple(map(int, numbers[:2])) < _NATS_MIN
    text = f"nats-server {version}"
    found.append(
        Finding("NATS version", "warning", text, "use 2.10 or newer: older ones are not tested")
        if is_old
        else Finding("NATS version", "ok", text)
    )
    text = f"{rtt_s * 1e3:.2f} ms to the server and back"
    if rtt_s < _RTT_WARNING_S:
        found.append(Finding("NATS round trip", "ok", text))
    else:
        found.append(
            Finding("NATS round trip", "warning", text, "put a nats-server next to the nodes: acks wait for it")
        )
    if advice is not None:
        found.append(Finding("NATS limits", "warning", advice, "see nats.conf in the repository"))
    return found
