"""Key compaction of segments: what is kept, and how it is written anew."""
