"""What a new client computes, as pure functions: one training step, the logits, and the statistics of its images.

The step is that of ``fedbasis personalize`` for the way ``coefficients+classifier``: the coefficients psi by the
method's optimizer, an offset of the classifier by SGD with momentum and weight decay. All state goes in and comes out.
The combination is ``V_0 + sum_k c_k (V_k - V_0)``: coefficients add up to one, and bases are nearly parallel, so that
the gradient is in what differs. With ``V_k`` itself it would be lost in the rounding of float32.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value
from torch.nn.modules.batchnorm import _NormBase

from fedbasis.methods.fedbasis import FedBasis, coefficients
from fedbasis.methods.fedbasis.learning import OptimizerName
from fedbasis.networks.inputs import Preprocessing
from fedbasis.networks.statistics import Statistics, has_statistics
from fedbasis.tensors.blocks import LayoutEntry
from pflbed.errors import InputError

BETAS, EPSILON = (0.9, 0.999), 1e-8
"""Of Adam, as in ``networks.optimizers.FlatAdam``."""
MOMENTUM = 0.9
"""Of SGD, as ``fedbasis personalize`` has it."""
CHUNK = 4096
"""Numbers that are summed at once: a float32 sum over millions of products loses digits."""


def traceable(module: nn.Module) -> nn.Module:
    """Copy a network, without the counters of its normalization layers, which are changed in place."""
    copy = deepcopy(module)
    for name, layer in copy.named_modules():
        if isinstance(layer, _NormBase) and layer.track_running_stats:
            layer.num_batches_tracked = None  # it is counted for momentum None only
            if layer.momentum is None:
                raise InputError(
                    f"The edge export needs running statistics with a momentum, but the layer '{name}' has momentum "
                    "None; set a number."
                )
    return copy


def require_no_dropout(module: nn.Module) -> None:
    """Raise an ``InputError`` for a network with dropout: a graph has no random numbers."""
    for name, layer in module.named_modules():
        if isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0:
            raise InputError(
                f"The edge export needs a network without random layers, but '{name}' is a dropout of {layer.p:g}; "
                "train with a rate of 0, or export with --statistics frozen if the network has statistics."
            )


class MeasuredNetwork:
    """A network whose layers normalize by the batch, and that returns the statistics of the batch.

    Running statistics with a momentum of 1 would be the same, but they are changed in place, and outside of gradients
    torch does not trace that.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = deepcopy(module).train()
        self._found: dict[str, Tensor] = {}
        for name, layer in self._module.named_modules():
            if isinstance(layer, nn.modules.dropout._DropoutNd):
                layer.p = 0.0
            if isinstance(layer, _NormBase) and layer.track_running_stats:
                layer.track_running_stats = False
                layer.running_mean = layer.running_var = None
                layer.register_forward_pre_hook(partial(self._measure, name))

    def _measure(self, name: str, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        x = inputs[0]
        over = [d for d in range(x.dim()) if d != 1]
        mean = x.mean(over, keepdim=True)
        count = x.numel() // x.shape[1]
        self._found[f"{name}.running_mean"] = mean.reshape(-1)
        self._found[f"{name}.running_var"] = (x - mean).square().mean(over) * (count / (count - 1))

    def __call__(self, weights: Mapping[str, Tensor], inputs: Tensor) -> dict[str, Tensor]:
        """Return the mean and the unbiased variance of every layer's inputs, by the names of the statistics."""
        self._found = {}
        functional_call(self._module, dict(weights), (inputs,))
        return self._found


class NewClientGraphs:
    """The functions that are exported, for one set of published bases.

    ``bases`` in their arguments is one matrix [rows, numbers] per block, then one per block that has statistics, if
    the statistics are not the client's own. Everything that is not traced is computed here, before tracing.

    Args:
        method: The method, bound to its network.
        statistics: The normalization statistics of the new client.
        dtype: The type of the arithmetic.
    """

    def __init__(self, method: FedBasis, statistics: Statistics, dtype: torch.dtype = torch.float32) -> None:
        self.method, self.statistics, self.dtype = method, statistics, dtype
        layout, how = method.task.layout, method.task.recipe.preprocessing
        self.module = traceable(method.task.network.build()).to(dtype)
        """The network; its weights are not used."""
        self.has_statistics = has_statistics(self.module)
        """Whether the network has running statistics; if not, all choices of statistics are the same."""
        if self.trains_by_batch:
            require_no_dropout(self.module)
        self._measuring = MeasuredNetwork(self.module)
        self.blocks = range(len(layout.blocks))
        self.classifier = layout.block_of(method.task.classifier)
        """The number of the classifier's block."""
        self.statistics_sizes = [layout.size(block, False) for block in self.blocks]
        self._integers = {name: b for name, b in self.module.named_buffers() if not b.is_floating_point()}
        self._scale = torch.tensor([1 / (255 * s) for s in how.std], dtype=dtype)
        self._shift = torch.tensor([-m / s for m, s in zip(how.mean, how.std, strict=True)], dtype=dtype)
        self._class_numbers = torch.arange(method.task.network.classes)

    @property
    def trains_by_batch(self) -> bool:
        """Whether the network is in training mode during a step."""
        return self.statistics == "own" or not self.has_statistics

    @property
    def keeps_statistics(self) -> bool:
        """Whether statistics are part of the client's state."""
        return self.has_statistics and self.statistics == "own"

    @property
    def combines_statistics(self) -> bool:
        """Whether the statistics are combined like the weights."""
        return self.has_statistics and self.statistics != "own"

    @property
    def optimizer(self) -> OptimizerName:
        """The optimizer of psi."""
        return self.method.config.coefficient_optimizer

    def entries(self, block: int, trained: bool) -> list[LayoutEntry]:
        """Return a block's parameters or statistics in the order of its flat vector."""
        return [entry for entry in self.method.task.layout.select(trained) if entry.block == block]

    def combined(self, bases: Sequence[Tensor], psi: Tensor, offset: Tensor) -> list[Tensor]:
        """Return the flat weights of every block."""
        c = self._coefficients(psi)
        flats = [_combine(bases[block], c[block]) for block in self.blocks]
        flats[self.classifier] = flats[self.classifier] + offset
        return flats

    def combined_statistics(
        self, bases: Sequence[Tensor], psi: Tensor, own: Tensor | None, weight: Tensor | None
    ) -> Tensor:
        """Return the flat statistics of the bases' combination, moved towards the client's own by ``weight``."""
        c, matrices = self._coefficients(psi), iter(bases[len(self.blocks) :])
        flat = torch.cat([_combine(next(matrices), c[b]) for b in self.blocks if self.statistics_sizes[b]])
        return flat if own is None or weight is None else flat + weight * (own - flat)

    def _coefficients(self, psi: Tensor) -> Tensor:
        return coefficients.combination(coefficients.alpha(psi), self.method.config.major)

    def named(self, flats: Sequence[Tensor], trained: bool) -> dict[str, Tensor]:
        """Return named tensors from one flat vector per block."""
        made: dict[str, Tensor] = {}
        for block in self.blocks:
            if entries := self.entries(block, trained):
                parts = flats[block].split_with_sizes([entry.stop - entry.start for entry in entries])
                made |= {entry.name: part.reshape(entry.shape) for entry, part in zip(entries, parts, strict=True)}
        return made

    def inputs(self, pixels: Tensor) -> Tensor:
        """Turn uint8 pixels [N, H, W, C] into inputs [N, C, H, W], as ``Preprocessing`` does."""
        pixels = _cropped(pixels, self.method.task.recipe.preprocessing)
        return (pixels.to(self.dtype) * self._scale + self._shift).permute(0, 3, 1, 2)

    def forward(
        self, module: nn.Module, weights: Mapping[str, Tensor], statistics: Tensor | None, pixels: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the logits, and the flat ``statistics`` after the pass, if there are any."""
        kept = {}
        if statistics is not None:
            split = self.named(statistics.split_with_sizes(self.statistics_sizes), False)
            kept = {name: value.clone() for name, value in split.items()}
        constants = {name: value.clone() for name, value in self._integers.items()}
        logits: Tensor = functional_call(module, {**weights, **kept, **constants}, (self.inputs(pixels),))
        order = [entry.name for block in self.blocks for entry in self.entries(block, False)]
        return logits, {"statistics": torch.cat([kept[name].reshape(-1) for name in order])} if kept else {}

    def loss(
        self, flats: Sequence[Tensor], statistics: Tensor | None, pixels: Tensor, labels: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the mean cross entropy of a batch, and the ``statistics`` after the pass, if there are any."""
        module = self.module.train(self.trains_by_batch)
        logits, kept = self.forward(module, self.named(flats, True), statistics, pixels)
        wanted = (labels.unsqueeze(1) == self._class_numbers).to(logits.dtype)
        return -(torch.log_softmax(logits, 1) * wanted).sum(1).mean(), kept

    def step(self, bases: Sequence[Tensor], state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Take one step: ``state`` holds the client's state, pixels, labels and rates; returns loss and state."""
        psi, offset, rates = state["psi"], state["offset"], state["rates"]
        flats = self.combined(bases, psi, offset)
        statistics = self._statistics(bases, state)

        def loss_of(flats: Sequence[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
            return self.loss(flats, statistics, state["pixels"], state["labels"])

        gradients, (loss, kept) = grad_and_value(loss_of, has_aux=True)(flats)
        # The first row's coefficient has gradient <V_0 - V_0, g>: up to a constant, which the softmax does not see.
        of_c = torch.stack([_pulled_back(bases[b], gradients[b]) for b in self.blocks])
        of_c = torch.cat([torch.zeros_like(psi[:, :1]), of_c], 1)
        new = self._psi_step(state, coefficients.pull_back(psi, of_c, self.method.config.major), rates[0])
        velocity = MOMENTUM * state["velocity"] + gradients[self.classifier] + rates[2] * flats[self.classifier]
        new |= {"offset": offset - rates[1] * velocity, "velocity": velocity}
        new |= kept if self.keeps_statistics else {}
        return {"loss": loss, **{f"{name}_out": value for name, value in new.items()}}

    def _psi_step(self, state: Mapping[str, Tensor], gradient: Tensor, rate: Tensor) -> dict[str, Tensor]:
        if self.optimizer == "sgd":
            first = MOMENTUM * state["first"] + gradient
            return {"psi": state["psi"] - rate * first, "first": first}
        steps = state["steps"] + 1
        first = BETAS[0] * state["first"] + (1 - BETAS[0]) * gradient
        second = BETAS[1] * state["second"] + (1 - BETAS[1]) * gradient * gradient
        one, two = (1 - torch.pow(beta, steps) for beta in BETAS)
        psi = state["psi"] - rate / one * first / (second.sqrt() / two.sqrt() + EPSILON)
        return {"psi": psi, "first": first, "second": second, "steps": steps}

    def apply(self, bases: Sequence[Tensor], state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the logits of images with the current model."""
        flats = self.combined(bases, state["psi"], state["offset"])
        weights, statistics = self.named(flats, True), self._statistics(bases, state)
        return {"logits": self.forward(self.module.eval(), weights, statistics, state["pixels"])[0]}

    def combine(self, bases: Sequence[Tensor], state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the current model: its flat weights, block after block, and its statistics if they are combined."""
        made = {"weights": torch.cat(self.combined(bases, state["psi"], state["offset"]))}
        if self.combines_statistics and (used := self._statistics(bases, state)) is not None:
            made["statistics_out"] = used
        return made

    def measure(self, bases: Sequence[Tensor], state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the statistics of a batch under the uniform combination, as ``statistics.statistics_of`` has them."""
        psi = bases[0].new_zeros(len(self.blocks), self.method.config.bases)
        c = self._coefficients(psi)
        flats = [_combine(bases[block], c[block]) for block in self.blocks]
        found = self._measuring(self.named(flats, True), self.inputs(state["pixels"]))
        order = [entry.name for block in self.blocks for entry in self.entries(block, False)]
        return {"statistics": torch.cat([found[name] for name in order])}

    def _statistics(self, bases: Sequence[Tensor], state: Mapping[str, Tensor]) -> Tensor | None:
        if self.combines_statistics:
            return self.combined_statistics(bases, state["psi"], state.get("statistics"), state.get("weight"))
        return state["statistics"] if self.has_statistics else None


def _apart(matrix: Tensor) -> Tensor:
    """Return how far the bases are from the first, in chunks: [chunks, rows - 1, numbers]."""
    apart = matrix[1:] - matrix[:1]
    size = min(apart.shape[1], CHUNK)
    chunks = -(-apart.shape[1] // size)
    if missing := chunks * size - apart.shape[1]:
        apart = nn.functional.pad(apart, (0, missing))
    return apart.reshape(len(apart), chunks, size).transpose(0, 1)


def _combine(matrix: Tensor, c: Tensor) -> Tensor:
    if len(matrix) == 1:
        return matrix[0]
    return matrix[0] + (c[1:].reshape(1, 1, -1) @ _apart(matrix)).reshape(-1)[: matrix.shape[1]]


def _pulled_back(matrix: Tensor, gradient: Tensor) -> Tensor:
    """Return the gradient by the coefficients of all rows but the first."""
    if len(matrix) == 1:
        return gradient[:0]
    apart = _apart(matrix)
    chunks, _, size = apart.shape
    if missing := chunks * size - len(gradient):
        gradient = nn.functional.pad(gradient, (0, missing))
    return (apart @ gradient.reshape(chunks, size, 1)).sum(0).reshape(-1)


def _cropped(pixels: Tensor, how: Preprocessing) -> Tensor:
    if how.crop is None:
        return pixels
    height, width = (how.crop, how.crop) if isinstance(how.crop, int) else how.crop
    above, left = (pixels.shape[1] - height) // 2, (pixels.shape[2] - width) // 2
    return pixels[:, above : above + height, left : left + width]
