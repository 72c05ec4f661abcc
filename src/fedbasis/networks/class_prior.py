"""The class prior of a new client: the logits are shifted by the logarithm of the client's own class frequencies.

A model that was trained on many clients predicts as if every class was as frequent as in all of them. A client knows
how frequent classes are among its own images, and by Bayes' rule its logits differ by the logarithm of these
frequencies (Saerens et al., "Adjusting the outputs of a classifier to new a priori probabilities: a simple procedure",
Neural Computation 2002). With n_y images of class y among n, C classes and a pseudo-count k:

    shift_y = log((n_y + k) / (n + k C)), minus its mean over the classes

The shift is added to the bias of the classifier. Nothing is trained for it.
"""

import torch
from torch import Tensor

from fedbasis.tensors.params import State


def log_prior(labels: Tensor, classes: int, count: float) -> Tensor:
    """Return the shift of the logits, one number per class.

    Args:
        labels: The classes of the client's images.
        classes: The number of classes.
        count: The pseudo-count, by which classes that the client does not have stay possible.

    Example:
        >>> log_prior(torch.tensor([0, 0, 0, 1]), 2, 1.0).tolist()
        [0.3465735912322998, -0.3465735912322998]
    """
    frequencies = torch.bincount(labels.cpu(), minlength=classes).double() + count
    shift = (frequencies / frequencies.sum()).log()
    return (shift - shift.mean()).float()


def with_prior(server: State, bias: str, shift: Tensor) -> State:
    """Return a published state with a shifted bias in all of its models.

    Coefficients of a combination add up to one, so the combined bias of bases is shifted by the same numbers.
    """
    return {
        group: {
            name: tensor + shift.to(tensor) if name == bias and tensor.shape == shift.shape else tensor
            for name, tensor in tensors.items()
        }
        for group, tensors in server.items()
    }
