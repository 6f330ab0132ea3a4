"""The manifest of a node's stream-set objects."""
