"""Commands that run a cluster on this machine, with the servers that they start."""
