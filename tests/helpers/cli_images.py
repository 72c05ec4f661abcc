"""Small images for tests of the command line, of federations and of the library."""

from conftest import CLASSES, draw, shapes_examples, write_images

__all__ = ["CLASSES", "draw", "shapes_examples", "write_images"]
