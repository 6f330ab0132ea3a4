"""Connections to NATS of the node's own: for ingest and for acks."""
