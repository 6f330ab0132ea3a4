"""Requests about consumer groups."""
