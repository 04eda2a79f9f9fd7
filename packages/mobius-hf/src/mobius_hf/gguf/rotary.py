"""Rotary keys and factors of a GGUF file -> HuggingFace's parameters of the scaling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mobius_hf.errors import CheckpointConfigError
from mobius_hf.gguf.tensors import GgufFile

FACTORS = "rope_freqs.weight"
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
ROTARY_KEYS = frozenset(
    {
        "rope.freq_base",
        "rope.scaling.type",
        "rope.scaling.factor",
        "rope.scaling.attn_factor",
        "rope.scaling.original_context_length",
        "rope.scaling.yarn_attn_factor",
        "rope.scaling.yarn_beta_fast",
        "rope.scaling.yarn_beta_slow",
        "rope.scale_linear",
    }
)
"""Keys that are read here, and the base of the frequencies."""
_YARN = {
    "yarn_attn_factor": "attention_factor",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}


def rope_scaling(file: GgufFile, values: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return HuggingFace's parameters of the scaling, `None` if there is none.

    Args:
        file: The file, of which only the factors are read.
        values: Metadata of its architecture.

    Raises:
        CheckpointConfigError: if the scaling is not known, or a tensor of factors is missing.
    """
    kind = values.get("rope.scaling.type", "none")
    # A name that old files have for the factor of linear scaling.
    factor = values.get("rope.scaling.factor", values.get("rope.scale_linear", 1.0))
    attention = values.get("rope.scaling.attn_factor", 1.0)
    original = values.get("rope.scaling.original_context_length")
    length = {} if original is None else {"original_max_position_embeddings": original}
    if FACTORS in file.tensors:
        # llama 3's scaling, as the divisors of the frequencies that it comes to.
        divisors = _numbers(file, FACTORS)
        return _divided(divisors, divisors, values["context_length"], 1.0)
    if LONG_FACTORS in file.tensors:
        long, short = _numbers(file, LONG_FACTORS), _numbers(file, SHORT_FACTORS)
        return _divided(short, long, original or values["context_length"], attention)
    if kind == "none" or (kind == "linear" and factor in (0.0, 1.0)):
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn" and attention == 1.0:
        own = {
            name: values[f"rope.scaling.{key}"]
            for key, name in _YARN.items()
            if f"rope.scaling.{key}" in values
        }
        return {"rope_type": "yarn", "factor": factor, **length, **own}
    raise CheckpointConfigError(
        f"{file.path}: rope.scaling.type is {kind!r}; needed: none, linear, or yarn without "
        "attn_factor."
    )


def _divided(
    short: list[float], long: list[float], original: int, attention: float
) -> dict[str, Any]:
    return {
        "rope_type": "longrope",
        "short_factor": short,
        "long_factor": long,
        "original_max_position_embeddings": original,
        "attention_factor": attention,
    }


def _numbers(file: GgufFile, name: str) -> list[float]:
    tensor = file.tensors.get(name)
    if tensor is None:
        raise CheckpointConfigError(f"{file.path} has no tensor {name!r}. Download it again.")
    return [float(str(number)) for number in tensor.numpy().astype(np.float32).reshape(-1)]
