"""Child processes that work for a node, and the lines that both say to each other."""
