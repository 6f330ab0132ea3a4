"""Short ways to what a stream holds and what a node says of it."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

from support.cluster import eventually

if TYPE_CHECKING:
    import liftpy


async def take(consumer: Any, count: int | None = None, timeout_s: float = 60.0) -> list[Any]:
    """What a consumer gives, up to `count` messages."""
    taken = []
    async with asyncio.timeout(timeout_s), consumer:
        async for message in consumer:
            taken.append(message)
            if count is not None and len(taken) == count:
                break
    return taken


async def read_all(lift: liftpy.Lift, stream: str) -> list[liftpy.Message]:
    """Every message that is committed now."""
    return await take(lift.consume(stream, stop="latest"))


async def values(lift: liftpy.Lift, stream: str) -> list[bytes | None]:
    """The values of every message that is committed now."""
    return [message.value for message in await read_all(lift, stream)]


async def delete_streams(lift: liftpy.Lift) -> None:
    """Leave a node that others use as it was found."""
    for stream in [stream.name async for stream in lift.streams()]:
        await lift.delete_stream(stream)


async def high_watermark(lift: liftpy.Lift, stream: str, partition: int = 0) -> int:
    """The offset after the last committed record."""
    return (await lift.stream_info(stream)).partitions[partition].high_watermark


async def gaps(lift: liftpy.Lift, stream: str) -> list[dict[str, Any]]:
    """The stream's gaps, oldest first."""
    return (await lift.stream_info(stream)).raw["gaps"]


async def stored(lift: liftpy.Lift, stream: str, count: int, timeout_s: float = 30.0) -> None:
    """Wait until so many messages are committed."""

    async def enough() -> bool:
        return (await lift.stream_info(stream)).messages >= count

    await eventually(enough, timeout_s, f"{stream} does not hold {count} messages within {timeout_s:g} s")


async def http(port: int, path: str) -> tuple[int, str]:
    """Status and body of a GET."""

    def get() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    return await asyncio.to_thread(get)


async def metric(port: int, name: str, **labels: str) -> float:
    """One sample of /metrics."""
    status, text = await http(port, "/metrics")
    assert status == 200
    shown = ",".join(f'{label}="{value}"' for label, value in labels.items())
    wanted = f"{name}{{{shown}}} " if labels else f"{name} "
    (line,) = [line for line in text.splitlines() if line.startswith(wanted)]
    return float(line.rpartition(" ")[2])
