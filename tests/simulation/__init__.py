"""A cluster in one process and one thread: everything that happens follows from a seed."""
