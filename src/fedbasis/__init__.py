"""FedBasis: personal image classifiers for clients nobody has seen before."""

__version__ = "0.1.0"
