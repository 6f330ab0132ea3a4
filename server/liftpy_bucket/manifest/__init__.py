"""Manifests: the small JSON documents that say which objects count, and what holds them."""
