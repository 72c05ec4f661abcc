"""Real federations on Flower: every method of the registry, unchanged, over machines that keep their data.

Only the modules of this package import flwr. ``settings``, ``expected`` and ``node`` do not need it; the others want
``pip install 'fedbasis[flower]'``.
"""
