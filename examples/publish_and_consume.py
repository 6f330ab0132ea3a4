"""Publish messages, and read them from wherever you like."""

import asyncio

import liftpy


async def main() -> None:
    """Run the example."""
    # The address comes from NATS_URL or a context of the nats CLI; without them it is nats://127.0.0.1:4222.
    async with liftpy.connect() as lift:
        await lift.create_stream("example-orders", subject="example.orders.>")  # does nothing when it is there

        ack = await lift.publish("example.orders.new", b"order 0", key=b"0")
        print(f"the first one is on disk at offset {ack.offset}")

        async with lift.publisher() as publisher:  # gathers many messages into batches
            for number in range(1, 1_000):
                await publisher.publish("example.orders.new", b"order %d" % number, key=b"%d" % number)

        async for message in lift.consume("example-orders", start=997, stop="latest"):
            print(message.offset, message.key, message.value)


if __name__ == "__main__":
    asyncio.run(main())
