"""liftpy and JetStream, side by side on one machine. Run it with `make bench`."""
