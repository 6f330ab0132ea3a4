"""Consuming: start offsets, fetches from nodes, prefetched records, and delivery to the application."""
