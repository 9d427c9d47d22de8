"""Hub datasets with a plain name, such as cifar10: their repositories and columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from urllib.parse import urlencode

from fedloom.data.arrays import Content
from fedloom.data.hub_content import Unreachable
from fedloom.data.sources.hub import open_hub
from fedloom.data.sources.source import DataSource, data_name
from fedloom.errors import FedloomError


@dataclass(frozen=True)
class HubDataset:
    repository: str
    summary: str
    image: str = "image"
    label: str = "label"
    config: str = ""
    domain: str = ""
    writer: str = ""
    test: str = ""  # the test split, where it is not the usual one

    @property
    def address(self) -> str:
        """What follows hf: in a recipe."""
        names = ("image", "label", "config", "domain", "writer", "test")
        columns = {name: getattr(self, name) for name in names if getattr(self, name)}
        return f"{self.repository}?{urlencode(columns)}"


HUB_NAMES = {
    "cifar10": HubDataset("uoft-cs/cifar10", "60,000 photographs of 10 classes, 32 x 32 x 3", image="img"),
    "cifar100": HubDataset(
        "uoft-cs/cifar100", "60,000 photographs of 100 classes, 32 x 32 x 3", image="img", label="fine_label"
    ),
    "cinic10": HubDataset("flwrlabs/cinic10", "CIFAR-10's classes from two sources, 32 x 32 x 3"),
    "tiny_imagenet": HubDataset("zh-plus/tiny-imagenet", "110,000 photographs of 200 classes, 64 x 64 x 3"),
    "mnist": HubDataset("ylecun/mnist", "70,000 handwritten digits, 28 x 28"),
    "fashion_mnist": HubDataset("zalando-datasets/fashion_mnist", "70,000 pieces of clothing of 10 classes, 28 x 28"),
    "mnist_m": HubDataset("Mike0307/MNIST-M", "digits on colored patches, 32 x 32 x 3"),
    "svhn": HubDataset("ufldl-stanford/svhn", "house numbers, cropped digits, 32 x 32 x 3", config="cropped_digits"),
    "usps": HubDataset("flwrlabs/usps", "9,298 digits from envelopes, 16 x 16"),
    "femnist": HubDataset(
        "flwrlabs/femnist",
        "814,277 characters of 62 classes by 3,597 writers, 28 x 28",
        label="character",
        writer="writer_id",
    ),
    "pacs": HubDataset(
        "flwrlabs/pacs", "7 classes in 4 domains: photo, art, cartoon, sketch; 227 x 227 x 3", domain="domain"
    ),
    "office_home": HubDataset(
        "flwrlabs/office-home", "65 classes in 4 domains; sizes differ, so set data.resize", domain="domain"
    ),
    "domainnet": HubDataset(
        "wltjr1007/DomainNet", "345 classes in 6 domains; sizes differ, so set data.resize", domain="domain"
    ),
    "fairface": HubDataset(
        "HuggingFaceM4/FairFace",
        "97,698 faces by gender, 7 races as domains; 224 x 224 x 3",
        label="gender",
        config="0.25",
        domain="race",
    ),
    "imagenet100_cmc": HubDataset(
        "clane9/imagenet-100", "the 100 classes of ImageNet of Tian et al. 2020 (CMC); sizes differ, so set data.resize"
    ),
    "imagenet": HubDataset(
        "ILSVRC/imagenet-1k",
        "1.3 million photographs of 1,000 classes, after you accept its terms; set data.resize",
        test="validation",
    ),
    "fed_isic2019": HubDataset(
        "flwrlabs/fed-isic2019", "8 kinds of skin lesion from 6 centers; set data.resize", domain="center"
    ),
}


def _register(name: str, dataset: HubDataset) -> None:
    @data_name(name, dataset.summary, origin=f"hf:{dataset.repository}")
    def open_named() -> DataSource:
        source = open_hub(dataset.address)

        def read(resize: int | None) -> Content:
            try:
                return source.read(resize)
            except Unreachable as error:
                raise FedloomError(
                    f"{error}; or put {name}.npz into the folder that FEDLOOM_DATA names, or use folder:PATH"
                ) from error

        return replace(source, name=name, read=read)


for _name, _dataset in HUB_NAMES.items():
    _register(_name, _dataset)
