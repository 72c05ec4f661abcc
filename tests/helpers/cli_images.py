"""Small images for tests of the command line, of federations and of the library."""

from shapes import CLASSES, draw, shapes_examples, write_images

__all__ = ["CLASSES", "draw", "shapes_examples", "write_images"]
