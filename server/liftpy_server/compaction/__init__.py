"""Key compaction on a node: a process of its own does the work, and asks the node for the swaps."""
