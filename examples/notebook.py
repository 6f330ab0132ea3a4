"""The same without asyncio: for scripts, the interactive interpreter and notebooks."""

import liftpy


def main() -> None:
    """Run the example."""
    with liftpy.connect_sync() as lift:
        lift.create_stream("example-notes", subject="example.notes.>")
        ack = lift.publish("example.notes.a", b"first")
        with lift.publisher() as publisher:
            for number in range(10):
                publisher.publish("example.notes.b", b"note %d" % number)

        for message in lift.consume("example-notes", start=ack.offset, stop="latest", subjects="example.notes.a"):
            print(message.offset, message.subject, message.value)

        table = lift.to_arrow("example-notes", start=8, columns=["offset", "value"])  # lift.to_pandas makes a frame
        print(table.to_pylist())


if __name__ == "__main__":
    main()
