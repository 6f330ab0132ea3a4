"""Consumer groups: membership, assigned partitions, and committed offsets."""
