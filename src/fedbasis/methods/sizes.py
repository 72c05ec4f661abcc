"""How many numbers are learned in common, and how many by each client: FedBasis beside a hypernetwork (pFedHN).

Computed from the shapes alone, because a hypernetwork of a large network would not fit the memory.
"""

from dataclasses import dataclass

from fedbasis.networks.models import Network, classifier_of


@dataclass(frozen=True)
class Learned:
    """Numbers of trained parameters."""

    model: int
    """Of one ordinary network, |theta|."""
    shared: int
    """Learned by all clients together, Q."""
    own: int
    """Learned by each client alone."""

    @property
    def models(self) -> float:
        """What is shared, in models."""
        return self.shared / self.model


def of_fedbasis(network: Network, bases: int, major: bool = True, classifier: bool = False) -> Learned:
    """Count the bases and a client's coefficients.

    Args:
        network: The network.
        bases: The number of bases.
        major: Whether there is a major basis.
        classifier: Whether a client also trains its classifier, as in the paper's experiments.

    Example:
        >>> counted = of_fedbasis(Network("resnet10", 7, 32, {"width": 16}), bases=4, classifier=True)
        >>> counted.model, counted.shared // counted.model, counted.own
        (308439, 5, 923)
    """
    module = network.skeleton()
    model = sum(parameter.numel() for parameter in module.parameters())
    head = sum(parameter.numel() for parameter in module.get_submodule(classifier_of(module)).parameters())
    blocks = len(network.layout(module).blocks)
    return Learned(model, (bases + major) * model, bases * blocks + (head if classifier else 0))


def of_pfedhn(network: Network, embedding: int, hidden: int = 100, layers: int = 3) -> Learned:
    """Count the weights of a hypernetwork and a client's embedding.

    Args:
        network: The network whose parameters are generated.
        embedding: Numbers of an embedding; its authors take 1 + clients / 4.
        hidden: Width of the hidden layers; its authors' is 100.
        layers: Hidden layers after the first; its authors' are 3.

    Example:
        >>> round(of_pfedhn(Network("resnet18", 7, 224), embedding=21).models)
        101
    """
    model = sum(parameter.numel() for parameter in network.skeleton().parameters())
    inner = hidden * (embedding + 1) + layers * hidden * (hidden + 1)
    return Learned(model, inner + model * hidden + model, embedding)
