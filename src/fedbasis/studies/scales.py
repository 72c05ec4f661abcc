"""The scales at which results can be had: smoke (seconds), cpu (two cores, real data), photo (two cores, an ImageNet
network and real photographs), paper (a GPU).

A scale says how each dataset is split, which network is trained and for how long, and which studies use which dataset.
``paper`` holds the paper's own settings (section 5.1 and appendix B). For CIFAR the paper refers to the public code of
Collins et al. 2021: networks, augmentation, rates and epochs are taken from there. What neither says is our choice, and
docs/how-to/reproduce.md lists it. The other scales are smaller in everything and use the settings of FedBasis found
to work at so few rounds (docs/explanation/fedbasis.md).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fedbasis.studies.tuned import winners
from pflbed.spec import TABLES, TUNING

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class TestbedSettings:
    """One dataset at one scale."""

    title: str
    data: Settings
    model: Settings
    train: Settings
    personalize: Settings
    fedbasis: Settings
    """The method's settings on this dataset."""
    train_by_method: Mapping[str, Settings] = field(default_factory=dict)
    """What single methods train with on this dataset instead of ``train``."""
    settings_by_method: Mapping[str, Settings] = field(default_factory=dict)
    """The settings of other methods than FedBasis on this dataset."""
    pretrained: bool = False
    """Whether the network starts from the weights that are given."""
    printed: str = ""
    """The dataset whose numbers in the paper are shown beside the measured ones, if it has another name."""
    tuning: Settings | None = None
    """How the tuning part is split among clients, on top of ``data``; None if nothing can be tuned."""
    further_rates: tuple[float, ...] = ()
    """Learning rates of personalization that a tuning tries beside those of ``personalize``."""
    carried: Mapping[str, Mapping[str, Settings]] = field(default_factory=dict)
    """What tuning on another dataset chose for a run, by section: for datasets that nothing was tuned on."""
    place: str = ""
    """The name by which ``--data`` gives its folder, if it is not that of the dataset."""


@dataclass(frozen=True)
class Scale:
    """Datasets and the studies that use them."""

    name: str
    what: str
    testbeds: Mapping[str, TestbedSettings]
    main: tuple[str, ...]
    """Tables 2, C and D, figure 4b."""
    hard: tuple[str, ...]
    """Tables 3, 4, B and F, figures 4a and F: Office-Home in the paper, and GLD23k for one of them."""
    counted: tuple[str, ...]
    """Table E."""
    collapse: str
    """Figures 2 and E, table A: forty clients, networks that start at random."""
    cifar: tuple[str, ...]
    cifar_all: tuple[str, ...]
    """The same images when all clients take part."""
    random_epochs: int
    """Epochs in all of the runs on ``collapse``."""
    random_round: int
    """Epochs a round, there."""
    curve_every: int
    """Rounds between two points of a curve of new clients' accuracy."""
    seeds: int
    """The default number of seeds."""
    wide_rates: tuple[float, ...] = (0.001, 0.005, 0.01, 0.05, 0.1)
    """Tables B and figure 4a."""
    bases: tuple[int, ...] = (1, 2, 4, 6, 8)
    components: int = 39
    """Of figure E: as many as forty models have around their mean."""
    compared: tuple[str, ...] | None = None
    """The methods and variants that the main tables compare; None: all."""
    further_ways: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What the main tables serve new clients with besides the ways that they have at every scale, by method."""

    @property
    def judges(self) -> bool:
        """Whether the paper's claims can be judged at this scale."""
        return self.name != "smoke"

    def tuned(self, testbed: str, name: str) -> Mapping[str, Settings]:
        """Return what ``fedbasis tune`` chose for a method or a variant of one, by section; empty if nothing."""
        return winners(self.name, testbed, name)

    def settings(self, testbed: str, method: str) -> Settings:
        """Return a method's settings on a dataset, the tuned ones included; what is not here is its default."""
        return {**self.untuned(testbed, method), **self.tuned(testbed, method).get("method", {})}

    def untuned(self, testbed: str, method: str) -> Settings:
        """Return a method's settings on a dataset before anything was tuned.

        By default L2GD communicates at random and FedRep trains its head for ten epochs. Here L2GD trains for the
        scale's epochs. FedRep's head keeps its ten, except at the scale ``smoke``. pFedMe's lambda of 15 is its
        authors' for MNIST; it keeps a new client near the server's model, so there it is 1, except at ``paper``.
        LG-FedAvg shares the last two blocks, as in the experiments of Collins et al. 2021.
        """
        bed = self.testbeds[testbed]
        settings: dict[str, Settings] = {
            "fedbasis": bed.fedbasis, "l2gd": {"probability": None}, "lg-fedavg": {"global_blocks": 2}
        }  # fmt: skip
        if self.name != "paper":
            settings["pfedme"] = {"new_client_strength": 1.0}
        if self.name == "smoke":
            settings["fedrep"] = {"head_epochs": bed.train["epochs"]}
        return {**settings, **bed.settings_by_method}.get(method, {})


# "Standard ImageNet-style pre-processing": the shorter side scaled to 256 pixels, the centre of 224; in training a part
# of 8 % to 100 % of the area, scaled to 224 pixels, and mirrored every second time.
IMAGENET: Settings = {"resolution": 256, "crop": 224}
ADAPT: Settings = {"epochs": 20, "rates": [0.005, 0.01, 0.05], "decay": 1e-4}
# The paper does not say whose normalization statistics a new client uses: each row takes the better on validation.
PAPER_ADAPT: Settings = {**ADAPT, "statistics": ["frozen", "own"]}
RESNET18: Settings = {"name": "resnet18"}
PFLBED: Settings = {"clients": 20, "new_clients": 10, "alpha": 0.3, "split": [60, 20, 5, 15]}
ROUNDS: Settings = {
    "rounds": 100, "epochs": 5, "batch": 16, "rate": 0.01, "momentum": 0.9, "decay": 1e-4,
    "augment": "resized-crop+flip",
}  # fmt: skip
SMALL: Settings = {"augment": "flip+shift"}  # of 32 pixels
SHARDS: Settings = {"partition": "shards", "classes_per_client": 5, "resolution": 32, "sizes": {"M": 1.0}}
SOME: Settings = {**SHARDS, "clients": 80, "new_clients": 20, "split": [76, 19, 5, 0]}
ALL: Settings = {**SHARDS, "clients": 100, "new_clients": 0, "split": [95, 0, 5, 0]}
# From lgcollins/FedRep: scripts/*_5shards.sh have 100 rounds, batches of 10, rate 0.01 and a tenth of 100 clients;
# models/Update.py has momentum 0.5 and decay 1e-4; utils/train_utils.py has the augmentation; epochs are 5 where no
# script says more (utils/options.py). The paper gives FedBasis five epochs on coefficients and on bases.
COLLINS: Settings = {
    "rounds": 100, "epochs": 5, "batch": 10, "rate": 0.01, "momentum": 0.5, "decay": 1e-4, "participation": 0.1,
    "augment": "padded-crop+flip",
}  # fmt: skip
COLLINS_TRAIN: Mapping[str, Settings] = {"fedavg": {"epochs": 1}}  # FedAvg_*_5shards.sh: --local_ep 1
COLLINS_SETTINGS: Mapping[str, Settings] = {
    "fedrep": {"head_epochs": 10},  # FedRep_*_5shards.sh: --local_ep 15 --local_rep_ep 5
    "fedprox": {"mu": 0.1},  # these three: defaults of utils/options.py
    "apfl": {"alpha": 0.75},
    "ditto": {"lam": 1.0},
}
CIFAR_ADAPT: Settings = {"epochs": 10, "rates": [0.01], "batch": 10, "momentum": 0.5, "validate_every": 10}
# What tuning chose on PACS at 32 pixels, learning rates and the number of bases apart: FedAvg trains for 90 % of the
# rounds before there are bases, and fine-tuning has a weaker proximal term.
CARRIED: Mapping[str, Mapping[str, Settings]] = {
    "fedbasis": {"method": {"warm_start": 0.9}}, "fedavg": {"personalize": {"prox": 0.1}},
}  # fmt: skip
NETWORKS = {"cifar10": "collins-cifar10", "cifar100": "collins-cifar100"}


def _pflbed(title: str, dataset: str) -> TestbedSettings:
    """One of the two cross-domain datasets with the paper's settings."""
    data = {**PFLBED, **IMAGENET, "dataset": dataset}
    return TestbedSettings(title, data, RESNET18, ROUNDS, {**PAPER_ADAPT, "batch": 16}, {"bases": 4}, pretrained=True)


def _cifar(
    title: str,
    dataset: str,
    clients: Settings,
    train: Settings,
    adapt: Settings,
    fedbasis: Settings,
    tuning: Settings | None = None,
) -> TestbedSettings:
    return TestbedSettings(
        title,
        {**clients, "dataset": dataset},
        {"name": NETWORKS[dataset]},
        train,
        adapt,
        {**fedbasis, "bases": 3},
        tuning=tuning,
    )


def _paper() -> Scale:
    natural = {
        **IMAGENET, "dataset": "gld23k", "partition": "natural", "clients": 117, "new_clients": 116,
        "split": [80, 0, 20, 0], "sizes": {"S": 0.1, "M": 0.2, "L": 0.4}, "min_rows": 1,
    }  # fmt: skip
    gld_rounds = {**ROUNDS, "rounds": 200, "batch": 64, "participation": 0.1}
    # A round has twelve clients, so the models of five rounds are clustered into eight bases.
    bases = {"bases": 8, "cluster_rounds": 5}
    gld = TestbedSettings("GLD23k", natural, RESNET18, gld_rounds, {**PAPER_ADAPT, "batch": 64}, bases, pretrained=True)
    testbeds = {"pacs": _pflbed("PACS", "pacs"), "office-home": _pflbed("Office-Home", "office-home"), "gld23k": gld}
    for name, title in (("cifar10", "CIFAR-10"), ("cifar100", "CIFAR-100")):
        for key, clients in ((name, SOME), (f"{name}-all", ALL)):
            testbed = _cifar(title, name, clients, COLLINS, CIFAR_ADAPT, {})
            testbeds[key] = replace(testbed, train_by_method=COLLINS_TRAIN, settings_by_method=COLLINS_SETTINGS)
    return Scale(
        "paper", "the paper's own settings", testbeds, main=("pacs", "office-home", "gld23k"),
        hard=("office-home", "gld23k"), counted=("pacs", "office-home"), collapse="pacs", cifar=("cifar10", "cifar100"),
        cifar_all=("cifar10-all", "cifar100-all"), random_epochs=100, random_round=5, curve_every=10, seeds=3,
    )  # fmt: skip


def _cpu() -> Scale:
    pacs = TestbedSettings(
        "PACS at 32 pixels",
        {**PFLBED, "dataset": "pacs", "resolution": 32, "part": TABLES},
        {"name": "resnet10", "options": {"width": 16}},
        {**ROUNDS, **SMALL, "rounds": 20, "epochs": 2},
        {**ADAPT, "batch": 16, "statistics": ["frozen", "own", "shrunk"]},
        {"bases": 4},
        pretrained=True,
        printed="pacs",
        tuning={"part": TUNING, "clients": 7, "new_clients": 4},  # about as many images a client as in the tables
        further_rates=(0.002,),  # fine-tuning prefers the lowest of the paper's three rates here
    )
    fifth, whole = {**COLLINS, "rounds": 30, "epochs": 2}, {**COLLINS, "rounds": 50, "epochs": 1}
    some, everyone, tune = {**SOME, "part": TABLES}, {**ALL, "limit": 1200, "part": TABLES}, {"part": TUNING}
    testbeds = {
        "pacs": pacs,
        "cifar10": replace(_cifar("CIFAR-10", "cifar10", some, whole, CIFAR_ADAPT, {}, tune), carried=CARRIED),
        "cifar100": replace(_cifar("CIFAR-100", "cifar100", some, whole, CIFAR_ADAPT, {}, tune), carried=CARRIED),
        "cifar10-all": replace(
            _cifar("a fifth of CIFAR-10", "cifar10", everyone, fifth, CIFAR_ADAPT, {}, tune),
            settings_by_method=COLLINS_SETTINGS,
            carried=CARRIED,
        ),
    }
    return Scale(
        "cpu", "small images and networks, for two cores", testbeds, main=("pacs",), hard=("pacs",), counted=("pacs",),
        collapse="pacs", cifar=("cifar10", "cifar100"), cifar_all=("cifar10-all",), random_epochs=25, random_round=5,
        curve_every=4, seeds=1, bases=(1, 2, 4, 8),
        further_ways={"fedavg": ("ft@own", "ft-prox@own", "prior+ft@own"), "knn-per": ("prior+knn+ft",)},
    )  # fmt: skip


def _photo() -> Scale:
    """A real backbone, whose lower blocks are frozen for every method: ``fedbasis features`` stores their activations.

    What takes hours is cut to one epoch a round and to the rows that tell most.
    """
    pacs = TestbedSettings(
        "PACS at 96 pixels, blocks 0 to 10 frozen",
        {
            **PFLBED,
            "dataset": "arrays",
            "resolution": 6,
            "channels": 112,
            "part": TABLES,
            "clients": 10,
            "new_clients": 5,
        },
        {"name": "efficientnet-lite0", "options": {"first_block": 11}},
        {**ROUNDS, "augment": "flip", "rounds": 20, "epochs": 1},
        {**ADAPT, "epochs": 10, "rates": [0.005], "batch": 16, "statistics": ["frozen", "own"]},
        {"bases": 4},
        pretrained=True,
        printed="pacs",
        tuning={"part": TUNING, "clients": 4, "new_clients": 2},
        place="pacs",
        carried=CARRIED,
    )
    return Scale(
        "photo", "the upper blocks of an ImageNet network and photographs of 96 pixels, for two cores", {"pacs": pacs},
        main=("pacs",), hard=("pacs",), counted=("pacs",), collapse="pacs", cifar=(), cifar_all=(), random_epochs=25,
        random_round=5, curve_every=4, seeds=1, bases=(1, 2, 4, 8),
        compared=("per-fedavg-fo", "knn-per", "fedavg", "fedbasis-paper", "fedbasis"),
        further_ways={"fedbasis": ("coefficients+classifier+ft", "prior+coefficients+classifier+ft")},
    )  # fmt: skip


def _smoke() -> Scale:
    """Too small to learn much: it shows that everything works."""
    data = {"clients": 2, "new_clients": 1, "limit": 16}
    tiny = {"name": "cnn-small", "options": {"width": 4, "norm": "batch"}}
    train = {"rounds": 2, "epochs": 1, "batch": 16, "rate": 0.05}
    adapt = {"epochs": 2, "rates": [0.01], "batch": 16, "validate_every": 2}
    shards = {**data, "new_clients": 2, "partition": "shards", "classes_per_client": 5, "sizes": {"M": 1.0}}
    alone = {**shards, "new_clients": 0, "split": [80, 0, 5, 15]}
    testbeds = {
        "digits4": TestbedSettings(
            "a part of Digits-4", data, tiny, train, adapt, {"bases": 2}, printed="pacs", tuning={"part": TUNING}
        ),
        "shards": TestbedSettings("a part of Digits-4", shards, tiny, train, adapt, {"bases": 2}, printed="cifar10"),
        "shards-all": TestbedSettings("a part of Digits-4", alone, tiny, train, adapt, {"bases": 2}, printed="cifar10"),
    }
    return Scale(
        "smoke", "a part of the embedded Digits-4, as a test of the command; too small for results", testbeds,
        main=("digits4",), hard=("digits4",), counted=("digits4",), collapse="digits4", cifar=("shards",),
        cifar_all=("shards-all",), random_epochs=2, random_round=1, curve_every=1, seeds=1,
        wide_rates=(0.01, 0.1), bases=(1, 2, 4), components=7,
        compared=("per-fedavg-fo", "knn-per", "fedrep", "fedavg", "fedbasis-paper", "fedbasis"),
    )  # fmt: skip


SCALES: Mapping[str, Scale] = {scale.name: scale for scale in (_smoke(), _cpu(), _photo(), _paper())}
