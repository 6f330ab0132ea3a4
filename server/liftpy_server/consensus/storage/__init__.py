"""What a voter keeps on disk: its journal, twice, and its snapshot."""
