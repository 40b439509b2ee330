"""Parts of an encoder in plain torch, for families whose code is on the hub and not in
transformers."""

import math

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from synthetic import frequencies

Weights = dict[str, Tensor]


def linear(weights: Weights, name: str, x: Tensor) -> Tensor:
    y = x @ weights[f"{name}.weight"].T
    bias = weights.get(f"{name}.bias")
    return y if bias is None else y + bias


def norm(weights: Weights, name: str, x: Tensor, eps: float) -> Tensor:
    return layer_norm(
        x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], eps
    )


def attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | float = 0.0) -> Tensor:
    """Attention of one sequence; q, k and v are [tokens, heads, size], `bias` is [heads, tokens,
    tokens]."""
    scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(q.shape[-1]) + bias
    mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)
    return mixed.flatten(1)


def rotate(x: Tensor, theta: float) -> Tensor:
    """RoPE: rotates the first half of each head against its second half by the token's position."""
    angles = torch.outer(
        torch.arange(len(x)).double(), frequencies(theta, x.shape[-1])
    ).unsqueeze(1)
    a, b = x.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
