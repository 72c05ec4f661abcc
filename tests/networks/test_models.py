"""The networks: sizes, seeds, options, and one's own."""

import pytest
import torch
from torch import nn

from fedbasis.engines.in_process import InProcess
from fedbasis.engines.simulation import Simulation
from fedbasis.methods.base import Context, Task
from fedbasis.methods.fedavg import FedAvg
from fedbasis.networks.batches import Recipe
from fedbasis.networks.inputs import Examples, Preprocessing
from fedbasis.networks.models import MODELS, Network, classifier_of
from pflbed.errors import InputError
from pflbed.images import Resolution
from shapes import shapes_examples


def test_resnet10_matches_its_published_size() -> None:
    assert sum(t.numel() for t in Network("resnet10", 7, 32).build().parameters()) == 308_439


def test_seeded_and_leaves_the_global_generator(tiny: Network) -> None:
    before = torch.random.get_rng_state()
    one, same, other = tiny.initial(1), tiny.initial(1), tiny.initial(2)
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(one[n], same[n]) for n in one)
    assert any(not torch.equal(one[n], other[n]) for n in one)


def test_own_factory() -> None:
    module = Network("torch.nn:Linear", 3, 12, {"in_features": 2, "out_features": 3})
    with pytest.raises(InputError, match="does not take these options"):
        module.build()
    with pytest.raises(InputError, match="must be importable"):
        Network("no.such:thing", 3, 12).build()
    with pytest.raises(InputError, match="must be one of"):
        Network("resnet", 3, 12).build()
    with pytest.raises(InputError, match="'norm' must be"):
        Network("cnn-small", 3, 12, {"norm": "layer"}).build()


def test_classifier_is_the_last_linear_layer() -> None:
    assert classifier_of(Network("cnn", 3, 12).build()) == "fc"
    with pytest.raises(InputError, match="no linear layer"):
        classifier_of(nn.Conv2d(3, 3, 1))


@pytest.mark.parametrize(
    ("name", "classes", "shapes"),
    [
        ("collins-cifar10", 10, [(64, 3, 5, 5), (64, 64, 5, 5), (120, 1600), (64, 120), (10, 64)]),
        ("collins-cifar100", 100, [(64, 3, 5, 5), (128, 64, 5, 5), (256, 3200), (128, 256), (100, 128)]),
    ],
)
def test_the_networks_of_collins_have_the_shapes_of_their_code(
    name: str, classes: int, shapes: list[tuple[int, ...]]
) -> None:
    """Written down from models/Nets.py of lgcollins/FedRep."""
    module = Network(name, classes, 32).build()
    weights = [tuple(p.shape) for key, p in module.named_parameters() if key.endswith("weight")]
    assert weights == shapes
    assert classifier_of(module) == "fc3"
    dropouts = [layer.p for layer in module.modules() if isinstance(layer, nn.Dropout)]
    assert dropouts == [0.6 if classes == 100 else 0.0]
    x, layers = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)), dict(module.named_parameters())
    got, functional = module.eval()(x), nn.functional
    for conv in ("conv1.0", "conv2.0"):
        x = functional.max_pool2d(functional.conv2d(x, layers[f"{conv}.weight"], layers[f"{conv}.bias"]).relu(), 2)
    x = x.flatten(1)
    for linear in ("fc1.0", "fc2.0"):
        x = functional.linear(x, layers[f"{linear}.weight"], layers[f"{linear}.bias"]).relu()
    torch.testing.assert_close(got, functional.linear(x, layers["fc3.weight"], layers["fc3.bias"]))


def test_dropout_is_drawn_from_the_run_s_seed() -> None:
    """Twice the same update with another state of torch's global generator between them, which is not changed."""
    network = Network("collins-cifar100", 3, 16, {"dropout": 0.5})
    method = FedAvg.build(None, Task(network, Recipe(preprocessing=Preprocessing(16), epochs=1, batch=8), rounds=1))
    data = shapes_examples(16)
    data = Examples(nn.functional.pad(data.pixels, (0, 0, 2, 2, 2, 2)), data.labels)
    engine = Simulation(InProcess(method), {"a": data}, seed=3)
    server = method.init(3)
    results = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        before = torch.random.get_rng_state()
        (_, sent), *_ = engine.map(server, ["a"], 0)
        assert torch.equal(before, torch.random.get_rng_state())
        results.append(sent.tensors["model"])
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])
    (_, other), *_ = engine.map(server, ["a"], 1)
    assert any(not torch.equal(results[0][name], other.tensors["model"][name]) for name in results[0])


@pytest.mark.parametrize("name", ["resnet18", "resnet10", "cnn", "cnn-small"])
def test_all_networks_run(name: str) -> None:
    network = Network(name, 5, 32)
    assert network.build().eval()(torch.zeros(2, 3, 32, 32)).shape == (2, 5)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("channels", [1, 5])
@pytest.mark.parametrize("resolution", [32, (24, 40)])
def test_all_networks_take_any_channels_and_sides(name: str, channels: int, resolution: Resolution) -> None:
    network = Network(name, 3, resolution, channels=channels)
    height, width = (resolution, resolution) if isinstance(resolution, int) else resolution
    network.check()
    assert network.input_shape == (channels, height, width)
    module = network.build()
    assert module.eval()(torch.zeros(2, channels, height, width)).shape == (2, 3)
    first = next(layer for layer in module.modules() if isinstance(layer, nn.Conv2d))
    assert first.in_channels == channels
    classifier = module.get_submodule(classifier_of(module))
    assert isinstance(classifier, nn.Linear)
    seen: list[torch.Size] = []
    classifier.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0].shape))
    module(torch.zeros(2, channels, height, width))
    assert seen == [torch.Size([2, int(classifier.in_features)])]  # nothing of a longer side is lost or made up


def test_other_sides_than_it_was_built_for_are_refused() -> None:
    """What is flattened has as many numbers as the sides say, and no network takes others."""
    module = Network("cnn", 3, (24, 48)).build()
    assert module(torch.zeros(2, 3, 24, 48)).shape == (2, 3)
    with pytest.raises(RuntimeError):
        module(torch.zeros(2, 3, 20, 48))


def asks_for_nothing(classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 12 * 12, classes))


def asks_for_shapes(classes: int, resolution: Resolution, channels: int, hidden: int = 4) -> nn.Module:
    height, width = (resolution, resolution) if isinstance(resolution, int) else resolution
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, hidden), nn.Linear(hidden, classes))


class TestFactory:
    def test_is_called_with_what_it_asks_for(self) -> None:
        one = Network.of(asks_for_nothing, 5, (12, 12, 3))
        assert one.build()(torch.zeros(2, 3, 12, 12)).shape == (2, 5)
        other = Network.of(asks_for_shapes, 5, (8, 10, 2), hidden=7)
        assert other.resolution == (8, 10)
        assert other.build()(torch.zeros(2, 2, 8, 10)).shape == (2, 5)
        assert other.build()[1].out_features == 7  # type: ignore[index]

    def test_is_drawn_by_the_seed_alone_and_can_be_named(self) -> None:
        given = Network.of(asks_for_nothing, 3, (12, 12, 3))
        named = Network(f"{__name__}:asks_for_nothing", 3, 12)
        assert given.name == named.name
        for seed in (0, 4):
            assert all(torch.equal(t, named.initial(seed)[n]) for n, t in given.initial(seed).items())
        assert not torch.equal(given.initial(0)["1.weight"], given.initial(1)["1.weight"])
        assert given.given_weights() is None

    def test_one_that_does_not_fit_is_refused_before_any_work(self) -> None:
        Network.of(asks_for_nothing, 5, (12, 12, 3)).check()
        with pytest.raises(InputError, match="must take images of 12 x 13 pixels and 3 channels, but it does not"):
            Network.of(asks_for_nothing, 5, (12, 13, 3)).check()
        with pytest.raises(InputError, match=r"must turn 2 images into \(2, 5\) logits, but it gave \(2, 4\)"):
            Network.of(lambda classes: asks_for_nothing(4), 5, (12, 12, 3)).check()
        with pytest.raises(InputError, match=r"must return a torch nn\.Module"):
            Network.of(lambda classes: "nothing", 5, (12, 12, 3)).build()  # type: ignore[arg-type, return-value]


class TestModule:
    """An ``nn.Module`` instance as a network."""

    @staticmethod
    def given() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(11)
            return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 10 * 10, 3))

    def test_training_starts_from_its_own_weights(self, recipe: Recipe) -> None:
        module = self.given()
        module[1].running_mean.fill_(0.5)  # type: ignore[index]
        network = Network.of(module, 3, (12, 12, 3))
        task = Task(network, recipe, 2, weights=network.given_weights())
        wanted = {name: t for name, t in module.state_dict().items() if t.is_floating_point()}
        for seed in (0, 7):
            start = FedAvg.build(None, task).init(seed)["model"]
            assert start.keys() == wanted.keys()
            assert all(torch.equal(start[name], tensor) for name, tensor in wanted.items())

    def test_other_weights_are_drawn_anew_by_the_seed(self) -> None:
        module = self.given()
        network = Network.of(module, 3, (12, 12, 3))
        one, same, other = network.build(1), network.build(1), network.build(2)
        assert torch.equal(one[0].weight, same[0].weight)  # type: ignore[index]
        assert not torch.equal(one[0].weight, other[0].weight)  # type: ignore[index]
        for name in ("0.weight", "3.weight", "3.bias"):
            assert not torch.equal(one.state_dict()[name], module.state_dict()[name])

    def test_the_users_module_is_never_touched(self, recipe: Recipe) -> None:
        module = self.given()
        before = {name: t.clone() for name, t in module.state_dict().items()}
        network = Network.of(module, 3, (12, 12, 3))
        method = FedAvg.build(None, Task(network, recipe, 2, weights=network.given_weights()))
        context = Context(7, "c", network.workspace())
        sent, _ = method.client_update(method.init(7), None, shapes_examples(12), context)
        assert not torch.equal(sent.tensors["model"]["0.weight"], before["0.weight"])
        assert all(torch.equal(t, before[name]) for name, t in module.state_dict().items())
        assert module.training
        assert all(p.grad is None for p in module.parameters())


@pytest.mark.parametrize("name", ["resnet10", "resnet18", "cnn-small"])
@pytest.mark.parametrize("width", [0, -1, 2**63 - 1, 1.5, "x", True, [1]])
def test_a_width_that_is_none_is_refused_in_our_words(name: str, width: object) -> None:
    with pytest.raises(InputError, match="'width' must be a whole number from 1 to 4096, but it is"):
        Network(name, 3, 12, {"width": width}).skeleton()


def test_unknown_options_are_named_with_those_that_there_are() -> None:
    with pytest.raises(InputError, match="does not take these options: depth; it takes norm, width"):
        Network("cnn-small", 3, 12, {"depth": 3}).build()
    with pytest.raises(InputError, match="'norm' must be one of batch, group, none"):
        Network("cnn-small", 3, 12, {"norm": ["batch"]}).build()
