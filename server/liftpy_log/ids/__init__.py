"""Ids of messages: the deduplication window."""
