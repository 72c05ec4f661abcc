"""LG-FedAvg: every client learns its own representation (the lower layers); the upper layers are averaged.

Liang et al., "Think Locally, Act Globally: Federated Learning with Local and Global Representations", NeurIPS 2019
Workshop on Federated Learning, arXiv 2001.01523 (2020). With ``l_m`` the local and ``g`` the global layers, a client
takes SGD steps on both, ``(l_m, g) <- (l_m, g) - eta grad CE(g(l_m(x)), y)``; the server averages ``g``.

The paper splits each network by hand (three of five layers are global for MNIST) and has no general rule; here all
blocks but the last are local unless ``local_blocks`` or ``global_blocks`` is set. Collins et al. 2021 share the last
two layers (``global_blocks = 2``). The paper starts from a model that FedAvg has trained: use it as pretrained weights.
"""

from typing import ClassVar, Self

from pydantic import Field, model_validator

from fedbasis.methods.base import About, MethodConfig, Ways
from fedbasis.methods.shared.partial import Partial


class LgFedAvgConfig(MethodConfig):
    """Which blocks are local."""

    local_blocks: int | None = Field(
        None, ge=0, description="number of local blocks, counted from the input; unset: all but the last"
    )
    global_blocks: int | None = Field(
        None, ge=0, description="in place of local_blocks: number of global blocks, counted from the output"
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if self.local_blocks is not None and self.global_blocks is not None:
            raise ValueError("only one of local_blocks and global_blocks can be set")
        return self


class LgFedAvg(Partial):
    """The lower blocks are personal."""

    about: ClassVar[About] = About(
        name="lg-fedavg",
        title="LG-FedAvg",
        paper="Liang et al. 2020",
        sends="the upper blocks (less than 1 model)",
        keeps="the lower blocks",
        new_client="the mean upper blocks on the initial lower ones, all of it trained (ft)",
    )
    ways: ClassVar[Ways] = Ways(default=("ft",))
    Config: ClassVar[type[MethodConfig]] = LgFedAvgConfig
    config: LgFedAvgConfig

    def setup(self) -> None:
        """Check the settings against the network."""
        self.require_blocks("local_blocks", self.config.local_blocks)
        self.require_blocks("global_blocks", self.config.global_blocks)

    @property
    def personal(self) -> frozenset[str]:
        """The tensors of the first blocks."""
        local, shared = self.config.local_blocks, self.config.global_blocks
        if local is None:
            local = len(self.task.layout.blocks) - (1 if shared is None else shared)
        return self.tensors_of(0, local)
