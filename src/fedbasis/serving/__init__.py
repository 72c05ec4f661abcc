"""Personalize, evaluate, artifacts, and a new client's own folder."""
