"""Every method with the settings by which it is tried, for federations."""

from battery import FIRST, VARIANTS, clients, make, same

__all__ = ["FIRST", "VARIANTS", "clients", "make", "same"]
