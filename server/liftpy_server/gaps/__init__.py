"""Gaps: times during which messages may have been published that are not in a partition."""
