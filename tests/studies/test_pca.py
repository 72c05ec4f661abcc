"""The summaries of personal models agree with scikit-learn's PCA and with means taken by hand."""

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from fedbasis.studies.pca import counts, mixed, projector, same_cluster

MODELS, NUMBERS = 9, 50


def models() -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.normal(0, 1, (MODELS, NUMBERS)) * np.linspace(3, 0.1, NUMBERS) + 5


@pytest.mark.parametrize("count", range(1, MODELS))
def test_projections_are_those_of_scikit_learn(count: int) -> None:
    flat = models()
    deviations = torch.from_numpy(flat - flat.mean(0))
    found = projector(deviations @ deviations.t(), count) @ torch.from_numpy(flat)
    pca = PCA(n_components=count).fit(flat)
    assert found.numpy() == pytest.approx(pca.inverse_transform(pca.transform(flat)))


def test_all_components_lose_nothing() -> None:
    flat = models()
    deviations = torch.from_numpy(flat - flat.mean(0))
    found = projector(deviations @ deviations.t(), MODELS - 1) @ torch.from_numpy(flat)
    assert found.numpy() == pytest.approx(flat)


def test_a_centroid_is_the_mean_of_its_cluster() -> None:
    flat, labels = models(), [0, 2, 0, 1, 1, 2, 2, 0, 2]
    found = same_cluster(labels) @ torch.from_numpy(flat)
    for label, row in zip(labels, found.numpy(), strict=True):
        assert row == pytest.approx(
            np.mean([one for one, other in zip(flat, labels, strict=True) if other == label], 0)
        )


def test_combinations_are_made_tensor_by_tensor() -> None:
    torch.manual_seed(0)
    given = [{"a": torch.randn(2, 3), "b": torch.randn(4), "kept": torch.randn(1)} for _ in range(3)]
    mixing = torch.tensor([[0.5, 0.25, 0.25], [0.0, 2.0, -1.0]], dtype=torch.float64)
    first, second = mixed(given, ["a", "b"], mixing)
    assert set(first) == {"a", "b"}
    torch.testing.assert_close(first["a"], 0.5 * given[0]["a"] + 0.25 * given[1]["a"] + 0.25 * given[2]["a"])
    torch.testing.assert_close(second["b"], 2 * given[1]["b"] - given[2]["b"])


def test_numbers_of_components_double_up_to_all() -> None:
    assert counts(39) == [1, 2, 4, 8, 16, 32, 39]
    assert counts(4) == [1, 2, 4]
    assert counts(1) == [1]
