"""The recipe's fields as typed keywords. Written by scripts/docs_tables.py from recipe/fields.py: change it there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from torch import nn

from fedloom.data import DataLike, SplitLike
from fedloom.methods import Method, Part


class ProtocolKeywords(TypedDict, total=False):
    """Fields of a recipe that override a protocol."""

    data: DataLike
    """the data set"""

    split: SplitLike
    """which client holds and sees what, such as "dirichlet:0.5+noise:0.1" (fedloom list splits)"""

    clients: int
    """number of clients"""

    model: str | nn.Module
    """a net's name, with its parameters (fedloom list models) | file.py:function | package.module:function |
    hf:NAME | timm:NAME"""

    method: str | Method | Part
    """a sum of parts, such as "scaffold + fn" (fedloom list methods)"""

    rounds: int
    """number of rounds"""

    fraction: float
    """fraction of the clients that train in a round"""

    participation: Literal["fixed", "bernoulli"]
    """fixed (cohorts of equal size) | bernoulli (each client takes part with probability `fraction`)"""

    epochs: int | str
    """local epochs per round | a range such as 1..5, drawn per client and round"""

    steps: int | str | None
    """local steps per round in place of epochs | a range such as 10..50; null: epochs"""

    batch: int | Literal["full"]
    """local batch size | full"""

    lr: float
    """local learning rate"""

    momentum: float
    """momentum of local SGD"""

    weight_decay: float
    """weight decay of local training"""

    optimizer: Literal["sgd", "adam", "adamw"] | Mapping[str, Any]
    """the optimizer of local training"""

    schedule: str
    """learning rate over the rounds: constant | step | exp:FACTOR | cosine"""

    weighting: Literal["samples", "uniform"]
    """weights of clients in the average: samples | uniform"""

    augment: str
    """changes of training images: none | a sum of flip, crop:4, crop:4:reflect, resizedcrop:0.08,
    affine:10:0.1:0.1, cutout:8"""

    precision: Literal["fp32", "bf16", "auto"]
    """fp32 | bf16 | auto (by net and processor)"""

    kernels: Literal["auto", "torch", "portable", "native"]
    """convolutions and batch normalization: torch (PyTorch's own) | portable (algorithms chosen by shape) | native
    (compiled, by the system's C++ compiler) | auto (native where it can be built and serves the net)"""

    workers: int | Literal["auto", "ray"]
    """number of worker processes | auto (one per core) | ray (one per core of a Ray cluster)"""

    vmap: int | Literal["auto", "off"]
    """number of clients of a tiny net trained in one computation | auto | off"""

    seed: int
    """random seed"""

    eval_every: int
    """rounds between tests of the global model; 0: after the last round only"""

    metrics: str | Sequence[str]
    """metrics of every evaluation, the headline first: a,b (fedloom list metrics)"""

    init: str | Path | None
    """initial weights: PATH.safetensors | hf:owner/name[/file]; tensors of the same name and shape are used"""

    name: str | None
    """write the run to runs/NAME"""

    init_digest: str | None
    """checksum of `init`; written by a run, verified where it is given"""

    head_init: Literal["default", "orthogonal", "etf"]
    """initial head: default | orthogonal | etf (a simplex)"""

    clip: float | None
    """largest norm of a gradient; null: no clipping"""

    bn: Literal["running", "batch", "local"]
    """statistics of batch normalization in tests: running | batch | local"""

    device: str
    """cpu | cuda (all visible devices) | cuda:N"""

    eval_batch: int
    """test batch size; changes results only with `bn: batch`"""

    eval_test: bool
    """evaluate on test samples; false: on validation samples only, as `fedloom tune` does"""

    eval_clients: int
    """rounds between tests on every client's own data; 0: after the last round only"""

    analyze_every: int
    """rounds between analyses of factors, norms, alignment and drift; 0: never"""

    checkpoint_seconds: float
    """seconds between checkpoints: the most work a crash can cost"""

    memory_mb: float
    """client state kept in memory; the rest is stored on disk"""

    track: str | None
    """log every round to tensorboard | mlflow | wandb, or several of them: a,b"""

    deploy: Mapping[str, Any]
    """limits and time-outs of a federation on real machines"""

    parts: str | Sequence[str]
    """modules or .py files to import first: parts, partitioners, shifts, metrics ... of your own"""


class RecipeKeywords(ProtocolKeywords, total=False):
    """All fields of a recipe, and what stands for several of them."""

    out: str | Path | None
    """write the run to this folder"""

    protocol: str
    """a paper's settings (`fl.protocols()`), which the other keywords override"""

    head: str
    """name of the last layer of a `model` that is an nn.Module, where it is not found by itself"""
