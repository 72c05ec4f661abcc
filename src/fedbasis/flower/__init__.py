"""Real federations on Flower: every method of the registry, unchanged, on nodes that keep their data.

Only the modules of this package import flwr. ``settings``, ``expected`` and ``node`` do not need it; the others need
the extra ``flower``: run ``pip install -e '.[flower]'`` in the checkout.
"""
