"""The disk, the files that are open, and small files with a checksum."""
