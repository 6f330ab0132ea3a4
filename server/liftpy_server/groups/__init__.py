"""Consumer groups: the pure coordinators, and the host that drives them on a node."""
