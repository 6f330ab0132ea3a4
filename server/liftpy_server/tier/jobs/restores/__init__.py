"""Jobs that bring streams back from a bucket."""
