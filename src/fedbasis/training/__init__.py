"""Rounds, run folders, clipping and privacy."""
