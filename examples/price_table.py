"""A live table: the last price of every instrument, kept up to date from a compacted stream."""

import asyncio

import liftpy


async def main() -> None:
    """Run the example."""
    async with liftpy.connect() as lift:
        await lift.create_stream("example-prices", subject="example.prices.>", compact=True)
        for key, price in ((b"EURUSD", b"1.0873"), (b"GBPUSD", b"1.2650"), (b"EURUSD", b"1.0880")):
            await lift.publish("example.prices.fx", price, key=key)

        async with lift.table("example-prices", decode=float) as prices:  # reads what there is, and goes on reading
            print("EURUSD", prices[b"EURUSD"])
            print(dict(prices.items()))

            changes = prices.changes()
            ack = await lift.publish("example.prices.fx", b"1.0901", key=b"EURUSD")
            await prices.wait_for(ack)  # to read what one has written
            print("EURUSD", prices[b"EURUSD"])

            await lift.publish("example.prices.fx", None, key=b"GBPUSD")  # a tombstone: the key is gone
            async for change in changes:
                print(f"{change.key.decode()}: {change.old} -> {change.new} at offset {change.offset}")
                if change.new is None:
                    break

            print(prices.to_arrow().num_rows, "row for Arrow")


if __name__ == "__main__":
    asyncio.run(main())
