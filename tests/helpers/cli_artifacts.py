"""What can be wrong with an artifact, for the commands that read one."""

from serving.artifacts import edit
from serving.test_artifact import DAMAGES, no_space, no_space_in_rust

__all__ = ["DAMAGES", "edit", "no_space", "no_space_in_rust"]
