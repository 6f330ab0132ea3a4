"""The bucket behind a node: what is moved there when, and the process that does it."""
