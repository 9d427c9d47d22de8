"""The files of a Flower app: the recipe that nodes and server agree on, and the settings of the server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedloom.data import InputSpec, Kind
from fedloom.data.spec import Shape
from fedloom.deploy.secagg.quorum import share_counts
from fedloom.engine.about import about
from fedloom.engine.experiment import Experiment
from fedloom.engine.sites import Where
from fedloom.errors import FedloomError
from fedloom.evaluation.metrics import check as check_metrics
from fedloom.io.user_code import import_parts
from fedloom.methods import method
from fedloom.methods.api.secure_sums import check_sums
from fedloom.recipe import Recipe, SecAgg, read_recipe, recipe

RECIPE = "recipe.yaml"


@dataclass(frozen=True)
class Settings:
    """[tool.flwr.app.config] of the app's pyproject.toml; `flwr run --run-config` overrides them."""

    data: Where = "split"
    out: str = ""
    resume: bool = False
    test: str = ""
    scale: float = 255.0
    kind: str = ""  # image, features or tokens; empty: as the sites report
    shape: str = ""  # such as 3x32x32; empty: as the sites report
    vocabulary: int = 0  # of tokens; 0: as the sites report
    classes: str = ""  # names separated by commas; empty: as the sites report
    roster: str = ""
    confirm: str = ""  # fingerprint of the sites' claims that the operator confirms

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Settings:
        known = {name: config[name] for name in cls.__dataclass_fields__ if name in config}
        if unknown := sorted(set(config) - set(known)):
            raise FedloomError(
                f"app config: {unknown[0]} is unknown; allowed are {', '.join(cls.__dataclass_fields__)}"
            )
        if known.get("data", "split") not in ("split", "sites"):
            raise FedloomError(f"app config: data is {known['data']!r}; allowed are split and sites")
        if known.get("data") == "sites" and "scale" not in known:
            raise FedloomError("app config: scale is missing; inputs of the sites are x / scale, for example 255")
        return cls(**known)

    def agreed(self, claimed: InputSpec, names: tuple[str, ...]) -> tuple[InputSpec, tuple[str, ...]]:
        """Inputs and classes of the federation: from the settings, otherwise as the sites report."""
        if self.kind and self.kind != claimed.kind:
            raise FedloomError(f"app config: kind is {self.kind!r}, and the sites have {claimed.noun}")
        shape = sizes(self.shape, "app config: shape", claimed.kind) if self.shape else claimed.shape
        scale = self.scale if claimed.dtype == "uint8" else 1.0
        vocabulary = self.vocabulary or claimed.vocabulary
        if vocabulary < claimed.vocabulary:
            raise FedloomError(
                f"app config: vocabulary is {vocabulary}, and the sites have {claimed.vocabulary} tokens"
            )
        return replace(claimed, shape=shape, scale=scale, vocabulary=vocabulary), listed(self.classes) or names


EXAMPLES = {
    "image": "channels x height x width, such as 1x28x28",
    "features": "the number of features, such as 30, or of channels x time, such as 6x128",
    "tokens": "the length of a sequence, such as 64",
}


def sizes(text: str, what: str, kind: Kind = "image") -> Shape:
    """The shape of an input: of an image channels, height and width."""
    numbers = [int(number) if number.isdecimal() and len(number) < 8 else 0 for number in text.split("x")]
    axes = {"image": 3, "features": len(numbers), "tokens": 1}[kind]
    if len(numbers) != axes or len(numbers) > 6 or min(numbers) < 1:
        raise FedloomError(f"{what}: {text[:60]!r}; write {EXAMPLES[kind]}")
    return tuple(numbers)


def listed(text: str) -> tuple[str, ...]:
    """Names separated by commas, each once."""
    names = tuple(name.strip() for name in text.split(",")) if text else ()
    if "" in names or len(set(names)) < len(names):
        raise FedloomError(f"classes: {text[:60]!r}; write each name once, separated by commas")
    return names


def read(module: str | Path) -> Recipe:
    """The recipe next to a module of the app, in canonical form, so that its digest is the same everywhere."""
    return canonical(recipe(read_recipe(Path(module).parent / RECIPE)))


def canonical(given: Recipe) -> Recipe:
    import_parts(given.parts)
    check_metrics(given.metrics)
    if given.precision == "auto":
        raise FedloomError(
            "precision: auto is decided by one machine's processor, and nodes have others; write fp32 or bf16"
        )
    return given.changed(method=method(given.method).spelled(), name=None, out=None)


def check_federated(experiment: Experiment) -> None:
    """Refuse what nodes cannot do."""
    if experiment.program.pooled:
        raise FedloomError(
            f"method: {experiment.program.method} trains on all clients' data in one place, and nodes keep theirs"
        )
    if experiment.recipe.vmap != "off":
        raise FedloomError("vmap: a node has one client, so there is nothing to vmap over; set vmap to off")
    if experiment.recipe.deploy.secure_aggregation is not None:
        check_secure(experiment)


def check_secure(experiment: Experiment) -> None:
    """Refuse what needs more than the sums that the server learns under secure aggregation."""
    recipe = experiment.recipe
    with about("deploy.secure_aggregation"):
        check_sums(experiment.program.method, recipe.weighting, experiment.program.messages.queries)
        if recipe.participation == "bernoulli":
            raise FedloomError(
                "with participation: bernoulli a round may have 1 client, and the sum would be its upload; "
                "set participation to fixed"
            )
        if recipe.cohort_size < 2:
            raise FedloomError("a round has 1 client, so the sum would be its upload; raise fraction or clients")
        settings = recipe.deploy.secure_aggregation
        if settings is not None:
            _check_cohort(settings, recipe.cohort_size)
        if recipe.analyze_every:
            raise FedloomError("analyze_every needs the updates of single clients; set it to 0")


def _check_cohort(settings: SecAgg, size: int) -> None:
    """Refuse settings under which no round could have a sum, or with less protection than they suggest."""
    shares, threshold = share_counts(settings, size)
    if shares < size and settings.authenticated:
        raise FedloomError(
            f"num_shares is {shares} of a round's {size} clients, and a dishonest server could choose which; "
            "leave it out, or set authenticated to false"
        )
    if settings.min_clients is not None and not threshold <= settings.min_clients <= shares:
        raise FedloomError(
            f"min_clients is {settings.min_clients}; of a round's {size} clients, {threshold} are needed in any case "
            f"(reconstruction_threshold) and {shares} can be"
        )


def check_sites(given: Recipe) -> None:
    """Refuse what needs the data of all clients in one place, when every site keeps its own."""
    data = given.data
    for field, wanted in (
        ("validation", data.validation > 0),
        ("images", data.images is not None),
        ("test_images", data.test_images is not None),
        ("public", data.public > 0),
        ("public_to_clients", data.public_to_clients),
    ):
        if wanted:
            raise FedloomError(f"data.{field}: takes samples from all clients' data, which stay at the sites")
    for part in method(given.method).parts:
        if part.central_data == "some":
            raise FedloomError(
                f"method: {part.name} trains on clients' samples at the server, and they stay at the sites"
            )
    if data.normalize == "set":
        raise FedloomError(
            "data.normalize: set needs the mean over all clients' samples, which stay at the sites; write two lists or none"
        )
