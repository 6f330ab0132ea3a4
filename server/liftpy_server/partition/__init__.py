"""A partition on this node: it appends messages, commits them, knows their ids, and acknowledges them."""
