"""Commands about the nodes of a cluster, and the one that runs a node."""
