"""Tensors of a GGUF file -> tensors with the names, and the numbers, of HuggingFace's checkpoint.

What llama.cpp's converter changed is changed back, lazily. Source: `convert_hf_to_gguf.py`.
"""

from __future__ import annotations

import re

import onnx_ir as ir

from mobius_hf.gguf.config import facts_of
from mobius_hf.gguf.family import Facts, GgufFamily
from mobius_hf.gguf.rotary import FACTORS, LONG_FACTORS, SHORT_FACTORS
from mobius_hf.gguf.tensors import GgufFile
from mobius_hf.transforms import leaf
from mobius_ir_rules.lazy import DerivedTensor

_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")
_PART = re.compile(r"(.+)\.(weight|bias)")
# Read with the configuration; old files store frequencies that it decides.
_NOT_WEIGHTS = re.compile(
    "|".join(map(re.escape, (FACTORS, LONG_FACTORS, SHORT_FACTORS)))
    + r"|blk\.\d+\.attn_rot_embd(?:\.weight)?"
)


def checkpoint_of(file: GgufFile, family: GgufFamily) -> dict[str, ir.TensorProtocol]:
    """Return the tensors of `file` by HuggingFace's names. Nothing is read.

    Layers that predict further tokens are left out.

    Args:
        file: The opened file.
        family: Its architecture.

    Raises:
        CheckpointError: if a tensor's shape does not fit the heads that it is for.
    """
    facts = facts_of(file, family)
    tensors, taken = _joined(facts, family)
    tensors.update(family.made(facts))
    for name, tensor in file.tensors.items():
        if name in taken or name in family.used or _NOT_WEIGHTS.fullmatch(name):
            continue
        block = _BLOCK.fullmatch(name)
        if block is not None and int(block[1]) >= facts.layers:
            continue
        part = name if block is None else block[2]
        renamed = _renamed(part, dict(family.top if block is None else family.layer))
        if renamed is None:
            tensors[name] = tensor  # binding reports it
            continue
        stem = _PART.fullmatch(part)
        restore = family.restored.get(part) or family.restored.get(stem[1] if stem else "")
        if restore is not None:
            tensor = restore(tensor, facts)
        tensors[renamed if block is None else f"{family.prefix}.{block[1]}.{renamed}"] = tensor
    return tensors


def _renamed(part: str, names: dict[str, str]) -> str | None:
    """Return the name of a tensor: that of all of it, or of the part before its suffix."""
    if part in names:
        return names[part]
    stem = _PART.fullmatch(part)
    if stem is None or stem[1] not in names:
        return None
    return f"{names[stem[1]]}.{stem[2]}"


def _joined(
    facts: Facts, family: GgufFamily
) -> tuple[dict[str, ir.TensorProtocol], frozenset[str]]:
    """Return the tensors that are several in the file, and the names of those."""
    tensors: dict[str, ir.TensorProtocol] = {}
    taken: set[str] = set()
    for layer in range(facts.layers):
        for own, joined in family.joined.items():
            names = [f"blk.{layer}.{part}" for part in joined.parts]
            if all(name in facts.tensors for name in names):
                whole = joined.join(tuple(leaf(facts.tensors[name]) for name in names))
                renamed = f"{family.prefix}.{layer}.{own}"
                tensors[renamed] = DerivedTensor(whole, renamed)
                taken.update(names)
    return tensors, frozenset(taken)
