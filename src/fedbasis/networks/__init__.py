"""Architectures, their classifier and features, and the one local training loop."""
