"""Arithmetic on named tensors: flat views, blocks, means, seeds, tensor files."""
