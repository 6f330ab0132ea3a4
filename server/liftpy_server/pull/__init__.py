"""The pull server: consumers and followers fetch whole record batches, which go from the page cache to the socket."""
