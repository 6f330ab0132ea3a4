"""What several jobs are made of."""
