"""A liftpy node.

The order in which a message becomes durable is written here, and nowhere contradicted:

    append; persist and replicate, side by side; commit when it is durable on the in-sync replica set;
    then acknowledge; then tier; then delete.

`node` puts the parts together. `ingest` turns the NATS socket into batches, `partition` sequences, commits and
acknowledges them, `metadata` holds what the cluster agrees on, `pull` serves consumers, `admin` answers requests over
NATS. One event loop runs all of it; a thread runs group commit, another the metadata journal.
"""
