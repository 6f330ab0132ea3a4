"""The node: it has jobs done as the schedule says, and tells others what became of them."""
