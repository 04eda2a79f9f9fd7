"""Tensors of a GGUF file -> tensors with the names, and the numbers, of HuggingFace's checkpoint.

What llama.cpp's converter changed is changed back, lazily. Source: `convert_hf_to_gguf.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from mobius_hf.errors import CheckpointError
from mobius_hf.gguf.config import FACTORS, LONG_FACTORS, SHORT_FACTORS
from mobius_hf.gguf.families import TOP, GgufFamily
from mobius_hf.gguf.tensors import GgufFile
from mobius_hf.transforms import leaf
from mobius_ir_rules.lazy import Concat, DerivedTensor, Reshape, Transpose

_BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_TOP = re.compile(r"(\w+)\.(weight|bias)")
# Read with the configuration; old files store frequencies that it decides.
_NOT_WEIGHTS = re.compile(
    "|".join(map(re.escape, (FACTORS, LONG_FACTORS, SHORT_FACTORS)))
    + r"|blk\.\d+\.attn_rot_embd(?:\.weight)?"
)


def checkpoint_of(
    file: GgufFile, family: GgufFamily, config: Mapping[str, Any]
) -> dict[str, ir.TensorProtocol]:
    """Return the tensors of `file` by HuggingFace's names. Nothing is read.

    Args:
        file: The opened file.
        family: Its architecture.
        config: Fields of `config.json`.

    Raises:
        CheckpointError: if a tensor's shape does not fit the heads that it is for.
    """
    queries = config["num_attention_heads"]
    heads = {"attn_q": queries, "attn_k": config.get("num_key_value_heads", queries)}
    tensors, taken = _joined(file, family)
    for name, tensor in file.tensors.items():
        if name in taken or _NOT_WEIGHTS.fullmatch(name):
            continue
        if (match := _BLOCK.fullmatch(name)) is not None and match[2] in family.layer:
            renamed = f"model.layers.{match[1]}.{family.layer[match[2]]}.{match[3]}"
            part = match[2]
        elif (match := _TOP.fullmatch(name)) is not None and match[1] in TOP:
            renamed, part = f"{TOP[match[1]]}.{match[2]}", match[1]
        else:
            renamed, part = name, ""  # binding reports it
        if family.permuted and part in heads:
            tensor = _in_halves(tensor, heads[part], file, name)
        elif family.norms_plus_one and part.endswith("_norm"):
            tensor = _less_one(tensor)
        tensors[renamed] = tensor
    return tensors


def _joined(
    file: GgufFile, family: GgufFamily
) -> tuple[dict[str, ir.TensorProtocol], frozenset[str]]:
    """Return the matrices `[experts, rows, columns]` of all experts, and the names they are of."""
    tensors: dict[str, ir.TensorProtocol] = {}
    taken: set[str] = set()
    blocks = {match[1] for name in file.tensors if (match := _BLOCK.fullmatch(name))}
    for block in sorted(blocks, key=int):
        for parameter, parts in family.joined.items():
            names = [f"blk.{block}.{part}.weight" for part in parts]
            if all(name in file.tensors for name in names):
                leaves = tuple(leaf(file.tensors[name]) for name in names)
                whole = leaves[0] if len(leaves) == 1 else Concat(leaves, 1)
                renamed = f"model.layers.{block}.{parameter}"
                tensors[renamed] = DerivedTensor(whole, renamed)
                taken.update(names)
    return tensors, frozenset(taken)


def _in_halves(
    tensor: ir.TensorProtocol, heads: int, file: GgufFile, name: str
) -> ir.TensorProtocol:
    """Return rows [heads, size/2, 2] as rows [heads, 2, size/2]: rotated halves, not pairs.

    Source: `LlamaModel.permute`, which does the opposite.
    """
    rows, *rest = tensor.shape.numpy()
    if rows % (2 * heads):
        raise CheckpointError(
            f"{file.path}: tensor {name!r} has {rows} rows, which are not {heads} heads of an even "
            "width. Do the metadata belong to these tensors?"
        )
    pairs = Reshape(leaf(tensor), (heads, rows // heads // 2, 2, *rest))
    axes = (0, 2, 1, *range(3, 3 + len(rest)))
    return DerivedTensor(Reshape(Transpose(pairs, axes), (rows, *rest)), tensor.name)


def _less_one(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """Return a norm's weight as its distance from one, float32."""

    def evaluate() -> ir.TensorProtocol:
        return ir.tensor(tensor.numpy().astype(np.float32) - np.float32(1))

    shape = ir.Shape(tensor.shape.numpy())
    return ir.LazyTensor(evaluate, ir.DataType.FLOAT, shape, name=tensor.name)
