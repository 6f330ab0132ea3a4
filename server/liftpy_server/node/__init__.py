"""A node: its parts, the order in which they start and stop, and what it does from time to time."""
