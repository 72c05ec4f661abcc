"""The small pieces: named tensors, blocks, networks, coefficients, clusters, batches."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from conftest import shapes_examples
from fedbasis.methods.fedbasis import coefficients
from fedbasis.methods.fedbasis.warm_start import cluster_directions, cluster_models
from fedbasis.networks.models import Network, classifier_of
from fedbasis.networks.train import Examples, Preprocessing, Recipe, augmented, backward_passes, batches, local_sgd
from fedbasis.tensors.blocks import layout_of
from fedbasis.tensors.flat import FlatModel
from fedbasis.tensors.params import StreamingMean, nbytes, require_finite, require_same
from fedbasis.tensors.seeding import seed_for, torch_generator
from pflbed.errors import InputError


class TestParams:
    @given(st.lists(st.tuples(st.floats(0.1, 10), st.integers(0, 1000)), min_size=1, max_size=6))
    def test_streaming_mean_is_the_weighted_mean(self, parts: list[tuple[float, int]]) -> None:
        tensors = [torch.randn(4, 3, generator=torch_generator(seed)) for _, seed in parts]
        mean = StreamingMean()
        for (weight, _), tensor in zip(parts, tensors, strict=True):
            mean.add({"w": tensor}, weight)
        wanted = np.average([t.double().numpy() for t in tensors], axis=0, weights=[weight for weight, _ in parts])
        np.testing.assert_allclose(mean.result()["w"].numpy(), wanted, rtol=1e-6, atol=1e-7)

    def test_differences_are_named(self) -> None:
        shapes = {"a": torch.Size([2]), "b": torch.Size([3])}
        with pytest.raises(InputError, match="'b' is missing; 'c' is not expected; 'a' has shape"):
            require_same({"a": torch.zeros(1), "c": torch.zeros(1)}, shapes, "It")

    def test_not_finite_is_refused_by_name(self) -> None:
        with pytest.raises(InputError, match="g/w"):
            require_finite({"g": {"w": torch.tensor([1.0, math.nan])}}, "It")

    def test_nothing_to_average(self) -> None:
        with pytest.raises(InputError, match="at least one update"):
            StreamingMean().result()

    def test_bytes(self) -> None:
        assert nbytes({"a": {"x": torch.zeros(3)}, "b": {"y": torch.zeros(2, dtype=torch.float64)}}) == 28


class TestBlocks:
    def test_resnet_blocks_and_torchvision_names(self) -> None:
        network = Network("resnet18", 7, 32)
        layout = network.layout(network.build())
        assert layout.blocks == ("layer1", "layer2", "layer3", "layer4", "fc")
        by_name = {entry.name: layout.blocks[entry.block] for entry in layout.entries}
        assert by_name["conv1.weight"] == by_name["bn1.running_var"] == "layer1"
        assert by_name["layer2.0.downsample.0.weight"] == "layer2"
        assert "bn1.num_batches_tracked" not in by_name
        assert sum(t.numel() for t in network.build().parameters()) == 11_180_103  # torchvision's, with 7 classes

    def test_resnet10_matches_its_published_size(self) -> None:
        assert sum(t.numel() for t in Network("resnet10", 7, 32).build().parameters()) == 308_439

    def test_any_module_works(self) -> None:
        class Odd(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.scale = nn.Parameter(torch.ones(3))
                self.norm = nn.BatchNorm1d(4, affine=False)
                self.body = nn.Linear(3, 4)
                self.act = nn.ReLU()
                self.head = nn.Linear(4, 2)

        layout = layout_of(Odd())
        assert layout.blocks == ("body", "head")
        assert {e.name: layout.blocks[e.block] for e in layout.entries}["scale"] == "body"
        assert layout_of(Odd(), 1).blocks == ("network",)
        mapped = layout_of(Odd(), {"all": ["scale", "body"], "top": ["head"]})
        assert mapped.block_of("head") == 1
        assert layout_of(nn.Linear(2, 2)).blocks == ("network",)

    @pytest.mark.parametrize(
        ("spec", "words"),
        [
            (2, "must be 1"),
            ({"a": ["0"]}, "no block's prefixes cover '2.weight'"),
            ({"a": ["0", "2"], "b": ["9"]}, "'b'"),
        ],
    )
    def test_wrong_blocks_are_explained(self, spec: object, words: str) -> None:
        module = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
        with pytest.raises(InputError, match=words):
            layout_of(module, spec)  # type: ignore[arg-type]

    def test_flat_model_is_the_module(self, tiny: Network) -> None:
        module = tiny.build(3)
        flat = FlatModel(module, layout_of(module))
        inputs = Preprocessing(12)(shapes_examples(6).pixels)
        flat.zero_gradients()
        torch.testing.assert_close(flat.module(inputs), module(inputs))
        loss = flat.module(inputs).square().mean()
        loss.backward()
        module(inputs).square().mean().backward()
        grads = torch.cat(flat.gradients)
        wanted = torch.cat([p.grad.reshape(-1) for p in module.parameters() if p.grad is not None])
        assert grads.shape == wanted.shape
        assert grads.norm() > 0
        state = flat.tensors()
        flat.weights[0].zero_()
        assert any(bool((p == 0).all()) for p in flat.module.parameters())
        flat.load(state)
        torch.testing.assert_close(
            dict(flat.module.named_parameters()), {n: state[n] for n, _ in module.named_parameters()}
        )

    def test_flatten_and_unflatten_are_inverse(self, tiny: Network) -> None:
        layout, tensors = tiny.layout(tiny.build()), tiny.initial(1)
        back = layout.unflatten(layout.flatten(tensors, True), layout.flatten(tensors, False))
        assert all(torch.equal(back[name], tensors[name]) for name in tensors)


class TestModels:
    def test_seeded_and_leaves_the_global_generator(self, tiny: Network) -> None:
        before = torch.random.get_rng_state()
        one, same, other = tiny.initial(1), tiny.initial(1), tiny.initial(2)
        assert torch.equal(before, torch.random.get_rng_state())
        assert all(torch.equal(one[n], same[n]) for n in one)
        assert any(not torch.equal(one[n], other[n]) for n in one)

    def test_own_factory(self) -> None:
        module = Network("torch.nn:Linear", 3, 12, {"in_features": 2, "out_features": 3})
        with pytest.raises(InputError, match="does not take these options"):
            module.build()
        with pytest.raises(InputError, match="cannot be imported"):
            Network("no.such:thing", 3, 12).build()
        with pytest.raises(InputError, match="must be one of"):
            Network("resnet", 3, 12).build()
        with pytest.raises(InputError, match="'norm' must be"):
            Network("cnn-small", 3, 12, {"norm": "layer"}).build()

    def test_classifier_is_the_last_linear_layer(self) -> None:
        assert classifier_of(Network("cnn", 3, 12).build()) == "fc"
        with pytest.raises(InputError, match="no linear layer"):
            classifier_of(nn.Conv2d(3, 3, 1))

    @pytest.mark.parametrize("name", ["resnet18", "resnet10", "cnn", "cnn-small"])
    def test_all_networks_run(self, name: str) -> None:
        network = Network(name, 5, 32)
        assert network.build().eval()(torch.zeros(2, 3, 32, 32)).shape == (2, 5)


class TestCoefficients:
    def test_sharpening_and_entropy(self) -> None:
        psi = torch.tensor([[0.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
        entropy = coefficients.entropy(coefficients.alpha(psi))
        assert entropy[0] == pytest.approx(math.log(4))
        assert coefficients.entropy(coefficients.alpha(psi, 0.1))[1] < 0.01 < entropy[1]
        c = coefficients.combination(coefficients.alpha(psi), True)
        assert torch.allclose(c.sum(1), torch.ones(2))
        assert torch.allclose(c[:, 0], torch.full((2,), 0.5))

    @given(st.integers(1, 6), st.booleans(), st.floats(0.1, 1), st.integers(0, 999))
    def test_pull_back_equals_autograd(self, bases: int, major: bool, tau: float, seed: int) -> None:
        psi = torch.randn(3, bases, generator=torch_generator(seed), dtype=torch.float64).requires_grad_()
        direction = torch.randn(3, bases + major, generator=torch_generator(seed + 1), dtype=torch.float64)
        (coefficients.combination(coefficients.alpha(psi, tau), major) * direction).sum().backward()  # type: ignore[no-untyped-call]
        assert psi.grad is not None
        torch.testing.assert_close(coefficients.pull_back(psi.detach(), direction, major, tau), psi.grad)


class TestClustering:
    def test_finds_directions_whatever_their_length(self) -> None:
        rng = np.random.default_rng(0)
        truth = np.repeat(np.arange(4), 10)
        directions = rng.normal(size=(4, 200))
        deltas = directions[truth] + 0.3 * rng.normal(size=(40, 200))
        deltas *= rng.lognormal(0, 2, size=(40, 1))  # raw lengths differ by orders of magnitude
        labels = cluster_directions(torch.from_numpy(deltas).float(), 4, seed=0)
        assert len(set(zip(truth.tolist(), labels.tolist(), strict=True))) == 4

    def test_equals_kmeans_on_the_normalized_points(self) -> None:
        """The Gram embedding keeps all distances: the same inertia as scikit-learn on the points themselves."""
        from sklearn.cluster import KMeans

        points = torch.randn(30, 7, generator=torch_generator(1), dtype=torch.float64)
        unit = (points / points.norm(dim=1, keepdim=True)).numpy()
        labels = cluster_directions(points, 3, seed=0)
        mine = sum(((unit[labels == k] - unit[labels == k].mean(0)) ** 2).sum() for k in range(3))
        best = min(KMeans(3, n_init=4, random_state=s).fit(unit).inertia_ for s in range(4))
        assert mine <= best * 1.05

    @settings(max_examples=15, deadline=None)
    @given(st.integers(4, 20), st.integers(0, 99))
    def test_no_cluster_of_one(self, count: int, seed: int) -> None:
        """One outlier must not take a basis for itself."""
        deltas = torch.ones(count, 5) + 0.01 * torch.randn(count, 5, generator=torch_generator(seed))
        deltas[0] = -deltas[0]
        assert min(Counter(cluster_directions(deltas, 2, seed).tolist()).values()) >= 2

    def test_too_few_models(self) -> None:
        with pytest.raises(InputError, match="at least 4 client models"):
            cluster_directions(torch.ones(3, 2), 4, 0)

    @pytest.mark.parametrize("by_block", [True, False])
    def test_models_become_the_means_of_their_clusters(self, tiny: Network, by_block: bool) -> None:
        layout, start = tiny.layout(tiny.build()), tiny.initial(0)
        moves = [tiny.initial(1), tiny.initial(2)]
        models = [{n: t + (0.1 + 0.01 * i) * moves[i % 2][n] for n, t in start.items()} for i in range(6)]
        means = cluster_models(layout, start, models, [1.0] * 6, 2, 0, by_block)
        wanted = [{n: torch.stack([m[n] for m in models[i::2]]).mean(0) for n in start} for i in range(2)]
        for name in ("fc.weight", "conv1.0.weight"):
            close = [[torch.allclose(mean[name], want[name], atol=1e-6) for want in wanted] for mean in means]
            assert sorted(map(sum, close)) == [1, 1]


class TestTraining:
    @given(st.integers(1, 60), st.integers(1, 20))
    def test_batches_cover_all_rows_once_and_none_is_single(self, count: int, batch: int) -> None:
        parts = batches(count, batch, torch_generator(0))
        assert sorted(torch.cat(parts).tolist()) == list(range(count))
        if batch > 1 and count > 1:
            assert min(map(len, parts)) > 1

    def test_local_sgd_equals_torch_sgd_by_hand(self, tiny: Network) -> None:
        recipe = Recipe(preprocessing=Preprocessing(12), epochs=2, batch=8, rate=0.05, momentum=0.9, decay=1e-2)
        data, model = shapes_examples(20), tiny.workspace()
        module = tiny.build()
        local_sgd(model, data, recipe, torch_generator("o"))
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-2)
        generator = torch_generator("o")
        module.train()
        for _ in range(2):
            for rows in batches(len(data), 8, generator):
                optimizer.zero_grad()
                nn.functional.cross_entropy(
                    module(recipe.preprocessing(data.pixels[rows])), data.labels[rows]
                ).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        got = model.tensors()
        for name, tensor in module.state_dict().items():
            if name in got:
                torch.testing.assert_close(got[name], tensor, rtol=1e-4, atol=1e-5)

    def test_preprocessing(self) -> None:
        pixels = torch.randint(0, 256, (2, 5, 5, 3), dtype=torch.uint8, generator=torch_generator(0))
        got = Preprocessing(5)(pixels)
        mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
        torch.testing.assert_close(got, ((pixels / 255 - mean) / std).permute(0, 3, 1, 2), rtol=1e-5, atol=1e-5)

    def test_shifting_moves_whole_images_and_flipping_mirrors(self) -> None:
        pixels = torch.zeros(64, 9, 9, 3, dtype=torch.uint8)
        pixels[:, 4, 3] = 200
        moved = augmented(pixels, "shift", torch_generator(0))
        assert bool((moved.sum(dim=(1, 2, 3)) == 600).all())
        assert len({tuple(map(int, m.sum(-1).nonzero()[0])) for m in moved}) > 10
        flipped = augmented(pixels, "flip+shift", torch_generator(0), reach=0)
        columns = {int(m.sum(-1).nonzero()[0][1]) for m in flipped}
        assert columns == {3, 5}
        assert torch.equal(augmented(pixels, "none", torch_generator(0)), pixels)

    def test_frozen_statistics_stay(self, tiny: Network, recipe: Recipe) -> None:
        model = tiny.workspace()
        before = [s.clone() for s in model.statistics]
        for _ in backward_passes(model, shapes_examples(12), recipe, torch_generator(0), statistics="frozen"):
            pass
        assert all(torch.equal(a, b) for a, b in zip(before, model.statistics, strict=True))

    def test_wrong_pixels_are_refused(self) -> None:
        with pytest.raises(InputError, match="uint8"):
            Examples(torch.zeros(2, 3, 4, 4), torch.zeros(2, dtype=torch.int64))
        with pytest.raises(InputError, match="one label per image"):
            Examples(torch.zeros(2, 4, 4, 3, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64))


def test_seeds_have_names() -> None:
    assert seed_for(1, "a") != seed_for(1, "b") != seed_for("1", "b")
    assert seed_for(0, "x") == seed_for(0, "x")
