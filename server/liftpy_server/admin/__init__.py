"""Administration over NATS: a micro service whose endpoints take and give JSON."""
