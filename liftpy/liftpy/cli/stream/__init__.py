"""Commands about streams, and those that publish to them and read them."""
