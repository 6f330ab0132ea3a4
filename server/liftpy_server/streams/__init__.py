"""The streams of a node: opened, changed and closed as the metadata say, and what they listen to."""
