"""History in a bucket: Parquet objects, manifests that name them, and what keeps both in order.

Rooms, each of which uses only those before it: `store` (object stores, conditional writes), `objects` (records as
Parquet), `manifest` (what says which objects count), `reading`, `upkeep` (collecting, compacting, forking, verifying).
`object_log` is a log of its own on nothing but a store: `docs/howto/object-log.md`.
"""
