"""Connections: to NATS for requests, to nodes for records, and what a client knows of the cluster."""
