"""Tests of the edge export."""
