"""Heads beyond nn.Linear. Each has in_features, out_features and a weight V of shape (classes, dim), and no bias."""

from __future__ import annotations

import math
from typing import Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.errors import FedloomError
from fedloom.nets.net import Net

HeadInit = Literal["default", "orthogonal", "etf"]


class CosineHead(nn.Module):
    """z = V f / ||f||_2: without a bias, only the direction of the features decides."""

    def __init__(self, weight: Tensor, trained: bool = True) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.weight = nn.Parameter(weight.detach().clone(), requires_grad=trained)  # (classes, dim)

    def forward(self, f: Tensor) -> Tensor:  # (B, dim) -> (B, classes)
        return F.linear(F.normalize(f, eps=1e-12), self.weight)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, trained={self.weight.requires_grad}"


class FeatureNormHead(CosineHead):
    """FedFN's head: V is trained and initialized as in nn.Linear, U(-1/sqrt(dim), 1/sqrt(dim))."""

    def __init__(self, dim: int, classes: int) -> None:
        super().__init__(nn.init.kaiming_uniform_(torch.empty(classes, dim), a=math.sqrt(5)))

    @classmethod
    def from_linear(cls, linear: nn.Module) -> Self:
        """The same V, without the bias; no random numbers are used."""
        if not isinstance(linear, nn.Linear):
            raise FedloomError(
                f"feature normalization replaces a linear head; this net's head is a {type(linear).__name__}"
            )
        head = cls.__new__(cls)
        CosineHead.__init__(head, linear.weight)
        return head


class FixedHead(CosineHead):
    """A V that is never trained, such as a simplex equiangular tight frame."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__(weight, trained=False)


def weight_of(head: nn.Module) -> Tensor:
    """V, (classes, dim), of a head that has one."""
    weight = getattr(head, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 2:
        raise FedloomError(
            f"the head must have one weight of shape (classes, dim); this net's head is a {type(head).__name__}"
        )
    return weight


def simplex_etf(basis: Tensor) -> Tensor:
    """V = sqrt(C / (C - 1)) (I - 11^T / C) U^T, with U (d x C) the orthonormal columns of the QR of basis^T.

    basis is any (C, d) matrix, usually the initial head. Rows of V have norm 1 and pairwise cosine -1 / (C - 1). R's
    diagonal is made positive, so that U is unique; float64 keeps the angles exact.
    """
    classes, dim = basis.shape
    if classes < 2:
        raise FedloomError(f"a simplex of class directions needs at least 2 classes; there is {classes}")
    if dim < classes:
        raise FedloomError(
            f"a simplex of {classes} class directions needs features of at least {classes} dimensions; these have {dim}"
        )
    u, r = torch.linalg.qr(basis.detach().double().T)  # (d, C), (C, C)
    u = torch.where(r.diagonal() < 0, -u, u)
    centerd = u.T - u.T.mean(0)  # (I - 11^T / C) U^T
    return (math.sqrt(classes / (classes - 1)) * centerd).to(basis.dtype)


def orthonormal(basis: Tensor) -> Tensor:
    """The rows of a (C, d) matrix made orthonormal, in order, as Gram-Schmidt does (by QR in double precision)."""
    classes, dim = basis.shape
    if dim < classes:
        raise FedloomError(
            f"{classes} orthonormal class directions need features of at least {classes} dimensions; these have {dim}"
        )
    q, r = torch.linalg.qr(basis.detach().double().T)
    return torch.where(r.diagonal() < 0, -q, q).T.to(basis.dtype).contiguous()


def set_head(net: Net, head_init: HeadInit) -> None:
    """Rotate the rows of the initial head: `orthogonal` to right angles, `etf` to a simplex equiangular tight frame.

    All rows get the root mean square of the initial rows' norms (about 1/sqrt(3) for nn.Linear), not norm one: so logits
    begin as large as they would have been, rates keep their meaning, and only the angles change, which are what
    FedBABU's argument is about. A bias keeps its initialization.
    """
    if head_init == "default":
        return
    weight = weight_of(net.head)
    turned = orthonormal(weight) if head_init == "orthogonal" else simplex_etf(weight)
    length = torch.linalg.matrix_norm(weight.detach().double()) / math.sqrt(len(weight))
    with torch.no_grad():
        weight.copy_(turned.double() * length)
