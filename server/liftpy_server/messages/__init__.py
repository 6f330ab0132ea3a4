"""Messages as they came: runs of one subscription, and single messages whose options were read."""
