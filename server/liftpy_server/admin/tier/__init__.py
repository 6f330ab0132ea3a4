"""Requests about the bucket, and restoring from it."""
