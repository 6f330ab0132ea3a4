"""Read a stream as Arrow: in batches as they come, or a range as a table. `to_pandas()` of either makes a frame."""

import asyncio

import pyarrow as pa
import pyarrow.compute as pc

import liftpy


async def main() -> None:
    """Run the example."""
    async with liftpy.connect() as lift:
        await lift.create_stream("example-readings", subject="example.readings.>")
        async with lift.publisher() as publisher:
            values = [b"%d" % number for number in range(100_000)]
            await publisher.publish_batch("example.readings.a", {"value": pa.array(values)})

        count, total = 0, 0
        async for batch in lift.consume_batches("example-readings", start="earliest", stop="latest"):
            count += batch.num_rows
            total += pc.sum(batch.column("value").cast(pa.string()).cast(pa.int64())).as_py()
        print(f"{count} readings, {total} in all")

        table = await lift.to_arrow("example-readings", start=10, stop=13, columns=["offset", "value"])
        print(table.to_pylist())


if __name__ == "__main__":
    asyncio.run(main())
