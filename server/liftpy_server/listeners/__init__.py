"""TCP listeners of a node: whom they let in, what they refuse, and how many files that takes."""
