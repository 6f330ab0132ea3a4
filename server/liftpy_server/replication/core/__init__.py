"""The replication of one partition as a pure state machine: inputs and `now` in, effects out.

`replica.Replica` is the entry. Nothing here reads a clock, waits, or touches a disk or a socket; asyncio drives it in
production and a seeded simulator drives it in the tests.
"""
