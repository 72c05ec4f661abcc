"""Models coded as a reference and differences, against a naive reference in numpy."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from battery import same
from fedbasis.tensors.compact import AlikeModels, Bits, decode, encode, is_coded, require_coded
from fedbasis.tensors.files import read_header, write_tensors
from fedbasis.tensors.packed import packed
from fedbasis.tensors.params import State, nbytes, shapes
from pflbed.errors import InputError

SHAPES = {"conv": (5, 3, 3, 3), "fc": (3, 7), "one": (1, 1), "none": (0, 4), "flat": (4, 0), "bias": (7,), "zero": ()}
BITS: tuple[Bits, ...] = (3, 4, 8)
LARGEST = {3: 3, 4: 7, 8: 127}


def models(count: int, spread: float = 0.05, seed: int = 0) -> State:
    generator = torch.Generator().manual_seed(seed)

    def drawn() -> dict[str, torch.Tensor]:
        return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}

    common = drawn()
    return {f"m{k}": {n: common[n] + spread * t for n, t in drawn().items()} for k in range(count)}


def expected_of(state: State) -> dict[str, torch.Size]:
    return shapes(next(tensors for group, tensors in state.items() if group.startswith("m")))


def round_trip(state: State, alike: AlikeModels, bits: Bits = 4) -> State:
    return decode(encode(state, alike, bits), expected_of(state), "It")


def naive(v: NDArray[np.float32], r: NDArray[np.float32], bits: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return Q(v) and every number's scale, one number at a time."""
    largest = 2 ** (bits - 1) - 1
    decoded, steps = np.zeros(v.shape), np.zeros(v.shape)
    for channel in range(v.shape[0]):
        differences = v[channel].astype(np.float64) - r[channel]
        scale = np.abs(differences).max() / largest if differences.size else 0.0
        for i in np.ndindex(differences.shape):
            code = round(differences[i] / scale) if scale else 0
            decoded[(channel, *i)] = r[(channel, *i)] + scale * code
            steps[(channel, *i)] = scale
    return decoded, steps


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("reference", ["m0", None])
def test_it_is_the_naive_coding(bits: Bits, reference: str | None) -> None:
    state = models(4)
    back = round_trip(state, AlikeModels(list(state), reference), bits)
    for name in SHAPES:
        whole = np.mean([t[name].double().numpy() for t in state.values()], axis=0).astype(np.float32)
        near = torch.from_numpy(np.asarray(whole)) if reference is None else state[reference][name]
        near = near.bfloat16().float() if near.ndim > 1 else near
        for group, tensors in state.items():
            if group == reference:
                assert torch.equal(back[group][name], near)
            elif near.ndim > 1:
                decoded, steps = naive(tensors[name].numpy(), near.numpy(), bits)
                error = np.abs(back[group][name].double().numpy() - tensors[name].double().numpy())
                rounding = np.spacing(np.abs(tensors[name].numpy()))
                assert (error <= steps / 2 * (1 + 1e-5) + rounding).all()
                np.testing.assert_allclose(back[group][name].numpy(), decoded, rtol=1e-5, atol=1e-6)
            else:
                half = near + (tensors[name] - near).half().float()
                assert torch.equal(back[group][name], half)


@pytest.mark.parametrize("bits", BITS)
def test_scales_are_the_largest_difference_of_an_output_channel(bits: Bits) -> None:
    state = models(2)
    coded = encode(state, AlikeModels(["m0", "m1"], "m0"), bits)
    difference = state["m1"]["conv"] - state["m0"]["conv"].bfloat16().float()
    wanted = difference.abs().amax((1, 2, 3)) / LARGEST[bits]
    assert torch.equal(coded["compact/scales/m1"]["conv"], wanted)


def test_two_codes_of_four_bits_are_one_byte() -> None:
    state = {"m0": {"w": torch.zeros(1, 3)}, "m1": {"w": torch.tensor([[7.0, -7.0, 3.0]])}}
    coded = encode(state, AlikeModels(["m0", "m1"], "m0"), 4)
    assert coded["compact/codes/m1"]["w"].tolist() == [15 | 1 << 4, 11 | 8 << 4]
    assert coded["compact/scales/m1"]["w"].tolist() == [1.0]


def test_codes_of_three_bits_are_planes() -> None:
    numbers = [3.0, -3.0, 0.0, 1.0, 2.0, -1.0, -2.0, 3.0, -3.0]
    state = {"m0": {"w": torch.zeros(1, 9)}, "m1": {"w": torch.tensor([numbers])}}
    planes = encode(state, AlikeModels(["m0", "m1"], "m0"), 3)["compact/codes/m1"]["w"].tolist()
    shifted = [int(number) + 4 for number in numbers] + [4] * 7
    assert planes == [
        [sum((shifted[8 * byte + i] >> plane & 1) << i for i in range(8)) for byte in range(2)] for plane in range(3)
    ]


@pytest.mark.parametrize("bits", BITS)
def test_differences_of_zero(bits: Bits) -> None:
    one = {name: tensor.bfloat16().float() for name, tensor in models(1)["m0"].items()}
    state = {"m0": one, "m1": one, "m2": one}
    for reference in ("m0", None):
        coded = encode(state, AlikeModels(list(state), reference), bits)
        assert float(coded["compact/scales/m1"]["conv"].abs().max()) == 0
        assert same(decode(coded, expected_of(state), "It"), state)


@pytest.mark.parametrize("reference", ["m0", None])
def test_a_single_model(reference: str | None) -> None:
    state = models(1)
    back = round_trip(state, AlikeModels(["m0"], reference))
    torch.testing.assert_close(back["m0"], state["m0"], rtol=2**-8, atol=0)


@pytest.mark.parametrize("bits", BITS)
def test_representable_models_are_unchanged_to_the_bit(bits: Bits) -> None:
    largest, generator = LARGEST[bits], torch.Generator().manual_seed(1)
    near = torch.randint(-64, 64, (6, 10), generator=generator) / 64
    codes = torch.randint(-largest, largest + 1, (6, 10), generator=generator)
    codes[:, 0] = largest
    state = {"m0": {"w": near, "b": torch.ones(6)}, "m1": {"w": near + codes * 2.0**-12, "b": torch.ones(6) + 2**-10}}
    assert same(round_trip(state, AlikeModels(["m0", "m1"], "m0"), bits), state)


def test_tiny_differences_are_dropped_and_not_clipped() -> None:
    state = {"m0": {"w": torch.zeros(1, 2)}, "m1": {"w": torch.tensor([[1e-44, 3e-45]])}}
    coded = encode(state, AlikeModels(["m0", "m1"], "m0"))
    assert coded["compact/scales/m1"]["w"].tolist() == [0.0]
    assert round_trip(state, AlikeModels(["m0", "m1"], "m0"))["m1"]["w"].tolist() == [[0.0, 0.0]]


class TestVectors:
    def test_a_difference_outside_float16_is_coded_as_bfloat16(self) -> None:
        state = {"m0": {"mean": torch.zeros(3)}, "m1": {"mean": torch.tensor([-1e6, 1.0, 2.0])}}
        coded = encode(state, AlikeModels(["m0", "m1"], "m0"))
        assert coded["compact/vectors/m1"]["mean"].dtype == torch.bfloat16
        back = round_trip(state, AlikeModels(["m0", "m1"], "m0"))
        torch.testing.assert_close(back["m1"]["mean"], state["m1"]["mean"], rtol=2**-8, atol=0)

    @pytest.mark.parametrize("small", [1e-9, 1e-3, 0.01])
    @pytest.mark.parametrize("large", [1.0, 333.3, 1e4, 1e9])
    def test_variances_stay_positive(self, small: float, large: float) -> None:
        state = {"m0": {"var": torch.tensor([large, 1.0])}, "m1": {"var": torch.tensor([small, 1.1])}}
        for reference in ("m0", "m1", None):
            back = round_trip(state, AlikeModels(["m0", "m1"], reference))
            assert all(bool((tensors["var"] > 0).all()) for tensors in back.values())
            torch.testing.assert_close(back, state, rtol=2**-8, atol=2**-11 * large)

    def test_a_variance_of_zero_stays_zero_or_more(self) -> None:
        state = {"m0": {"var": torch.tensor([0.1, 333.3])}, "m1": {"var": torch.tensor([0.0, 0.0])}}
        assert float(round_trip(state, AlikeModels(["m0", "m1"], "m0"))["m1"]["var"].min()) >= 0


def test_bytes() -> None:
    state = {f"m{k}": {"w": torch.randn(64, 1000, generator=torch.Generator().manual_seed(k))} for k in range(5)}
    coded = encode(state, AlikeModels(list(state), "m0"), 4)
    assert nbytes(coded) == 64_000 * 4 + 4 * 64 * 4  # as large as one float32 model, and the scales
    assert nbytes(encode(state, AlikeModels(list(state), "m0"), 3)) == 64_000 * 3.5 + 4 * 64 * 4
    assert nbytes(encode(state, AlikeModels(list(state), None), 8)) == 64_000 * 7 + 5 * 64 * 4


def test_equal_models_give_equal_bytes() -> None:
    first, second = (packed(encode(models(3), AlikeModels(["m0", "m1", "m2"], None))) for _ in range(2))
    assert np.array_equal(first, second)


def test_other_groups_are_returned_as_they_are() -> None:
    state = {**models(2), "clock": {"round": torch.tensor(3)}}
    alike = AlikeModels(["m0", "m1"], "m0")
    coded = encode(state, alike)
    assert is_coded(coded)
    assert not is_coded(state)
    back = decode(coded, expected_of(state), "It")
    assert int(back["clock"]["round"]) == 3
    assert back.keys() == state.keys()


def test_a_header_is_checked_like_the_tensors(tmp_path: Path) -> None:
    coded = encode(models(3), AlikeModels(["m0", "m1", "m2"], "m0"))
    write_tensors(tmp_path / "file", coded)
    require_coded(read_header(tmp_path / "file")[0], expected_of(models(1)), "The file")


class TestRefusals:
    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda c: c.pop("compact/reference/m0"), "one reference"),
            (lambda c: c.update({"compact/mean": c["compact/reference/m0"]}), "one reference"),
            (lambda c: c.update({"compact/other": {}}), "known groups"),
            (lambda c: c.update({"m1": {}}), "twice"),
            (lambda c: c.update({"compact/codes/m0": {}}), "twice"),
            (lambda c: c.pop("compact/codes/m1"), "missing"),
            (lambda c: c.pop("compact/scales/m1"), "missing"),
            (lambda c: c.pop("compact/vectors/m1"), "missing"),
            (lambda c: c.update({"compact/scales/m9": {}}), "missing"),
            (lambda c: c["compact/codes/m1"].update(fc=torch.zeros(10, dtype=torch.uint8)), "has shape"),
            (lambda c: c["compact/codes/m1"].update(fc=torch.zeros(11, dtype=torch.int8)), "3, 4 or 8 bits"),
            (lambda c: c["compact/codes/m1"].update(fc=torch.zeros(3, 3, dtype=torch.uint8)), "3, 4 or 8 bits"),
            (lambda c: c["compact/codes/m1"].update(fc=torch.zeros(11)), "as uint8 or int8"),
            (lambda c: c["compact/scales/m1"].update(fc=torch.zeros(3, dtype=torch.float64)), "as float32"),
            (lambda c: c["compact/scales/m1"].update(fc=torch.zeros(4)), "has shape"),
            (lambda c: c["compact/vectors/m1"].update(bias=torch.zeros(7)), "as float16 or bfloat16"),
            (lambda c: c["compact/reference/m0"].update(fc=torch.zeros(3, 7)), "as bfloat16"),
            (lambda c: c["compact/reference/m0"].update(bias=torch.zeros(7).bfloat16()), "as float32"),
            (lambda c: c["compact/codes/m1"]["fc"][:1].fill_(0), "out of range"),
            (lambda c: c["compact/codes/m1"]["fc"][-1:].fill_(0x18), "last byte"),
            (lambda c: c["compact/scales/m1"]["fc"].fill_(-1.0), "scale is negative"),
            (lambda c: c["compact/scales/m1"]["fc"].fill_(float("nan")), "scale is negative or not finite"),
            (lambda c: c["compact/scales/m1"]["fc"].fill_(float("inf")), "scale is negative or not finite"),
            (lambda c: c["compact/scales/m1"]["fc"].fill_(3e38), "not finite"),
            (lambda c: c["compact/reference/m0"]["fc"].fill_(float("nan")), "not finite"),
            (lambda c: c["compact/vectors/m1"]["bias"].fill_(float("inf")), "not finite"),
        ],
    )
    def test_what_was_changed(self, change: Callable[[State], object], words: str) -> None:
        state = models(2)
        coded = encode(state, AlikeModels(["m0", "m1"], "m0"))
        change(coded)
        with pytest.raises(InputError, match=words):
            decode(coded, expected_of(state), "It")

    def test_a_code_of_eight_bits_out_of_range(self) -> None:
        state = models(2)
        coded = encode(state, AlikeModels(["m0", "m1"], "m0"), 8)
        coded["compact/codes/m1"]["fc"][0, 0] = -128
        with pytest.raises(InputError, match="out of range"):
            decode(coded, expected_of(state), "It")

    @pytest.mark.parametrize(("byte", "words"), [((slice(None), 0), "out of range"), ((2, -1), "last byte")])
    def test_codes_of_three_bits(self, byte: tuple[slice | int, int], words: str) -> None:
        state = models(2)
        coded = encode(state, AlikeModels(["m0", "m1"], "m0"), 3)
        coded["compact/codes/m1"]["fc"][byte] = 0
        with pytest.raises(InputError, match=words):
            decode(coded, expected_of(state), "It")

    @pytest.mark.parametrize(
        ("state", "reference", "words"),
        [
            ({"m0": {"w": torch.zeros(2, 2)}, "m1": {"w": torch.zeros(2, 3)}}, "m0", "has shape"),
            ({"m0": {"w": torch.zeros(2, 2).double()}}, "m0", "must be float32"),
            ({"m0": {"w": torch.full((2, 2), float("nan"))}}, "m0", "not finite"),
            ({"m0": {"w": torch.full((2, 2), 3.4028e38)}}, "m0", "range of bfloat16"),
            ({"m0": {"w": torch.full((1, 2), 3e38)}, "m1": {"w": torch.full((1, 2), -3e38)}}, "m0", "range of"),
            ({"m0": {"w": torch.zeros(2, 2)}}, "m1", "reference must be one of them"),
            ({}, None, "needs models"),
            ({"m0": {"w": torch.zeros(2, 2)}, "compact/x": {}}, "m0", "must have no group"),
        ],
    )
    def test_what_cannot_be_coded(self, state: State, reference: str | None, words: str) -> None:
        groups = [group for group in state if group.startswith("m")]
        with pytest.raises(InputError, match=words):
            encode(state, AlikeModels(groups, reference))

    def test_other_numbers_of_bits(self) -> None:
        with pytest.raises(InputError, match="3, 4 or 8 bits"):
            encode(models(1), AlikeModels(["m0"], None), 2)  # type: ignore[arg-type]
