"""Metadata of a GGUF file -> the fields of the `config.json` that the model came from.

Only keys that are known to change nothing are left aside; any other is an error, for the numbers
would not be the model's.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import numpy as np

from mobius_hf.errors import CheckpointConfigError, UnknownModelTypeError
from mobius_hf.gguf.families import FAMILIES, WITH_EXPERTS, Facts, GgufFamily
from mobius_hf.gguf.tensors import GgufFile

ARCHITECTURE = "general.architecture"
EMBEDDING, HEAD = "token_embd.weight", "output.weight"
FACTORS = "rope_freqs.weight"
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"

# Key -> the only value that its model can be built with.
_NEUTRAL: Mapping[str, Any] = {
    "attention.causal": True,
    "attention.clamp_kqv": 0.0,
    "attention.max_alibi_bias": 0.0,
    "expert_count": 0,
    "expert_used_count": 0,
    "rope.scaling.yarn_ext_factor": 1.0,
}
# How a file was laid out or trained, not what the model computes.
_ASIDE = frozenset({"tensor_data_layout", "vocab_size", "rope.scaling.finetuned"})
_SHAPES = frozenset({"attention.key_length", "attention.value_length", "rope.dimension_count"})
_ROPE = frozenset(
    {
        "rope.freq_base",
        "rope.scaling.type",
        "rope.scaling.factor",
        "rope.scaling.attn_factor",
        "rope.scaling.original_context_length",
        "rope.scaling.yarn_beta_fast",
        "rope.scaling.yarn_beta_slow",
        "rope.scale_linear",
    }
)
_NAMESPACES = ("general.", "tokenizer.", "split.", "quantize.")
_TOKENS = {
    "tokenizer.ggml.bos_token_id": "bos_token_id",
    "tokenizer.ggml.padding_token_id": "pad_token_id",
}
_ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
_FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def find_family(file: GgufFile) -> GgufFamily:
    """Return what is known of a file's architecture.

    Raises:
        UnknownModelTypeError: if nothing is; it lists those that are known.
    """
    name = file.metadata.get(ARCHITECTURE)
    experts = file.metadata.get(f"{name}.expert_count", 0)
    family = (WITH_EXPERTS.get(str(name)) if experts else None) or FAMILIES.get(str(name))
    if family is None:
        close = difflib.get_close_matches(str(name), FAMILIES)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise UnknownModelTypeError(
            f"{file.path}: {ARCHITECTURE} is {name!r}, which is not read from GGUF.{hint} "
            f"Readable: {', '.join(sorted(FAMILIES))}. Use the model's safetensors instead."
        )
    return family


def config_of(file: GgufFile, family: GgufFamily) -> dict[str, Any]:
    """Return the fields of `config.json`.

    Raises:
        CheckpointConfigError: naming a key that is missing, or that would change the numbers.
    """
    values = _own_values(file, family)
    for key in ("embedding_length", "block_count", "attention.head_count", "context_length"):
        if key not in values:
            raise _error(file, key, None, "it, as every model has")
    head_size = _head_size(file, values)
    rotates = values.get("rope.dimension_count", head_size)
    facts = Facts(values=values, tensors=frozenset(file.tensors), head_size=head_size)
    config: dict[str, Any] = {
        "model_type": family.model_type,
        "dtype": _dtype(file),
        "vocab_size": _rows(file, EMBEDDING),
        "tie_word_embeddings": HEAD not in file.tensors,
        "rope_theta": values.get("rope.freq_base", 10000.0),
        **{field: values[key] for key, field in family.fields.items() if key in values},
        **_token_ids(file.metadata),
    }
    if family.states_head_size:
        config["head_dim"] = head_size
    elif head_size * values["attention.head_count"] != values["embedding_length"]:
        raise _error(file, "attention.key_length", head_size, "heads that make up the hidden size")
    if family.partial_rotary or rotates != head_size:
        config["partial_rotary_factor"] = rotates / head_size
    scaling = _rope_scaling(file, values)
    if scaling is not None:
        config["rope_scaling"] = scaling
    config.update(family.derive(facts))
    return config


def _own_values(file: GgufFile, family: GgufFamily) -> dict[str, Any]:
    """Return the metadata of the architecture, having refused what nobody reads."""
    prefix = f"{file.metadata[ARCHITECTURE]}."
    known = family.fields.keys() | family.derived | _ASIDE | _SHAPES | _ROPE
    values: dict[str, Any] = {}
    for key, value in file.metadata.items():
        if key.startswith(_NAMESPACES):
            continue
        if not key.startswith(prefix):
            raise _error(file, key, value, "no key of another architecture")
        own = key.removeprefix(prefix)
        if own in _NEUTRAL and own not in known:
            if value != _NEUTRAL[own]:
                raise _error(file, key, value, f"{_NEUTRAL[own]!r}, the only value supported")
        elif own not in known:
            raise _error(file, key, value, "no key that Mobius does not read: it would be ignored")
        else:
            values[own] = value
    return values


def _head_size(file: GgufFile, values: Mapping[str, Any]) -> int:
    size = values.get("attention.key_length")
    if size is None:
        size = values["embedding_length"] // values["attention.head_count"]
    if values.get("attention.value_length", size) != size:
        raise _error(file, "attention.value_length", values["attention.value_length"], f"{size}")
    return int(size)


def _rope_scaling(file: GgufFile, values: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return HuggingFace's parameters of the scaling, `None` if there is none."""
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
        betas = {
            name: values[f"rope.scaling.yarn_{name}"]
            for name in ("beta_fast", "beta_slow")
            if f"rope.scaling.yarn_{name}" in values
        }
        return {"rope_type": "yarn", "factor": factor, **length, **betas}
    raise _error(file, "rope.scaling.type", kind, "none, linear, or yarn without attn_factor")


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


def _rows(file: GgufFile, name: str) -> int:
    tensor = file.tensors.get(name)
    if tensor is None:
        raise CheckpointConfigError(
            f"{file.path} has no tensor {name!r}, so it is not a language model."
        )
    return int(tensor.shape.numpy()[0])


def _dtype(file: GgufFile) -> str:
    """Return the type that every matrix has; float32, which holds all, if they differ."""
    types = {
        file.types[name] for name, tensor in file.tensors.items() if len(tensor.shape.numpy()) > 1
    }
    return _FLOATS.get(types.pop(), "float32") if len(types) == 1 else "float32"


def _token_ids(metadata: Mapping[str, Any]) -> dict[str, Any]:
    ids = {field: metadata[key] for key, field in _TOKENS.items() if key in metadata}
    ends = [metadata.get(f"tokenizer.ggml.{name}") for name in _ENDS]
    found = list(dict.fromkeys(each for each in ends if each is not None))
    return ids | ({"eos_token_id": found} if found else {})


def _error(file: GgufFile, key: str, value: object, needed: str) -> CheckpointConfigError:
    shown = repr(value)
    return CheckpointConfigError(
        f"{file.path}: {key} is {shown if len(shown) < 80 else f'{shown[:77]}...'}; needed: "
        f"{needed}."
    )
