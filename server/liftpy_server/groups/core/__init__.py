"""Consumer groups: who reads which partition, and how far. Pure; a node drives it."""
