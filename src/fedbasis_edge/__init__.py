"""A new client of FedBasis without torch: published bases and a folder of images in, one ordinary model out.

It needs numpy, onnxruntime and Pillow. The training step comes with the bases, as an ONNX graph
(``fedbasis export BASES --to edge``).

Example:
    >>> import fedbasis_edge
    >>> fedbasis_edge.personalize  # doctest: +ELLIPSIS
    <function personalize at ...>
"""

from fedbasis_edge.bundle import Bundle, open_bundle
from fedbasis_edge.fit import Personal, Progress, personalize
from fedbasis_edge.model import EdgeModel, open_model, write_model

__all__ = ["Bundle", "EdgeModel", "Personal", "Progress", "open_bundle", "open_model", "personalize", "write_model"]
