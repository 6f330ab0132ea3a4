"""Work on history in the bucket: collecting, compacting, forking, sealing, verifying, exporting."""
