"""A model by its number of parameters: `7B`, `124M`, `1.5e9`, and the shape that a model of that size has."""

from __future__ import annotations

import re

from msgspec import Struct

_SIZE = re.compile(r"(\d+(?:\.\d+)?(?:e\d{1,2})?)\s*([kmbt]?)", re.I)
_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
LEAST, MOST = 1e6, 1e14
"""Parameters between which an estimate makes sense.  Chosen by this project."""
NEAR = 0.05
"""A size within this share of a published model's takes its shape: people call 6.74e9 parameters 7B."""
ASPECT = 128
"""Hidden size by layers where no published model is near: that of GPT-3 175B and Llama 2 7B."""
VOCABULARY = 128_256
"""Of Llama 3: the largest of the table, so that the largest layer of an unknown model is never too small."""


class Shape(Struct, frozen=True, kw_only=True):
    """A decoder-only transformer."""

    params: float
    """Parameters."""
    layers: int
    """Transformer layers."""
    hidden: int
    """Hidden size."""
    heads: int
    """Attention heads."""
    vocabulary: int
    """Tokens of its vocabulary."""
    inner: int
    """Width of the feed-forward layer."""
    name: str = ""
    """The published model whose shape it is; empty for the rule."""

    @property
    def largest_layer(self) -> int:
        """Parameters of the largest single matrix, as DeepSpeed's `model_to_params` counts layers."""
        return int(min(self.params, max(self.vocabulary, self.inner) * self.hidden))


def _published(name: str, params: float, *shape: int) -> Shape:
    layers, hidden, heads, vocabulary, inner = shape
    return Shape(
        name=name,
        params=params,
        layers=layers,
        hidden=hidden,
        heads=heads,
        vocabulary=vocabulary,
        inner=inner,
    )


PUBLISHED = (
    _published("GPT-2", 124.4e6, 12, 768, 12, 50_257, 3_072),
    _published("GPT-2 XL", 1.558e9, 48, 1_600, 25, 50_257, 6_400),
    _published("Llama 3.2 1B", 1.24e9, 16, 2_048, 32, 128_256, 8_192),
    _published("Llama 3.2 3B", 3.21e9, 28, 3_072, 24, 128_256, 8_192),
    _published("Llama 2 7B", 6.74e9, 32, 4_096, 32, 32_000, 11_008),
    _published("Llama 3 8B", 8.03e9, 32, 4_096, 32, 128_256, 14_336),
    _published("Llama 2 13B", 13.02e9, 40, 5_120, 40, 32_000, 13_824),
    _published("Llama 3 70B", 70.6e9, 80, 8_192, 64, 128_256, 28_672),
    _published("GPT-3 175B", 175e9, 96, 12_288, 96, 50_257, 49_152),
    _published("Llama 3.1 405B", 405.9e9, 126, 16_384, 128, 128_256, 53_248),
)
"""Layers, hidden size, heads, vocabulary, feed-forward width.  Sources: GPT-2 (openai/gpt-2, model cards),
GPT-3 (arXiv 2005.14165, table 2.1), Llama 2 (arXiv 2307.09288), Llama 3 (arXiv 2407.21783, table 3) and the
`config.json` of each model."""


def parse_params(text: str) -> float:
    """Parameters of `7B`, `124M`, `0.5T` or `1.5e9`.  Raises `ValueError` with what was expected."""
    match = _SIZE.fullmatch(text.strip())
    params = float(match[1]) * _UNITS[match[2].lower()] if match else 0.0
    if not LEAST <= params <= MOST:
        raise ValueError(f"{text!r}: expected parameters such as 7B, 124M or 1.5e9, from 1M to 100T")
    return params


def shape_of(params: float) -> Shape:
    """The shape of the nearest published model, or by the rule."""
    nearest = min(PUBLISHED, key=lambda shape: abs(shape.params - params))
    if abs(nearest.params - params) > NEAR * nearest.params:
        return by_rule(params)
    return _published(
        nearest.name,
        params,
        nearest.layers,
        nearest.hidden,
        nearest.heads,
        nearest.vocabulary,
        nearest.inner,
    )


def by_rule(params: float) -> Shape:
    """12 x layers x hidden^2 parameters (Kaplan et al., arXiv 2001.08361, table 1) with `ASPECT`."""
    layers = max(1, round((params / (12 * ASPECT**2)) ** (1 / 3)))
    hidden = ASPECT * layers
    return _published("", params, layers, hidden, layers, VOCABULARY, 4 * hidden)
