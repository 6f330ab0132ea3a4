"""What the cluster agrees on: nodes, streams, partitions. Changed only by commands, through `MetadataStore`."""
