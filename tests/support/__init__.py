"""What tests of several packages share: damage, generators, models."""
