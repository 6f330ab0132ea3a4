"""The shell that drives the coordinators of consumer groups on a node: log, time, requests and commits."""
