"""Which parameter of an ``nn.Module`` belongs to which block, and its offset in that block's flat vector.

A block is a part of a network with its own combination coefficients. All parameters of a block are stored in one flat
vector, and its floating-point buffers (the normalization statistics) in another. So combining bases is one
matrix-vector product per block. Integer buffers (``num_batches_tracked``) are constants of the architecture: they are
never sent, combined or averaged.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from fedbasis.tensors.params import Tensors, require_same
from pflbed.errors import InputError

BlockSpec = int | Mapping[str, Sequence[str]] | None


@dataclass(frozen=True)
class LayoutEntry:
    """One named tensor of the network: its shape, its block, and its range in the block's flat vector."""

    name: str
    shape: torch.Size
    block: int
    start: int
    stop: int
    trained: bool
    channels_last: bool = False
    """Whether the numbers of a convolution's weight are stored in torch's channels-last order."""

    def view(self, flat: Tensor) -> Tensor:
        """Return this tensor as a view into its block's flat vector."""
        part = flat[self.start : self.stop]
        if not self.channels_last:
            return part.view(self.shape)
        outputs, inputs, height, width = self.shape
        return part.view(outputs, height, width, inputs).permute(0, 3, 1, 2)

    def flat(self, tensor: Tensor) -> Tensor:
        """Return the numbers of this tensor in the order of the flat vector."""
        return (tensor.permute(0, 2, 3, 1) if self.channels_last else tensor).reshape(-1)


@dataclass(frozen=True)
class Layout:
    """The order in which a network's tensors are stored, block by block."""

    blocks: tuple[str, ...]
    entries: tuple[LayoutEntry, ...]

    @cached_property
    def shapes(self) -> dict[str, torch.Size]:
        """The shape of every parameter and every statistic, by name."""
        return {entry.name: entry.shape for entry in self.entries}

    def select(self, trained: bool) -> tuple[LayoutEntry, ...]:
        """Return the parameters (trained) or the statistics (not trained)."""
        return self._kinds[trained]

    @cached_property
    def _kinds(self) -> dict[bool, tuple[LayoutEntry, ...]]:
        return {kind: tuple(e for e in self.entries if e.trained is kind) for kind in (True, False)}

    def size(self, block: int, trained: bool) -> int:
        """Return the length of a block's flat vector of parameters (trained) or statistics (not trained)."""
        return max((entry.stop for entry in self.select(trained) if entry.block == block), default=0)

    def block_of(self, prefix: str) -> int:
        """Return the block that holds all parameters under a module prefix, such as the classifier's."""
        blocks = {entry.block for entry in self.select(True) if _under(entry.name, prefix)}
        if len(blocks) != 1:
            raise InputError(
                f"The parameters under '{prefix}' must be in exactly one block, but they are in {len(blocks)}; "
                f"the blocks are {', '.join(self.blocks)}."
            )
        return blocks.pop()

    def flatten(self, tensors: Mapping[str, Tensor], trained: bool = True, where: str = "A model") -> list[Tensor]:
        """Copy named tensors into one flat vector per block (empty for a block that has none)."""
        require_same(tensors, self.shapes, where)
        flats: list[list[Tensor]] = [[] for _ in self.blocks]
        for entry in self.select(trained):
            flats[entry.block].append(entry.flat(tensors[entry.name]))
        first = next(iter(tensors.values()))
        return [torch.cat(parts) if parts else first.new_empty(0) for parts in flats]

    def unflatten(self, weights: Sequence[Tensor], statistics: Sequence[Tensor]) -> Tensors:
        """Split flat vectors into named tensors, which are views into them; the inverse of ``flatten``."""
        return {
            entry.name: entry.view((weights if entry.trained else statistics)[entry.block]) for entry in self.entries
        }


def layout_of(module: nn.Module, spec: BlockSpec = None, *, channels_last: bool = False) -> Layout:
    """Return the layout of a module's parameters and float buffers by blocks.

    Args:
        module: The network.
        spec: ``None`` (the module's ``blocks`` attribute, else its top-level children that hold parameters), ``1``
            (the whole network is one block), or a mapping ``block -> parameter-name prefixes``.
        channels_last: Whether weights of four dimensions are stored in the order in which a GPU reads them.
    """
    trained = [name for name, _ in module.named_parameters()]
    statistics = [name for name, buffer in module.named_buffers() if buffer.is_floating_point()]
    if not trained:
        raise InputError(f"A network needs at least one parameter, but {type(module).__name__} has none.")
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    mixed = sorted({str(tensors[name].dtype) for name in trained + statistics})
    if len(mixed) > 1:
        raise InputError(f"All parameters and statistics of a network must have one type, but it has {mixed}.")
    names, block_of = _assign(module, trained, statistics, spec)
    entries: list[LayoutEntry] = []
    for group, is_trained in ((trained, True), (statistics, False)):
        ends = [0] * len(names)
        for name in group:
            block, size = block_of[name], tensors[name].numel()
            shape, last = tensors[name].shape, channels_last and tensors[name].ndim == 4
            entries.append(LayoutEntry(name, shape, block, ends[block], ends[block] + size, is_trained, last))
            ends[block] += size
    return Layout(names, tuple(entries))


def _under(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".") or prefix == ""


def _assign(
    module: nn.Module, trained: list[str], statistics: list[str], spec: BlockSpec
) -> tuple[tuple[str, ...], dict[str, int]]:
    if isinstance(spec, int):
        if spec != 1:
            raise InputError(f"'blocks' must be 1 (the whole network) or a mapping of block names, but it is {spec}.")
        return ("network",), dict.fromkeys(trained + statistics, 0)
    if spec is None:
        spec = getattr(module, "blocks", None) or _children_with_parameters(module)
    prefixes = {block: tuple(under) for block, under in spec.items()}
    names = tuple(prefixes)
    assigned: dict[str, int] = {}
    for name in trained + statistics:
        best = max(
            ((len(p), i) for i, under in enumerate(prefixes.values()) for p in under if _under(name, p)),
            default=None,
        )
        if best is not None:
            assigned[name] = best[1]
        elif name in statistics:
            assigned[name] = 0
    missing = [name for name in trained if name not in assigned]
    if missing:
        raise InputError(f"Every parameter needs a block, but no block's prefixes cover '{missing[0]}'; add it to one.")
    empty = [block for i, block in enumerate(names) if i not in {assigned[name] for name in trained}]
    if empty:
        raise InputError(f"Every block needs at least one parameter, but no parameter name starts with '{empty[0]}'s.")
    return names, assigned


def _children_with_parameters(module: nn.Module) -> dict[str, tuple[str, ...]]:
    blocks: dict[str, tuple[str, ...]] = {}
    for name, child in module.named_children():
        if next(child.parameters(), None) is not None:
            blocks[name] = (name,)
    own = tuple(name for name, _ in module.named_parameters(recurse=False))
    if not blocks:
        return {"network": ("",)}
    first = next(iter(blocks))
    return {**blocks, first: blocks[first] + own}
