"""FedPer: the body is averaged, the head is personal; both are trained together.

Arivazhagan et al., "Federated Learning with Personalization Layers", arXiv 1912.00818, 2019. With base layers ``w_B``
and personalization layers ``w_P``, client ``j`` takes ``(w_B, w_Pj) <- (w_B, w_Pj) - eta grad F_j(w_B, w_Pj)`` over its
local epochs; the server takes the mean of ``w_B``. The paper personalizes the classifier and up to three residual
blocks below it; here only the classifier, unless ``personal_blocks`` is set.
"""

from typing import ClassVar

from pydantic import Field

from fedbasis.methods.base import About, MethodConfig, Ways
from fedbasis.methods.shared.partial import Partial


class FedPerConfig(MethodConfig):
    """How much of the network is personal."""

    personal_blocks: int | None = Field(
        None, ge=0, description="number of personal blocks, counted from the output; unset: only the classifier"
    )


class FedPer(Partial):
    """The head is personal."""

    about: ClassVar[About] = About(
        name="fedper",
        title="FedPer",
        paper="Arivazhagan et al. 2019",
        sends="the body (less than 1 model)",
        keeps="the head",
        new_client="the mean body under the initial head; the head is trained (lp), or both (ft)",
    )
    ways: ClassVar[Ways] = Ways(default=("lp", "ft"))
    Config: ClassVar[type[MethodConfig]] = FedPerConfig
    config: FedPerConfig

    def setup(self) -> None:
        """Check the settings against the network."""
        self.require_blocks("personal_blocks", self.config.personal_blocks)

    @property
    def personal(self) -> frozenset[str]:
        """The classifier, or the tensors of the last blocks."""
        chosen, blocks = self.config.personal_blocks, len(self.task.layout.blocks)
        return self.task.head if chosen is None else self.tensors_of(blocks - chosen, blocks)
