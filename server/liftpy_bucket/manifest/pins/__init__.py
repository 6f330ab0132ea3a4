"""Pins: what holds objects, or the records of a range, against retention and collection."""
