"""The coordinators of consumer groups on a node: their log, time, requests and commits."""
