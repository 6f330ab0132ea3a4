"""Replication in production: the pure core of `replication`, driven by asyncio, on real logs and connections."""
