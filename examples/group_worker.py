"""Share the work on a stream among processes: run this several times at once.

The group remembers how far it is. A message counts as done when the next one is asked for: one whose handling raises,
or that was in hand when the process died, comes again.
"""

import asyncio

import liftpy


async def main() -> None:
    """Run the example."""
    async with liftpy.connect() as lift:
        await lift.create_stream("example-jobs", subject="example.jobs.>", partitions=4)
        async with lift.publisher() as publisher:
            for number in range(100):
                await publisher.publish("example.jobs.new", b"job %d" % number, key=b"%d" % number)

        done = 0
        async with lift.consume("example-jobs", group="workers") as worker:
            async for message in worker:
                assert message.value is not None  # the work itself would stand here
                done += 1
                if done % 25 == 0:
                    await worker.commit(message)  # the one in hand, too; others every few seconds and at the end
                if done == 100:
                    break

        committed = await lift.committed("workers", "example-jobs")
        print(f"{done} jobs done; the group goes on at", sum(place.offset for place in committed.values()))


if __name__ == "__main__":
    asyncio.run(main())
