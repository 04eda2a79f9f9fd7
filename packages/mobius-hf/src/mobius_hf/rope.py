"""Rotary fields of a config, in any of their spellings -> theta, scaling, partial factor.

transformers 4 writes `rope_theta` and `rope_scaling` (with `type` or `rope_type`), transformers 5
writes `rope_parameters`, flat or nested per layer type.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from mobius_components.config import FULL_ATTENTION, ROPE_ALIASES, SLIDING_ATTENTION
from mobius_hf.config import ConfigFields
from mobius_hf.config_values import is_finite

DEFAULT_THETA = 10000.0
# rope_type -> parameters that it needs, parameters that it may have. Source: the validation
# functions of `transformers.modeling_rope_utils.RotaryEmbeddingConfigMixin`.
_PARAMETERS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "default": (frozenset(), frozenset()),
    "linear": (frozenset({"factor"}), frozenset()),
    "dynamic": (frozenset({"factor"}), frozenset({"original_max_position_embeddings"})),
    "llama3": (
        frozenset({"factor", "low_freq_factor", "high_freq_factor"}),
        frozenset({"original_max_position_embeddings"}),
    ),
    "yarn": (
        frozenset({"factor"}),
        frozenset(
            {
                "attention_factor",
                "beta_fast",
                "beta_slow",
                "mscale",
                "mscale_all_dim",
                "original_max_position_embeddings",
                "truncate",
            }
        ),
    ),
    "longrope": (
        frozenset({"short_factor", "long_factor"}),
        frozenset({"attention_factor", "factor", "original_max_position_embeddings"}),
    ),
    "proportional": (frozenset(), frozenset({"factor", "partial_rotary_factor"})),
}
_NEEDS_ORIGINAL_LENGTH = frozenset({"llama3", "yarn", "longrope"})
# What each parameter has to be.
_FACTORS = frozenset({"short_factor", "long_factor"})
_FLAGS = frozenset({"truncate"})
_LENGTHS = frozenset({"original_max_position_embeddings"})
# `finetuned` is a note of YaRN's authors; no implementation reads it.
_NOT_SCALING = frozenset({"rope_theta", "type", "rope_type", "finetuned"})
_KNOWN = _NOT_SCALING | frozenset[str]().union(*(a | b for a, b in _PARAMETERS.values()))
# Which axes of a position a frequency belongs to. Those of text are the same on every axis.
_OF_SEVERAL_AXES = frozenset({"mrope_section", "mrope_interleaved"})


@dataclasses.dataclass(frozen=True)
class Rope:
    """The rotary embedding of every layer.

    Attributes:
        theta: Base of the frequencies.
        scaling: HuggingFace scaling parameters with their `rope_type`; `None` for none.
        partial_rotary_factor: Part of a head that rotates. All of it does where `rope_type` is
            `proportional`, most of it at a frequency of zero.
    """

    theta: float
    scaling: Mapping[str, Any] | None
    partial_rotary_factor: float


def read_rope(
    fields: ConfigFields, layer_types: Collection[str], others: Collection[str] = ()
) -> Rope:
    """Return the one rotary embedding that all layers share.

    Args:
        fields: The config.
        layer_types: The types of layer that occur, for parameters nested per layer type.
        others: Parameters there that the family reads itself.

    Raises:
        CheckpointConfigError: if layers differ, the type is unknown, or a parameter is missing or
            not known.
    """
    ropes = list(read_ropes(fields, layer_types, others).values())
    if any(rope != ropes[0] for rope in ropes):
        name = "rope_parameters" if fields.value("rope_parameters") else "rope_scaling"
        raise fields.unfit(name, fields.value(name), "the same rotary embedding for every layer")
    return ropes[0]


def sliding_beside_full(ropes: Mapping[str, Rope]) -> dict[str, Any]:
    """Return the arguments of a config whose sliding layers rotate in their own way.

    Args:
        ropes: Rotary embedding of the types of layer that occur.
    """
    full = ropes.get(FULL_ATTENTION) or ropes[SLIDING_ATTENTION]
    sliding = ropes.get(SLIDING_ATTENTION, full)
    return {
        "rope_theta": full.theta,
        "rope_scaling": full.scaling,
        "rope_by_layer_type": {
            SLIDING_ATTENTION: {"rope_theta": sliding.theta, **(sliding.scaling or {})}
        },
    }


def read_ropes(
    fields: ConfigFields, layer_types: Collection[str], others: Collection[str] = ()
) -> dict[str, Rope]:
    """Return the rotary embedding of each of `layer_types`; `others` as for `read_rope`.

    Raises:
        CheckpointConfigError: if a type is unknown, or a parameter is missing or not known.
    """
    beside = {key: fields.value(key) for key in ("rope_theta", "partial_rotary_factor")}
    name, parameters = rope_object(fields)
    # The most specific place wins: a layer type's own, the shared parameters, then the top level.
    shared = {key: parameters.get(key) for key in beside}
    common = {
        "rope_theta": DEFAULT_THETA,
        "partial_rotary_factor": 1.0,
        **_without_none(beside),
        **_without_none(shared),
    }
    parameters = {key: value for key, value in parameters.items() if key not in others}
    return {
        layer_type: _read_one(fields, name, {**common, **_without_none(one)})
        for layer_type, one in _per_layer_type(fields, name, parameters, layer_types).items()
    }


def rope_object(fields: ConfigFields) -> tuple[str, Mapping[str, Any]]:
    """Return the rotary parameters, and the name that their field has in the file.

    Raises:
        CheckpointConfigError: if they are no object.
    """
    parameters, scaling = fields.value("rope_parameters"), fields.value("rope_scaling")
    name = "rope_parameters" if fields.raw.get("rope_parameters") else "rope_scaling"
    parameters = parameters or scaling or {}
    if not isinstance(parameters, Mapping):
        raise fields.unfit(name, parameters, "an object")
    return name, parameters


def rope_theta(fields: ConfigFields, name: str, parameters: Mapping[str, Any]) -> float:
    """Return the base of the frequencies, which lies among `parameters` or beside them.

    Raises:
        CheckpointConfigError: if it is no number above zero.
    """
    beside = fields.value("rope_theta")
    theta = parameters.get("rope_theta", DEFAULT_THETA if beside is None else beside)
    if not is_finite(theta) or theta <= 0:
        where = f"{name}.rope_theta" if "rope_theta" in parameters else "rope_theta"
        raise fields.unfit(where, theta, "a number above zero")
    return float(theta)


def _per_layer_type(
    fields: ConfigFields, name: str, parameters: Mapping[str, Any], layer_types: Collection[str]
) -> dict[str, Mapping[str, Any]]:
    nested = {
        key: value
        for key, value in parameters.items()
        if key.endswith("_attention") or (isinstance(value, Mapping) and key not in _KNOWN)
    }
    if not nested:
        return dict.fromkeys(layer_types, parameters)
    used = {key: value for key, value in nested.items() if key in layer_types}
    if set(used) != set(layer_types) or not all(isinstance(v, Mapping) for v in used.values()):
        raise fields.unfit(name, dict(parameters), "an object for each layer type")
    return used


def _without_none(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in parameters.items() if value is not None}


def _read_one(fields: ConfigFields, name: str, parameters: dict[str, Any]) -> Rope:
    for key in ("rope_theta", "partial_rotary_factor"):
        if not is_finite(parameters[key]) or parameters[key] <= 0:
            raise fields.unfit(_where(fields, name, key), parameters[key], "a number above zero")
    stated = parameters.get("rope_type", parameters.get("type", "default"))
    rope_type = ROPE_ALIASES.get(stated, stated) if isinstance(stated, str) else stated
    if not isinstance(rope_type, str) or rope_type not in _PARAMETERS:
        own = fields.raw.get(name)
        is_old = isinstance(own, Mapping) and "type" in own and "rope_type" not in own
        key = "type" if is_old else "rope_type"
        raise fields.unfit(f"{name}.{key}", stated, f"one of {', '.join(_PARAMETERS)}")
    needed, optional = _PARAMETERS[rope_type]
    scaling = {
        key: value
        for key, value in parameters.items()
        if key not in _NOT_SCALING and key not in _OF_SEVERAL_AXES
    }
    factor = float(parameters["partial_rotary_factor"])
    if rope_type == "proportional":
        factor = 1.0
    else:
        del scaling["partial_rotary_factor"]
    if missing := sorted(needed - scaling.keys()):
        raise fields.unfit(name, parameters, f"{', '.join(missing)} with rope_type {rope_type!r}")
    if unknown := sorted(scaling.keys() - needed - optional):
        raise fields.unfit(
            name, parameters, f"no {', '.join(unknown)}, which rope_type {rope_type!r} does not use"
        )
    for key, value in scaling.items():
        if needed_kind := _unfit_kind(key, value):
            raise fields.unfit(f"{name}.{key}", value, needed_kind)
    if rope_type in _NEEDS_ORIGINAL_LENGTH:
        scaling.setdefault(
            "original_max_position_embeddings", fields.integer("max_position_embeddings")
        )
    return Rope(
        theta=float(parameters["rope_theta"]),
        scaling=None if rope_type == "default" else {"rope_type": rope_type, **scaling},
        partial_rotary_factor=factor,
    )


def _where(fields: ConfigFields, name: str, key: str) -> str:
    """Return where the file has a parameter that lies among the others or beside them."""
    return key if fields.raw.get(key) is not None else f"{name}.{key}"


def _unfit_kind(key: str, value: object) -> str | None:
    """Return what a parameter has to be, where it is not; `None` where it is."""
    if key in _FACTORS:
        good = isinstance(value, list | tuple) and all(is_finite(v) and v > 0 for v in value)
        return None if good else "a list of numbers above zero"
    if key in _FLAGS:
        return None if isinstance(value, bool) else "true or false"
    if key in _LENGTHS:
        good = isinstance(value, int) and not isinstance(value, bool) and value > 0
        return None if good else "an integer of at least 1"
    return None if is_finite(value) else "a number"
