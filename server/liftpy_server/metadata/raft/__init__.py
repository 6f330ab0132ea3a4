"""Metadata consensus of one to five voters: pysyncobj's core, hardened so that no acknowledged command is lost."""
