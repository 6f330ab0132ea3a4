"""Planned changes of leaders: the next leader listens before the last one ends, and nothing falls between them."""
