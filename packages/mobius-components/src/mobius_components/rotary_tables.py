"""Rotary frequencies and tables: theta and a HuggingFace scaling -> float32 cos and sin.

Source of every formula: `transformers.modeling_rope_utils` and the papers named at each function.
All arithmetic is float32 where HuggingFace's is, so that tables agree to the last bits.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RotaryParameters:
    """What decides a rotary table.

    Attributes:
        dim: Width of the rotating part of a head.
        theta: Base of the frequencies.
        max_position_embeddings: Positions that the model declares.
        scaling: HuggingFace parameters with a `rope_type`; empty for unscaled.
    """

    dim: int
    theta: float
    max_position_embeddings: int
    scaling: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def rope_type(self) -> str:
        """The scaling's name, `default` where there is none."""
        return str(self.scaling.get("rope_type", "default"))

    @property
    def original_max_position_embeddings(self) -> int:
        """Positions that the model was pretrained on."""
        return int(
            self.scaling.get("original_max_position_embeddings") or self.max_position_embeddings
        )


@dataclasses.dataclass(frozen=True)
class Frequencies:
    """Inverse frequencies, float32 `[dim / 2]`, and the factor of cos and sin."""

    inv_freq: FloatArray
    attention_factor: float = 1.0


def frequencies(parameters: RotaryParameters, *, long: bool = False) -> Frequencies:
    """Return the frequencies of `parameters`.

    Args:
        parameters: The rotary embedding.
        long: For `longrope`, take the factors for contexts beyond the pretrained length.

    Raises:
        ValueError: if the scaling's type is unknown or one of its parameters is missing.
    """
    if parameters.rope_type == "longrope":
        return _longrope(parameters, long=long)
    compute = _ROPE_TYPES.get(parameters.rope_type)
    if compute is None:
        known = ", ".join([*_ROPE_TYPES, "longrope"])
        raise ValueError(f"rope_type is {parameters.rope_type!r}; known: {known}")
    return compute(parameters)


def cos_sin(frequencies: Frequencies, rows: int) -> tuple[FloatArray, FloatArray]:
    """Return the tables of positions `0 .. rows - 1`, float32 `[rows, dim / 2]` each."""
    angles = np.arange(rows, dtype=np.float32)[:, None] * frequencies.inv_freq[None, :]
    factor = np.float32(frequencies.attention_factor)
    return np.cos(angles) * factor, np.sin(angles) * factor


def _parameter(parameters: RotaryParameters, key: str) -> Any:
    value = parameters.scaling.get(key)
    if value is None:
        raise ValueError(
            f"rope_scaling of type {parameters.rope_type!r} has no {key!r}; "
            f"it has {sorted(parameters.scaling)}"
        )
    return value


def _exponents(dim: int) -> FloatArray:
    return np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)


def _inverse(theta: float, dim: int) -> FloatArray:
    return np.float32(1.0) / np.float32(theta) ** _exponents(dim)


def _default(parameters: RotaryParameters) -> Frequencies:
    """RoFormer, https://arxiv.org/abs/2104.09864."""
    return Frequencies(_inverse(parameters.theta, parameters.dim))


def _linear(parameters: RotaryParameters) -> Frequencies:
    """Position interpolation: every frequency divided by `factor`."""
    factor = np.float32(_parameter(parameters, "factor"))
    return Frequencies(_inverse(parameters.theta, parameters.dim) / factor)


def _dynamic(parameters: RotaryParameters) -> Frequencies:
    """NTK by length: unscaled up to `max_position_embeddings`, which is where our tables end."""
    return _default(parameters)


def _llama3(parameters: RotaryParameters) -> Frequencies:
    """Llama 3.1: long wavelengths divided by `factor`, short ones kept, a ramp between."""
    factor = float(_parameter(parameters, "factor"))
    low = float(_parameter(parameters, "low_freq_factor"))
    high = float(_parameter(parameters, "high_freq_factor"))
    original = int(_parameter(parameters, "original_max_position_embeddings"))
    inv_freq = _inverse(parameters.theta, parameters.dim)
    wavelength = np.float32(2 * math.pi) / inv_freq
    scaled = np.where(wavelength > original / low, inv_freq / np.float32(factor), inv_freq)
    ramp = (np.float32(original) / wavelength - np.float32(low)) / np.float32(high - low)
    smoothed = (np.float32(1) - ramp) * scaled / np.float32(factor) + ramp * scaled
    between = (wavelength >= original / high) & (wavelength <= original / low)
    return Frequencies(np.where(between, smoothed, scaled).astype(np.float32))


def _yarn(parameters: RotaryParameters) -> Frequencies:
    """YaRN, https://arxiv.org/abs/2309.00071."""
    scaling, dim, theta = parameters.scaling, parameters.dim, parameters.theta
    original = int(_parameter(parameters, "original_max_position_embeddings"))
    factor = float(scaling.get("factor") or parameters.max_position_embeddings / original)

    def dimension(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low = dimension(float(scaling.get("beta_fast") or 32))
    high = dimension(float(scaling.get("beta_slow") or 1))
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    half = np.arange(dim // 2, dtype=np.float32)
    ramp = np.clip((half - np.float32(low)) / np.float32(high - low), 0, 1).astype(np.float32)
    extrapolated = _inverse(theta, dim)
    interpolated = np.float32(1) / (np.float32(factor) * np.float32(theta) ** _exponents(dim))
    keep = np.float32(1) - ramp
    inv_freq = interpolated * (np.float32(1) - keep) + extrapolated * keep
    return Frequencies(inv_freq.astype(np.float32), _yarn_attention_factor(scaling, factor))


def _yarn_attention_factor(scaling: Mapping[str, Any], factor: float) -> float:
    def mscale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])
    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return mscale(float(scaling["mscale"])) / mscale(float(scaling["mscale_all_dim"]))
    return mscale(1.0)


def _proportional(parameters: RotaryParameters) -> Frequencies:
    """Gemma 4: frequencies of the whole head, those past a part of them zero."""
    scaling, dim = parameters.scaling, parameters.dim
    part = scaling.get("partial_rotary_factor")
    rotating = int((1.0 if part is None else float(part)) * dim // 2)
    inv_freq = _inverse(parameters.theta, dim) / np.float32(scaling.get("factor") or 1.0)
    inv_freq[rotating:] = 0
    return Frequencies(inv_freq)


def _longrope(parameters: RotaryParameters, *, long: bool) -> Frequencies:
    """LongRoPE, https://arxiv.org/abs/2402.13753: a factor for each frequency."""
    original = parameters.original_max_position_embeddings
    factors = _parameter(parameters, "long_factor" if long else "short_factor")
    if len(factors) != parameters.dim // 2:
        raise ValueError(
            f"rope_scaling has {len(factors)} longrope factors; needed: {parameters.dim // 2}, "
            f"half of the rotary dimension {parameters.dim}"
        )
    ratio = float(parameters.scaling.get("factor") or parameters.max_position_embeddings / original)
    attention_factor = parameters.scaling.get("attention_factor")
    if attention_factor is None:
        attention_factor = (
            1.0 if ratio <= 1.0 else math.sqrt(1 + math.log(ratio) / math.log(original))
        )
    powers = np.float32(parameters.theta) ** _exponents(parameters.dim)
    inv_freq = np.float32(1) / (np.asarray(factors, np.float32) * powers)
    return Frequencies(inv_freq.astype(np.float32), float(attention_factor))


_ROPE_TYPES: Mapping[str, Callable[[RotaryParameters], Frequencies]] = MappingProxyType(
    {
        "default": _default,
        "linear": _linear,
        "dynamic": _dynamic,
        "llama3": _llama3,
        "yarn": _yarn,
        "proportional": _proportional,
    }
)
