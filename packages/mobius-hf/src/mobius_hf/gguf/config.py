"""Metadata of a GGUF file -> the fields of the `config.json` that the model came from.

Only keys that are known to change nothing are left aside; any other is an error, for the numbers
would not be the model's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mobius_hf.errors import CheckpointConfigError
from mobius_hf.gguf.families import ARCHITECTURE, FAMILIES
from mobius_hf.gguf.family import Facts, GgufFamily
from mobius_hf.gguf.rotary import ROTARY_KEYS, rope_scaling
from mobius_hf.gguf.tensors import GgufFile

EMBEDDING, HEAD = "token_embd.weight", "output.weight"
FURTHER_LAYERS = "nextn_predict_layers"

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
_ASIDE = frozenset({"tensor_data_layout", "vocab_size", "rope.scaling.finetuned", FURTHER_LAYERS})
_SHAPES = frozenset({"attention.key_length", "attention.value_length", "rope.dimension_count"})
# What begins the keys that llama.cpp reads, whatever the architecture.
_READ = frozenset({*FAMILIES, "adapter", "clip", "xielu"})
_NAMESPACES = ("general.", "tokenizer.", "split.", "quantize.")
_TOKENS = {
    "tokenizer.ggml.bos_token_id": "bos_token_id",
    "tokenizer.ggml.padding_token_id": "pad_token_id",
}
_ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
_FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def config_of(file: GgufFile, family: GgufFamily) -> dict[str, Any]:
    """Return the fields of `config.json`.

    Raises:
        CheckpointConfigError: naming a key that is missing, or that would change the numbers.
    """
    facts = facts_of(file, family)
    values = {**facts.values, "block_count": facts.layers}
    config: dict[str, Any] = {
        "model_type": family.model_type,
        "dtype": _dtype(file),
        "vocab_size": _rows(file, EMBEDDING),
        "tie_word_embeddings": HEAD not in file.tensors,
        **{field: _one(values[key]) for key, field in family.fields.items() if key in values},
        **{field: facts.has(tensor) for field, tensor in family.flags.items()},
        **family.says,
        **_token_ids(file.metadata),
    }
    if family.heads == "stated":
        config["head_dim"] = facts.head_size
    elif family.heads == "implied":
        whole = facts.head_size * values["attention.head_count"]
        if whole != values["embedding_length"]:
            needed = "heads that make up the hidden size"
            raise _error(file, "attention.key_length", facts.head_size, needed)
    if family.rotary:
        config["rope_theta"] = facts.theta
        rotates = values.get("rope.dimension_count", facts.head_size)
        if family.partial_rotary or rotates != facts.head_size:
            config["partial_rotary_factor"] = rotates / facts.head_size
        if facts.rope_scaling is not None:
            config["rope_scaling"] = facts.rope_scaling
    config.update(family.derive(facts))
    return config


def facts_of(file: GgufFile, family: GgufFamily) -> Facts:
    """Return what a file says of its model, having refused what nobody reads.

    Raises:
        CheckpointConfigError: naming a key that is missing, or that would change the numbers.
    """
    values = _own_values(file, family)
    stated = {
        key: file.metadata.get(f"{file.metadata[ARCHITECTURE]}.{key}")
        for key in ("embedding_length", "block_count", "attention.head_count", "context_length")
    }
    for key, value in stated.items():
        if key == "attention.head_count" and family.heads == "none":
            continue
        if value is None:
            raise _error(file, key, None, "it, as every model has")
        if not isinstance(value, int) or value < 1:
            raise _error(file, key, value, "a number of at least 1, the same for all layers")
    further = file.metadata.get(f"{file.metadata[ARCHITECTURE]}.{FURTHER_LAYERS}", 0)
    return Facts(
        values=values,
        tensors=file.tensors,
        layers=values["block_count"] - further,
        head_size=_head_size(file, values, family),
        theta=values.get("rope.freq_base", 10000.0),
        rope_scaling=rope_scaling(file, values),
    )


class _Values(dict[str, Any]):
    """Values by key; the error for one that is not there names the file."""

    def __init__(self, file: GgufFile) -> None:
        super().__init__()
        self._file = file

    def __missing__(self, key: str) -> Any:
        raise _error(self._file, key, None, "it, as every model of this architecture has")


def _own_values(file: GgufFile, family: GgufFamily) -> _Values:
    """Return the metadata of the architecture, having refused what nobody reads."""
    prefix = f"{file.metadata[ARCHITECTURE]}."
    read = family.fields.keys() | family.derived | _SHAPES | ROTARY_KEYS
    known = (read | _ASIDE | family.aside) - family.fixed.keys()
    neutral = {**{k: v for k, v in _NEUTRAL.items() if k not in known}, **family.fixed}
    values = _Values(file)
    for key, value in file.metadata.items():
        if key.startswith(_NAMESPACES):
            continue
        own = key.removeprefix(prefix)
        if own == key and own not in family.derived:
            if key.partition(".")[0] in _READ:
                raise _error(file, key, value, "no key of another architecture")
            continue  # a note of whoever made the file
        if own in neutral:
            if value != neutral[own]:
                raise _error(file, key, value, f"{neutral[own]!r}, the only value supported")
        elif own not in known:
            raise _error(file, key, value, "no key that Mobius does not read: it would be ignored")
        else:
            values[own] = value
    return values


def _head_size(file: GgufFile, values: Mapping[str, Any], family: GgufFamily) -> int:
    if family.heads == "none":
        return 0
    size = values.get("attention.key_length")
    if size is None:
        size = values["embedding_length"] // values["attention.head_count"]
    value_size = values.get("attention.value_length", size)
    if value_size != size and family.heads != "own":
        raise _error(file, "attention.value_length", value_size, f"{size}")
    return int(size)


def _one(value: Any) -> Any:
    """Return a number that is given for each layer and the same for all."""
    if isinstance(value, list) and len(set(value)) == 1:
        return value[0]
    return value


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
