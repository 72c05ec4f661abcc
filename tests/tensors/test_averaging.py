"""Robust means against scipy and numpy."""

from functools import partial

import numpy as np
import pytest
import torch
from scipy.stats import trim_mean

from fedbasis.tensors.averaging import Averaging, OrderedMean, middle
from pflbed.errors import InputError

KINDS = {"trimmed": Averaging(kind="trimmed", trim=0.25), "median": Averaging(kind="median")}
ONES = partial(torch.ones, 1, dtype=torch.float64)


class TestMeans:
    values = torch.from_numpy(np.random.default_rng(0).normal(size=(10, 33)))

    @pytest.mark.parametrize("cut", [0.0, 0.1, 0.2, 0.4])
    def test_the_trimmed_mean_is_scipys(self, cut: float) -> None:
        expected = trim_mean(self.values.numpy(), cut, axis=0)
        np.testing.assert_allclose(middle(self.values, ONES(10), cut)[0], expected, rtol=1e-12)

    @pytest.mark.parametrize("count", [1, 2, 7, 10])
    def test_the_median_is_numpys(self, count: int) -> None:
        expected = np.median(self.values[:count].numpy(), axis=0)
        np.testing.assert_allclose(middle(self.values[:count], ONES(count), 0.5)[0], expected, rtol=1e-12)

    @pytest.mark.parametrize("cut", [0.15, 0.3, 0.5])
    def test_a_weight_counts_as_so_many_copies(self, cut: float) -> None:
        weights = torch.tensor([[1.0, 3, 2, 5, 1, 4, 2, 1, 1, 0]]).double()
        copies = self.values.repeat_interleave(weights[0].long(), dim=0)  # 20 of them: the cuts fall between two
        expected = middle(copies, ONES(len(copies)), cut)
        torch.testing.assert_close(middle(self.values, weights, cut), expected, rtol=1e-12, atol=1e-12)

    def test_a_client_on_the_border_counts_in_part(self) -> None:
        column = torch.tensor([[0.0], [1.0], [10.0], [100.0]], dtype=torch.float64)
        cut = middle(column, ONES(4), 0.375)  # of four: one and a half at either end
        torch.testing.assert_close(cut, torch.tensor([[(0.5 * 1 + 0.5 * 10)]], dtype=torch.float64))

    @pytest.mark.parametrize("kind", KINDS)
    def test_garbage_of_any_size_leaves_no_trace(self, kind: str) -> None:
        honest = [{"w": self.values[i].float()} for i in range(8)]
        results = []
        for size in (1e3, 1e38):
            mean = OrderedMean(KINDS[kind])
            for tensors in (*honest, {"w": torch.full((33,), size)}, {"w": torch.full((33,), -size)}):
                mean.add(tensors, 1.0)
            results.append(mean.result()["w"])
        assert torch.equal(results[0], results[1])
        low, high = self.values[:8].float().aminmax(dim=0)
        assert ((results[0] >= low) & (results[0] <= high)).all()

    def test_many_numbers_are_looked_at_in_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def averaged() -> dict[str, torch.Tensor]:
            mean = OrderedMean(Averaging(kind="median"))
            for i in range(5):
                mean.add({"w": self.values[i].float().view(3, 11), "none": torch.empty(0)}, 1.0)
            return mean.result()

        whole = averaged()
        assert whole["w"].shape == (3, 11)
        assert whole["none"].shape == (0,)
        monkeypatch.setattr("fedbasis.tensors.averaging.CHUNK_NUMBERS", 20)
        assert torch.equal(averaged()["w"], whole["w"])

    def test_nothing_and_misfits_are_refused(self) -> None:
        with pytest.raises(InputError, match="none was received"):
            OrderedMean(Averaging(kind="median")).result()
        mean = OrderedMean(Averaging(kind="median"))
        mean.add({"w": torch.zeros(2)}, 1.0)
        with pytest.raises(InputError, match="shape"):
            mean.add({"w": torch.zeros(3)}, 1.0, "The update of b")

    def test_single_models_are_brought_into_range(self) -> None:
        models = [{"w": torch.tensor([float(i), -float(i)])} for i in (0, 1, 2, 3, 1000)]
        bounded = [model["w"].tolist() for model in Averaging(kind="trimmed", trim=0.2).clamp_models(models)]
        assert bounded == [[1, -1], [1, -1], [2, -2], [3, -3], [3, -3]]
        assert Averaging().clamp_models(models) is models
