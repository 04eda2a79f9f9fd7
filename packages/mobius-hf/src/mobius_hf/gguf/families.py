"""What `general.architecture` means: every architecture that is read, and which of its families."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any

import onnx_ir as ir

from mobius_hf.errors import UnknownModelTypeError
from mobius_hf.gguf.classic import CLASSIC, FALCON_TWO_NORMS
from mobius_hf.gguf.delta import DELTA
from mobius_hf.gguf.dense import DENSE, MISTRAL, OLMO3
from mobius_hf.gguf.experts import GRANITE_SHARED, MIXTRAL, SPARSE_FAMILIES
from mobius_hf.gguf.family import GgufFamily
from mobius_hf.gguf.gemma import GEMMA
from mobius_hf.gguf.hybrids import GRANITE_HYBRID_DENSE, HYBRIDS
from mobius_hf.gguf.latent import DEEPSEEK3, LATENT
from mobius_hf.gguf.parts import SIGMOID
from mobius_hf.gguf.recurrent import FALCON_MAMBA, RECURRENT
from mobius_hf.gguf.tensors import GgufFile

ARCHITECTURE = "general.architecture"

FAMILIES: Mapping[str, GgufFamily] = {
    **DENSE,
    **CLASSIC,
    **GEMMA,
    **SPARSE_FAMILIES,
    **LATENT,
    **RECURRENT,
    **HYBRIDS,
    **DELTA,
}
"""By `general.architecture`."""

_Tensors = Mapping[str, ir.TensorProtocol]
_Applies = Callable[[Mapping[str, Any], _Tensors], bool]


def _has(key: str) -> _Applies:
    """Return whether a file has something other than zero under `key`."""
    return lambda values, tensors: bool(values.get(key))


# Architecture -> what its file is instead, if a file says so.
ALTERNATIVES: Mapping[str, tuple[_Applies, GgufFamily]] = {
    "llama": (_has("expert_count"), MIXTRAL),
    "mistral3": (lambda values, tensors: "attention.temperature_scale" not in values, MISTRAL),
    "olmo2": (_has("attention.sliding_window"), OLMO3),
    "falcon": (lambda values, tensors: "blk.0.attn_norm_2.weight" in tensors, FALCON_TWO_NORMS),
    "mamba": (_has("ssm.dt_b_c_rms"), FALCON_MAMBA),
    "granitemoe": (_has("expert_shared_feed_forward_length"), GRANITE_SHARED),
    "granitehybrid": (lambda values, tensors: not values.get("expert_count"), GRANITE_HYBRID_DENSE),
    "deepseek2": (
        lambda values, tensors: values.get("expert_gating_func") == SIGMOID,
        DEEPSEEK3,
    ),
}
"""Architectures that are two families, and when they are the second."""

REFUSED: Mapping[str, str] = {
    "gptj": "llama.cpp writes no such files",
    "chatglm": "its files may have another epsilon and another rotary base than the model",
}
"""Architectures of families that Mobius builds, but whose files cannot be read right, and why."""


def find_family(file: GgufFile) -> GgufFamily:
    """Return what is known of a file's architecture.

    Raises:
        UnknownModelTypeError: if nothing is; it lists those that are known.
    """
    name = str(file.metadata.get(ARCHITECTURE))
    family = FAMILIES.get(name)
    if family is None:
        close = difflib.get_close_matches(name, FAMILIES)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        reason = f": {REFUSED[name]}" if name in REFUSED else ""
        raise UnknownModelTypeError(
            f"{file.path}: {ARCHITECTURE} is {name!r}, which is not read from GGUF{reason}.{hint} "
            f"Readable: {', '.join(sorted(FAMILIES))}. Use the model's safetensors instead."
        )
    if name in ALTERNATIVES:
        applies, other = ALTERNATIVES[name]
        prefix = f"{name}."
        values = {key.removeprefix(prefix): value for key, value in file.metadata.items()}
        if applies(values, file.tensors):
            return other
    return family
