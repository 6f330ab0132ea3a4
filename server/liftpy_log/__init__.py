"""The log itself, on disk: segments, indexes, epochs, group commit, recovery, retention.

No network protocol, no NATS and no event loop in here. Clock and disk are constructor arguments, so that a simulator
can stand in for both. One thread at a time may change a `PartitionLog`; `GroupCommit` brings its own thread and
touches of a log only what `begin_round` hands it, until `end_round`.
"""
