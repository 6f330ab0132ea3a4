"""Admin requests and their typed answers."""
