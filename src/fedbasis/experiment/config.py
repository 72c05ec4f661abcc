"""An experiment is one TOML file: data, model, training, method, personalization. All errors are reported at once.

A run is named by the hash of the settings that influence the result; ``[machine] device``, for example, does not.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, Strict, ValidationError, field_validator, model_validator

from fedbasis.engines.choice import Machine
from fedbasis.engines.download import Download
from fedbasis.experiment.protection import AggregationConfig, PrivacyConfig, unprotected
from fedbasis.experiment.toml import ConfigSection
from fedbasis.methods import METHODS, find_method
from fedbasis.methods.base import Adaptation, Method, MethodConfig
from fedbasis.methods.problems import problem_lines
from fedbasis.networks.augment import Augment
from fedbasis.networks.batches import Recipe
from fedbasis.networks.inputs import Preprocessing
from fedbasis.networks.models import MODELS, NETWORKS, sides
from fedbasis.networks.resolve import all_names
from fedbasis.networks.statistics import Statistics
from fedbasis.networks.weights import weights_path
from fedbasis.serving.artifact import Positive, Shift
from fedbasis.serving.automatic import AUTO
from fedbasis.serving.personalize import CLIENT_STATE, all_ways, split_way, without_prior
from fedbasis.tensors.flat import Precision
from pflbed import Spec
from pflbed.dataset import EMBEDDED
from pflbed.errors import InputError, InputListError, did_you_mean
from pflbed.files import sha256_of
from pflbed.foreign import read_toml
from pflbed.images import Resolution
from pflbed.normalization import Normalization
from pflbed.spec import PARTITIONS

Side = Annotated[int, Field(ge=1, le=1024)]


class DataConfig(ConfigSection):
    """The images, and how they are split among clients."""

    source: str = Field(
        default=EMBEDDED,
        description="'digits4' (embedded), a folder <domain>/<class>/<image>, a folder of arrays, or a benchmark of "
        "'pflbed build'",
    )
    dataset: str | None = Field(
        default=None, description="the dataset in the folder: pacs, cifar10 ...; unset: any images"
    )
    part: Literal["all", "tuning", "tables"] = Field(
        default="all",
        description="tuning: a fixed quarter of the images, by their pixels, to choose settings on; tables: the others",
    )
    resolution: Side | Annotated[tuple[Side, Side], Strict(False)] = Field(
        default=28, description="images are scaled and cropped to this square, or to [height, width]"
    )
    crop: Side | Annotated[tuple[Side, Side], Strict(False)] | None = Field(
        default=None, description="size of the network's inputs, the centres of the images; unset: the whole images"
    )
    channels: int = Field(default=3, ge=1, le=256, description="3: colour, 1: gray; or those of an array")
    mean: Annotated[tuple[Shift, ...], Strict(False)] | None = Field(
        default=None,
        min_length=1,
        max_length=256,
        description="mean of every channel, of values from 0 to 1; unset: that of the data set, else ImageNet's",
    )
    std: Annotated[tuple[Positive, ...], Strict(False)] | None = Field(
        default=None, min_length=1, max_length=256, description="standard deviation of every channel, with 'mean'"
    )
    clients: int = Field(default=20, ge=1, le=1_000_000, description="participating clients per domain")
    new_clients: int = Field(default=10, ge=0, le=1_000_000, description="new clients per domain")
    alpha: float = Field(default=0.3, ge=1e-3, le=1e6, description="Dirichlet concentration over classes")
    partition: str = Field(default="dirichlet", description=f"how images are split: {', '.join(PARTITIONS)}")
    classes_per_client: int = Field(default=5, ge=1, le=100_000, description="for shards: classes of every client")
    domain_alpha: float = Field(
        default=0.3, ge=1e-3, le=1e6, description="for mixtures: Dirichlet concentration over domains"
    )
    split: Annotated[tuple[float, float, float, float], Strict(False)] = Field(
        default=(60, 20, 5, 15), description="shares of participating/new/validation/test images in %"
    )
    min_rows: int = Field(default=2, ge=1, le=1_000_000, description="the least number of images of a client")
    limit: int | None = Field(
        default=None, ge=1, le=1_000_000_000, description="at most this many images of each class of each domain"
    )
    sizes: dict[str, float] = Field(
        default={"S": 0.5, "M": 1.0}, max_length=20, description="shares of a new client's images"
    )

    @field_validator("sizes")
    @classmethod
    def _in_order(cls, sizes: dict[str, float]) -> dict[str, float]:
        return dict(sorted(sizes.items(), key=lambda size: size[1]))

    @field_validator("split")
    @classmethod
    def _can_validate(cls, split: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
        if split[2] <= 0:
            raise ValueError("the third share, validation, must be above 0: rates and epochs are chosen by it")
        return split

    @model_validator(mode="after")
    def _is_inside(self) -> Self:
        if self.crop is not None and any(
            part > whole for part, whole in zip(sides(self.crop), sides(self.resolution), strict=True)
        ):
            raise ValueError(f"crop must be at most the resolution, {self.resolution}, but it is {self.crop}")
        return self

    @model_validator(mode="after")
    def _has_every_channel(self) -> Self:
        given = [None if values is None else len(values) for values in (self.mean, self.std)]
        if given not in ([None, None], [self.channels, self.channels]):
            raise ValueError(f"mean and std must both have a number for each of {self.channels} channels, or be unset")
        return self

    @property
    def input_resolution(self) -> Resolution:
        """The size of the network's inputs."""
        return self.resolution if self.crop is None else self.crop

    def preprocessing(self, channels: int) -> Preprocessing:
        """Return how decoded images become inputs."""
        if self.mean is None or self.std is None:
            return Preprocessing.of(self.resolution, channels, self.crop)
        return Preprocessing(self.resolution, self.mean, self.std, self.crop)

    def normalized(self, by: Normalization | None) -> Self:
        """Return these settings with the normalization of the data set, unless they have one."""
        if by is None or self.mean is not None:
            return self
        return self.model_copy(update={"channels": len(by.mean), "mean": by.mean, "std": by.std})

    def spec(self, seed: int) -> Spec:
        """Return PFLBed's specification of the benchmark."""
        return Spec(
            clients_per_domain=self.clients, new_clients_per_domain=self.new_clients, alpha=self.alpha,
            split=self.split, min_rows=self.min_rows, sizes=self.sizes, seed=seed, partition=self.partition,
            classes_per_client=self.classes_per_client, domain_alpha=self.domain_alpha, part=self.part,
        )  # fmt: skip

    def as_built(self, spec: Spec) -> Self:
        """Return these settings with those of a benchmark that is already built."""
        return self.model_copy(
            update={
                "clients": spec.clients_per_domain, "new_clients": spec.new_clients_per_domain, "alpha": spec.alpha,
                "split": spec.split, "min_rows": spec.min_rows, "sizes": dict(spec.sizes),
                "partition": spec.partition, "classes_per_client": spec.classes_per_client,
                "domain_alpha": spec.domain_alpha, "part": spec.part,
            }
        )  # fmt: skip


class ModelConfig(ConfigSection):
    """The network: its name, its options, its blocks and its initial weights."""

    name: str = Field(default="cnn-small", description=f"one of {', '.join(MODELS)}, or your own 'module:factory'")
    options: dict[str, Any] = Field(default={}, description="passed to the network, such as width or norm")
    blocks: int | dict[str, list[str]] | None = Field(
        default=None, description="1: one block; or block -> parameter-name prefixes; unset: the network's own blocks"
    )
    weights: str | None = Field(default=None, description="pretrained weights: 'tiny-imagenet', or a safetensors file")

    @field_validator("name")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if ":" not in name and name not in MODELS and name not in (names := all_names(MODELS, NETWORKS)):
            raise ValueError(f"there is no such network{did_you_mean(name, names)}")
        return name


Share = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Rate = Annotated[float, Field(ge=1e-9, le=1000)]


class TrainConfig(ConfigSection):
    """The rounds, and the local SGD of every client."""

    rounds: int = Field(default=100, ge=1, le=1_000_000, description="number of rounds")
    participation: Count | Share = Field(default=1.0, description="clients a round: a share (1.0) or a number (10)")
    weighting: Literal["uniform", "examples"] = Field(
        default="uniform", description="weights of clients in means: equal, or by their images"
    )
    epochs: int = Field(default=5, ge=1, le=100_000, description="local epochs a round")
    batch: int = Field(default=16, ge=1, le=1_000_000, description="images per step")
    rate: Rate = Field(default=0.01, description="learning rate")
    momentum: float = Field(default=0.9, ge=0, lt=1, description="momentum of SGD")
    decay: float = Field(default=1e-4, ge=0, le=1000, description="weight decay")
    augment: Augment = Field(
        default="none",
        description="random changes of training images: flip, shift; or mirroring with shifts, with crops of the "
        "padded image (as usual on CIFAR), or with crops that are scaled to the input's size (as usual on ImageNet)",
    )
    serve_every: int = Field(
        default=0, ge=0, le=1_000_000, description="rounds between two personalizations of all clients; 0: never"
    )

    download: Download = Field(
        default="float32",
        description="precision of the tensors that a client receives: float32, bfloat16 (half the bytes), or compact "
        "(bases as one reference and differences of 4 bits)",
    )

    precision: Precision = Field(
        default="float32",
        description="arithmetic of training steps: float32, or bf16 (bfloat16 by torch's autocast, for GPUs); weights, "
        "means and evaluation are float32",
    )

    def recipe(self, preprocessing: Preprocessing) -> Recipe:
        """Return how a client trains locally."""
        return Recipe(
            preprocessing=preprocessing,
            epochs=self.epochs,
            batch=self.batch,
            rate=self.rate,
            momentum=self.momentum,
            decay=self.decay,
            augment=self.augment,
        )


class WayConfig(ConfigSection):
    """What one way of personalizing chooses from, instead of what all ways do."""

    rates: Annotated[tuple[Rate, ...], Strict(False)] | None = Field(
        default=None, min_length=1, max_length=100, description="learning rates; unset: those of [personalize]"
    )
    statistics: Annotated[tuple[Statistics, ...], Strict(False)] | None = Field(
        default=None, min_length=1, max_length=3, description="normalization statistics; unset: those of [personalize]"
    )


class PersonalizeConfig(ConfigSection):
    """How clients are personalized and scored after training."""

    whom: Literal["new", "participating"] = Field(default="new", description="which clients: new, or participating")
    ways: Annotated[tuple[str, ...], Strict(False)] | None = Field(
        default=None,
        min_length=1,
        max_length=100,
        description="none, prior, lp, ft, ft-prox, bn, auto, the method's own, own+lp, own+ft, client-state; unset: "
        "the method's; prior+ before a way starts it from the client's class prior; @frozen, @own or @shrunk after it "
        "fixes its statistics",
    )
    final_round: bool = Field(
        default=True,
        description="for client-state: after the last round all clients train once more; their updates are discarded",
    )
    epochs: int = Field(default=20, ge=1, le=100_000, description="epochs of personalization")
    rates: Annotated[tuple[Rate, ...], Strict(False)] = Field(
        default=(0.005, 0.01, 0.05),
        min_length=1,
        max_length=100,
        description="learning rates; one is chosen on validation data",
    )
    momentum: float = Field(default=0.9, ge=0, lt=1, description="momentum of SGD")
    decay: float = Field(default=1e-4, ge=0, le=1000, description="weight decay")
    batch: int = Field(default=16, ge=1, le=1_000_000, description="images per step")
    prox: float = Field(default=1.0, gt=0, le=1e6, description="strength of the proximal term of ft-prox")
    statistics: Annotated[tuple[Statistics, ...], Strict(False)] | None = Field(
        default=None,
        min_length=1,
        max_length=3,
        description="normalization statistics: frozen (the server's), own (the client's), shrunk (a mean of both); "
        "one is chosen on validation data; unset: frozen where little is trained, else own",
    )
    by_way: dict[str, WayConfig] = Field(
        default={}, max_length=100, description="rates and statistics of single ways: way -> {rates, statistics}"
    )
    prior_images: float = Field(
        default=16.0, gt=0, le=1e6, description="for shrunk: how many images the server's statistics count as"
    )
    validate_every: int = Field(
        default=1,
        ge=1,
        le=100_000,
        description="epochs between two evaluations on validation data; must divide 'epochs'",
    )

    def adaptation(self) -> Adaptation:
        """Return the settings of a client's personalization, at the first rate."""
        return Adaptation(
            epochs=self.epochs,
            rate=self.rates[0],
            decay=self.decay,
            momentum=self.momentum,
            batch=self.batch,
            prox=self.prox,
            prior_images=self.prior_images,
            validate_every=self.validate_every,
        )

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.epochs % self.validate_every:
            raise ValueError(f"validate_every must divide epochs, but {self.epochs} is not a multiple of it")
        return self


class MachineConfig(ConfigSection):
    """The engine and its workers. Only ``threads`` is part of the run's name: it can change the last bits."""

    engine: Literal["auto", "serial", "pool", "ray"] = Field(
        default="auto",
        description="serial, pool (processes), ray (a cluster); auto: pool where there are several cores",
    )
    workers: int | None = Field(
        default=None, ge=1, le=4096, description="worker processes; unset: one per core, or two per GPU"
    )
    device: str = Field(
        default="auto", max_length=40, pattern=r"^[a-z]+(:[0-9]{1,3})?$", description="auto, cpu, cuda, cuda:1, mps ..."
    )
    checkpoint_seconds: float = Field(default=1.0, ge=0, le=1e6, description="the least time between two checkpoints")
    threads: int = Field(
        default=1, ge=1, le=256, description="threads of every process; small networks are fastest with 1"
    )

    def machine(self) -> Machine:
        """Return the settings of the engine."""
        return Machine(engine=self.engine, workers=self.workers, device=self.device, threads=self.threads)


class Experiment(ConfigSection):
    """One training run and its evaluation."""

    seed: int = Field(default=0, ge=0, lt=2**63, description="seed of all random choices")
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    personalize: PersonalizeConfig = PersonalizeConfig()
    machine: MachineConfig = MachineConfig()
    aggregation: AggregationConfig = AggregationConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    method_name: str
    method: MethodConfig

    @property
    def ways(self) -> tuple[str, ...]:
        """The ways of personalizing that are evaluated."""
        return self.personalize.ways or find_method(self.method_name).ways.default

    @property
    def training(self) -> "Experiment":
        """The same for experiments that train alike: without what matters only when new clients are served."""
        if self.train.serve_every:
            return self
        name = METHODS[self.method_name].trains_as if self.method_name in METHODS else ""
        method = {"method_name": name, "method": METHODS[name].Config()} if name else {}
        return self.model_copy(update={"personalize": PersonalizeConfig(), **method})

    @property
    def slug(self) -> str:
        """The method's name, as used in folder names."""
        return re.sub(r"[^a-z0-9]+", "-", self.method_name.rpartition(":")[2].lower()).strip("-")

    def as_dict(self) -> dict[str, Any]:
        """Return everything, defaults included, as plain data."""
        return {
            **self.model_dump(mode="json", exclude={"method", "method_name"}),
            "method": {"name": self.method_name, **self.method.model_dump(mode="json")},
        }

    def digest(self, data_digest: str) -> str:
        """Return a hash of all that influences the result: settings, data, contents of weights; paths are left out."""
        settings = self.as_dict()
        for key in ("engine", "workers", "device", "checkpoint_seconds"):
            settings["machine"].pop(key)
        settings["data"].pop("source")
        if (
            self.data.mean is None and self.data.std is None
        ):  # a setting that is newer than runs which are kept: unset, it renames none
            settings["data"] = {key: value for key, value in settings["data"].items() if key not in ("mean", "std")}
        if not self.personalize.by_way:  # the same
            settings["personalize"].pop("by_way")
        if self.train.download == "float32":  # the same
            settings["train"].pop("download")
        if self.train.precision == "float32":
            settings["train"].pop("precision")
        if self.model.weights is not None:
            settings["model"]["weights"] = sha256_of(weights_path(self.model.weights))
        text = json.dumps([settings, data_digest], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def parse(
    raw: Mapping[str, Any], where: str = "the configuration", *, trust: bool = True, kind: type[Method] | None = None
) -> Experiment:
    """Validate a configuration and report all errors at once.

    Args:
        raw: The tables of the file as plain data.
        where: What error messages call it.
        trust: Whether a method that is not built in may be imported.
        kind: The method's class; None: import it by its name.
    """
    raw = dict(raw)
    method = raw.pop("method", None)
    problems: list[str] = []
    name, config = "", MethodConfig()
    if not isinstance(method, Mapping) or not isinstance(method.get("name"), str):
        problems.append(f"[method] needs a 'name', one of {', '.join(METHODS)}")
    else:
        name = method["name"]
        try:
            kind = kind or _method(name, trust)
            settings = {key: value for key, value in method.items() if key != "name"}
            config = kind.Config.model_validate_json(json.dumps(settings, default=str), strict=True)
        except ValidationError as error:
            assert kind is not None
            problems += problem_lines(error, ("method",), kind.Config)
        except InputError as error:
            problems.append(f"method.name: {str(error).rstrip('.')}")
    if raw.pop("method_name", None) is not None:
        problems.append("'method_name' is not a key (did you mean 'method'?)")
    try:
        experiment = Experiment(method_name=name, method=config, **raw)
    except ValidationError as error:
        problems += problem_lines(error, (), Experiment)
    else:
        problems += _misfits(experiment, kind)
    if problems:
        raise InputListError(where, problems)
    return experiment


def _method(name: str, trust: bool) -> type[Method]:
    if name not in METHODS and ":" not in name and (hint := did_you_mean(name, list(METHODS))).startswith(" (did"):
        raise InputError(f"there is no method '{name}'{hint}")
    if name not in METHODS and not trust:
        raise InputError(f"the code of '{name}' would be run; if you trust its source, add --trust")
    return find_method(name)


def read(path: Path) -> Experiment:
    """Read a TOML file."""
    return parse(read_toml(path, "The configuration", "see experiments/ for ready ones"), str(path))


def _misfits(experiment: Experiment, kind: type[Method] | None) -> list[str]:
    """Return the problems of settings that are valid by themselves but do not fit together."""
    problems: list[str] = []
    try:
        experiment.data.spec(experiment.seed)
    except InputError as error:
        problems.append(f"[data] {error}")
    if kind is not None:
        takes_part = experiment.personalize.whom == "participating"
        allowed = (*all_ways(kind), AUTO, *((CLIENT_STATE,) if takes_part and kind.state_group else ()))
        wrong = [way for way in experiment.personalize.ways or () if without_prior(split_way(way)[0]) not in allowed]
        problems += [f"personalize.ways has '{way}'{did_you_mean(way, list(allowed))}" for way in wrong]
        served = experiment.personalize.ways or kind.ways.default
        unused = [way for way in experiment.personalize.by_way if way not in served]
        problems += [f"personalize.by_way has '{way}'{did_you_mean(way, list(served))}" for way in unused]
    problems += unprotected(
        experiment.aggregation,
        experiment.privacy,
        kind,
        by_examples=experiment.train.weighting == "examples",
        participating=experiment.personalize.whom == "participating",
    )
    if experiment.privacy.noise_multiplier and experiment.train.download != "float32":
        problems.append(
            "[privacy] clips the difference from what the server has, not from what a client received; set "
            "train.download = 'float32'"
        )
    if experiment.personalize.whom == "participating" and 1.0 not in experiment.data.sizes.values():
        problems.append("participating clients have all of their images, but data.sizes has no size of 1.0")
    if experiment.personalize.whom == "new" and not experiment.data.new_clients:
        problems.append(
            "data.new_clients is 0, so there are no clients to serve (did you mean whom = 'participating'?)"
        )
    return problems
