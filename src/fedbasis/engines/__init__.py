"""Engines map a round's work over clients."""
