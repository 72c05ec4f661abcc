"""Training: rounds, run folders, events, clipping and differential privacy."""
