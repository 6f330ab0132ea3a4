"""Settings of a node, and its limits."""
