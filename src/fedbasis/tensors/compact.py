"""Several models that are alike, coded as one reference model and small differences to it.

The reference r is one of the models, or the mean of all of them (computed in float64, rounded to float32). A matrix is
a tensor of two or more dimensions, a vector one of fewer. ``Q`` is what decoding returns, for a model v:

    matrix of the reference   Q(r) = bfloat16(r)                                    2 bytes a number
    matrix of another model   d = v - Q(r),  q = 3 (3 bits), 7 (4 bits) or 127 (8 bits)
                              s_i = max_j |d_ij| / q                                a float32 for every output channel i
                              k_ij = round(d_ij / s_i), a half to even, -q <= k <= q   3, 4 or 8 bits
                              Q(v)_ij = Q(r)_ij + s_i k_ij                          in float32, product first
    vector of the reference   Q(r) = r                                              float32
    vector of another model   Q(v) = Q(r) + float16(v - Q(r)), or bfloat16(v)       2 bytes a number

An output channel is an index of the first dimension. So |Q(v) - v| <= s_i / 2 in a matrix, but for float32 rounding of
the sum. A scale s_i below the smallest normal float32 is 0, as are its codes. A vector is coded as bfloat16(v) if a
difference exceeds the range of float16, or if no number of v is negative and Q(v) would not be positive where v is: so
variances stay positive. A model that is the reference is decoded as Q(r). Rounding is to nearest everywhere.

The coded models are groups of named tensors (``State``), so they are written and sent like any other state:

    compact/reference/<model>, or compact/mean   bfloat16 or float32, in the shape of the tensor
    compact/codes/<model>                        8 bits: int8 k in the shape of the tensor; 4 bits: uint8 vectors;
                                                 3 bits: uint8 [3, bytes]
    compact/scales/<model>                       float32 [channels]
    compact/vectors/<model>                      float16 (a difference) or bfloat16 (the number), in the same shape

Two codes of 4 bits are one byte: k + 8 of the even flat index in the low half, of the odd one in the high half; a last
half that is not needed is 8. Codes of 3 bits are three planes: bit i of byte j of plane p is bit p of k + 4 of the flat
index 8 j + i; codes that are not needed are 4. All operations are of IEEE arithmetic, number by number: equal
models give equal bytes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from fedbasis.tensors.params import HasShape, State, Tensors, require_finite, require_same, shapes
from pflbed.errors import InputError

Bits = Literal[3, 4, 8]
PREFIX = "compact/"
"""All groups of coded models begin with it; no other group does."""
MEAN, REFERENCE = PREFIX + "mean", PREFIX + "reference/"
CODES, SCALES, VECTORS = PREFIX + "codes/", PREFIX + "scales/", PREFIX + "vectors/"
KINDS = (CODES, SCALES, VECTORS)
LARGEST = {3: 3, 4: 7, 8: 127}
"""The largest code by the number of bits."""
CODE_TYPES = (torch.uint8, torch.int8)
OFFSETS = {3: 4, 4: 8}
"""What is added to a packed code by the number of bits, so that it is not negative."""


class Described(HasShape, Protocol):
    """A tensor, or what a file says about one, with its type."""

    @property
    def dtype(self) -> torch.dtype:
        """Its type."""
        ...


@dataclass(frozen=True)
class AlikeModels:
    """Which groups of a state are models that are alike.

    Args:
        groups: The groups; all have the same names and shapes.
        reference: One of them that the others are near to; None: their mean.
    """

    groups: Sequence[str]
    reference: str | None


def encode(state: State, alike: AlikeModels, bits: Bits = 4) -> State:
    """Code some models of a state; its other groups are returned as they are.

    Args:
        state: Groups of named tensors.
        alike: Which of them are coded, and the reference.
        bits: Bits of a difference, 3, 4 or 8.
    """
    if bits not in LARGEST:
        raise InputError(f"Differences must have 3, 4 or 8 bits, but {bits} were asked for.")
    models = {group: state[group] for group in alike.groups}
    _require_codable(state, models, alike)
    first = next(iter(models.values()))
    exact = _mean(models) if alike.reference is None else models[alike.reference]
    coded: State = {group: tensors for group, tensors in state.items() if group not in models}
    reference = {name: tensor.bfloat16() if tensor.ndim > 1 else tensor.clone() for name, tensor in exact.items()}
    place = MEAN if alike.reference is None else REFERENCE + alike.reference
    coded[place] = reference
    for group in alike.groups:
        if group == alike.reference:
            continue
        parts: State = {CODES + group: {}, SCALES + group: {}, VECTORS + group: {}}
        for name in first:
            tensor, near = models[group][name], reference[name].float()
            if tensor.ndim > 1:
                codes, parts[SCALES + group][name] = _coded(tensor - near, LARGEST[bits])
                parts[CODES + group][name] = _packed(codes, bits)
            else:
                parts[VECTORS + group][name] = _halved(tensor, near)
        coded |= {kind: tensors for kind, tensors in parts.items() if tensors}
    require_finite(coded, "The coding of models outside the range of bfloat16")
    return coded


def is_coded(groups: Mapping[str, object]) -> bool:
    """Return whether a state, or the header of a file, holds coded models."""
    return any(group.startswith(PREFIX) for group in groups)


def decode(coded: State, expected: Mapping[str, torch.Size], where: str) -> State:
    """Return a state with its coded models decoded to float32; everything is checked.

    Args:
        coded: What ``encode`` returned, from anywhere.
        expected: The shapes of a model's tensors by name.
        where: What error messages call it.
    """
    require_coded(coded, expected, where)
    place = next(group for group in coded if group == MEAN or group.startswith(REFERENCE))
    reference = {name: tensor.float() for name, tensor in coded[place].items()}
    state: State = {group: tensors for group, tensors in coded.items() if not group.startswith(PREFIX)}
    if place != MEAN:
        state[place.removeprefix(REFERENCE)] = reference
    for model in _models(coded):
        state[model] = {name: _decoded(coded, model, name, near, where) for name, near in reference.items()}
    require_finite(state, where)
    return state


def require_coded(
    groups: Mapping[str, Mapping[str, Described]], expected: Mapping[str, torch.Size], where: str
) -> None:
    """Check names, types and shapes of coded models, as tensors or in a file's header, before memory is taken.

    Args:
        groups: Tensors, or what a file says about them, by group and name.
        expected: The shapes of a model's tensors by name.
        where: What error messages call it.
    """
    places = [group for group in groups if group == MEAN or group.startswith(REFERENCE)]
    if len(places) != 1:
        raise InputError(f"{where} must hold one reference of its coded models, but it holds {len(places)}.")
    unknown = [g for g in groups if g.startswith(PREFIX) and g not in places and not g.startswith(KINDS)]
    if unknown:
        raise InputError(f"{where} must hold coded models only in known groups, but it holds '{unknown[0]:.80}'.")
    models = _models(groups)
    named = [place.removeprefix(REFERENCE) for place in places if place != MEAN]
    if twice := [model for model in models + named if model in groups or (model in models and model in named)]:
        raise InputError(f"{where} must hold every model once, but it holds '{twice[0]:.80}' twice.")
    matrices = {name: shape for name, shape in expected.items() if len(shape) > 1}
    vectors = {name: shape for name, shape in expected.items() if len(shape) <= 1}
    require_same(groups[places[0]], expected, f"{where}, group '{places[0]:.80}',")
    _require_types(groups[places[0]], dict.fromkeys(matrices, (torch.bfloat16,)), places[0], where)
    _require_types(groups[places[0]], dict.fromkeys(vectors, (torch.float32,)), places[0], where)
    bits = {bits_of(about) for model in models for about in groups.get(CODES + model, {}).values()}
    if len(bits) > 1:
        raise InputError(f"{where} must have codes of 3, 4 or 8 bits, but it has {sorted(bits)}.")
    packed = {name: packed_shape(shape, *bits) for name, shape in matrices.items()} if bits else matrices
    for model in models:
        for kind, shaped, types in (
            (CODES, packed, CODE_TYPES),
            (SCALES, {name: shape[:1] for name, shape in matrices.items()}, (torch.float32,)),
            (VECTORS, vectors, (torch.float16, torch.bfloat16)),
        ):
            found = groups.get(kind + model, {})
            require_same(found, shaped, f"{where}, group '{kind + model:.80}',")
            _require_types(found, dict.fromkeys(shaped, types), kind + model, where)


def _require_types(
    found: Mapping[str, Described], types: Mapping[str, tuple[torch.dtype, ...]], group: str, where: str
) -> None:
    for name, allowed in types.items():
        if found[name].dtype not in allowed:
            wanted = " or ".join(str(dtype).removeprefix("torch.") for dtype in allowed)
            got = str(found[name].dtype).removeprefix("torch.")
            raise InputError(f"{where} must hold '{group}/{name:.80}' as {wanted}, but it is {got}.")


def _require_codable(state: State, models: State, alike: AlikeModels) -> None:
    """Refuse models that differ in shape, or are not float32 and finite; and names that coding uses itself."""
    if not models or (alike.reference is not None and alike.reference not in models):
        raise InputError(f"Coding needs models, and its reference must be one of them, but they are {sorted(models)}.")
    if taken := [group for group in state if group.startswith(PREFIX)]:
        raise InputError(f"A state that is coded must have no group '{PREFIX}...', but it has '{taken[0]}'.")
    expected = shapes(next(iter(models.values())))
    for group, tensors in models.items():
        require_same(tensors, expected, f"The model '{group}', which is coded with others,")
        for name, tensor in tensors.items():
            if tensor.dtype != torch.float32:
                raise InputError(f"Models that are coded must be float32, but '{group}/{name}' is {tensor.dtype}.")
    require_finite(models, "What is coded")


def _models(groups: Mapping[str, object]) -> list[str]:
    """Return the models that are coded as differences, in the order of their groups."""
    found = (group.removeprefix(kind) for group in groups for kind in KINDS if group.startswith(kind))
    return list(dict.fromkeys(found))


def _mean(models: State) -> Tensors:
    def mean(name: str) -> Tensor:
        total = torch.zeros_like(next(iter(models.values()))[name], dtype=torch.float64)
        for tensors in models.values():
            total += tensors[name]
        return (total / len(models)).float()

    return {name: mean(name) for name in next(iter(models.values()))}


def _coded(difference: Tensor, largest: int) -> tuple[Tensor, Tensor]:
    """Return the codes of a matrix as int8, and the scale of every output channel."""
    rows = difference.reshape(len(difference), -1) if difference.numel() else difference.new_zeros(len(difference), 1)
    scales = torch.maximum(rows.amax(1), -rows.amin(1)) / largest
    scales[scales < torch.finfo(scales.dtype).tiny] = 0.0
    safe = torch.where(scales > 0, scales, torch.ones_like(scales)).unsqueeze(1)
    codes = (rows / safe).round_().clamp_(-largest, largest)
    codes[scales == 0] = 0.0
    return codes[:, : difference[0].numel() if len(difference) else 0].to(torch.int8).view(difference.shape), scales


def bits_of(codes: Described) -> Bits:
    """Return the bits of a code by the type and dimensions of what holds the codes of a matrix."""
    return 8 if codes.dtype == torch.int8 else 3 if len(codes.shape) == 2 else 4


def packed_shape(shape: torch.Size, bits: Bits) -> torch.Size:
    """Return the shape of what holds the codes of a matrix."""
    count = shape.numel()
    return shape if bits == 8 else torch.Size([-(-count // 2)]) if bits == 4 else torch.Size([3, -(-count // 8)])


def _packed(codes: Tensor, bits: Bits) -> Tensor:
    """Return codes as they are written."""
    if bits == 8:
        return codes
    flat = (codes.reshape(-1) + OFFSETS[bits]).view(torch.uint8)
    group = 2 if bits == 4 else 8  # so many codes are in whole bytes
    if rest := -len(flat) % group:
        flat = torch.cat([flat, flat.new_full((rest,), OFFSETS[bits])])
    if bits == 4:
        return flat[0::2] | (flat[1::2] << 4)
    planes = torch.stack([(flat >> plane) & 1 for plane in range(3)]).view(3, -1, 8)
    return (planes << _EIGHT.to(planes.device)).sum(2, dtype=torch.uint8)


def _unpacked(packed: Tensor, shape: torch.Size) -> Tensor:
    """Return codes as int8; those that only fill the last byte must be 0."""
    if (bits := bits_of(packed)) == 8:
        return packed
    if bits == 4:
        flat = torch.stack([packed & 15, packed >> 4], dim=1).reshape(-1)
    else:
        planes = ((packed.unsqueeze(2) >> _EIGHT.to(packed.device)) & 1).view(3, -1)
        flat = planes[0] | (planes[1] << 1) | (planes[2] << 2)
    codes = flat.view(torch.int8) - OFFSETS[bits]
    if bool(codes[shape.numel() :].any()):
        raise ValueError("its last byte has codes that are not needed")
    return codes[: shape.numel()].view(shape)


_EIGHT = torch.arange(8, dtype=torch.uint8)


def _halved(tensor: Tensor, near: Tensor) -> Tensor:
    """Return the difference of a vector as float16, or the vector as bfloat16 where that would not be right."""
    difference = (tensor - near).half()
    decoded = near + difference.float()
    lost_sign = (decoded < 0) | ((decoded == 0) & (tensor > 0))
    if not bool(difference.isfinite().all()) or (bool((tensor >= 0).all()) and bool(lost_sign.any())):
        return tensor.bfloat16()
    return difference


def _decoded(coded: State, model: str, name: str, near: Tensor, where: str) -> Tensor:
    """Return one tensor of a model that is coded as a difference."""
    if near.ndim <= 1:
        half = coded[VECTORS + model][name]
        return half.float() if half.dtype == torch.bfloat16 else near + half.float()
    codes, scales = coded[CODES + model][name], coded[SCALES + model][name]
    largest = LARGEST[bits_of(codes)]
    try:
        codes = _unpacked(codes, near.shape)
        for problem in _wrong(codes, scales, largest):
            raise ValueError(problem)
    except ValueError as error:
        raise InputError(
            f"{where} must hold codes and scales as they were written, but those of '{model}/{name}' were changed "
            f"({error}); get it again."
        ) from error
    steps = scales.view(-1, *[1] * (near.ndim - 1))
    return codes.float().mul_(steps).add_(near)


def _wrong(codes: Tensor, scales: Tensor, largest: int) -> Iterator[str]:
    if codes.numel() and int(codes.amin()) < -largest:  # larger ones do not fit the bits
        yield "a code is out of range"
    if scales.numel() and not (float(scales.amin()) >= 0 and bool(scales.isfinite().all())):
        yield "a scale is negative or not finite"
