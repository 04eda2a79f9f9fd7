"""`GgufFamily`: what one `general.architecture` means; `Facts`: what a file says of its model.

Keys of metadata are without the architecture in front; names of tensors are without the block.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal

import onnx_ir as ir

from mobius_hf.errors import CheckpointConfigError
from mobius_hf.gguf.parts import LAYER, RMS, TOP
from mobius_ir_rules.lazy import Expression

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """What a file says of its model, for what needs more than one key.

    Attributes:
        values: Metadata of the architecture, by key without the architecture in front.
        tensors: The tensors by name.
        layers: Number of layers, without those that predict further tokens.
        head_size: Width of a head; 0 where nothing attends.
        theta: Base of the rotary frequencies.
        rope_scaling: HuggingFace's parameters of the rotary scaling; `None` for none.
    """

    values: Mapping[str, Any]
    tensors: Mapping[str, ir.TensorProtocol]
    layers: int
    head_size: int
    theta: float
    rope_scaling: Mapping[str, Any] | None

    def layers_with(self, name: str) -> tuple[bool, ...]:
        """Return which layers have the tensor `name`."""
        return tuple(f"blk.{layer}.{name}" in self.tensors for layer in range(self.layers))

    def has(self, name: str) -> bool:
        """Return whether any layer has the tensor `name`."""
        return any(self.layers_with(name))

    def tensor(self, name: str) -> ir.TensorProtocol:
        """Return a tensor.

        Raises:
            CheckpointConfigError: if there is none of that name.
        """
        if name not in self.tensors:
            raise CheckpointConfigError(
                f"The file has no tensor {name!r}, as every model of its architecture has. "
                "Download it again."
            )
        return self.tensors[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of `name` in the first layer that has it, which one must."""
        found = [layer for layer, has in enumerate(self.layers_with(name)) if has]
        tensor = self.tensor(f"blk.{found[0] if found else 0}.{name}")
        return tuple(map(int, tensor.shape.numpy()))

    def sliding_types(self, period: int) -> list[str]:
        """Return the type of each layer: those that slide, and every `period`-th, which does not.

        The file may have another period, or say it layer by layer.
        """
        pattern = self.values.get("attention.sliding_window_pattern", period)
        if not isinstance(pattern, list):
            pattern = [(layer + 1) % pattern for layer in range(self.layers)]
        slides = pattern[: self.layers]
        return ["sliding_attention" if each else "full_attention" for each in slides]

    def largest(self, key: str) -> int:
        """Return the number under `key`, the largest of them where layers differ."""
        value = self.values[key]
        return max(map(int, value)) if isinstance(value, list) else int(value)


Derive = Callable[[Facts], Mapping[str, Any]]
Restore = Callable[[ir.TensorProtocol, Facts], ir.TensorProtocol]


@dataclasses.dataclass(frozen=True)
class Joined:
    """Several tensors of a layer that are one in HuggingFace's checkpoint.

    Attributes:
        parts: Their names, in the order that `join` takes.
        join: Makes one of them.
    """

    parts: tuple[str, ...]
    join: Callable[[tuple[Expression, ...]], Expression]


@dataclasses.dataclass(frozen=True, kw_only=True)
class GgufFamily:
    """One `general.architecture`.

    Attributes:
        model_type: The HuggingFace `model_type`.
        fields: Key of the metadata -> field of `config.json`.
        flags: Field that is true if layers have a tensor -> that tensor.
        says: Fields that llama.cpp has fixed, with their value.
        derive: Fields that more than one key decides.
        derived: Keys that `derive` and `made` read, beside those of `fields`.
        fixed: Keys that may have one value alone.
        aside: Keys that change nothing here, or say again what tensors and other keys say.
        layer: Part of a layer -> its name in HuggingFace's checkpoints; with the suffix where that
            is another one, or none.
        prefix: What is in front of the number of a layer there.
        top: The same for tensors of no layer.
        restored: Parts that llama.cpp's converter changes -> what changes them back.
        joined: Tensor of HuggingFace's layer -> the parts that it is made of.
        made: Tensors that are made of metadata, or in another way; None for no tensor.
        used: Tensors of no layer that `made` reads, which are none of their own.
        heads: `head_dim` is a field of the config ("stated"), heads make up the hidden size
            ("implied"), `derive` says what they are ("own"), or nothing attends ("none").
        rotary: The config has the usual rotary fields.
        partial_rotary: `partial_rotary_factor` is a field of the config even if it is 1.
    """

    model_type: str
    fields: Mapping[str, str] = dataclasses.field(default_factory=lambda: RMS)
    flags: Mapping[str, str] = dataclasses.field(default_factory=lambda: _NOTHING)
    says: Mapping[str, Any] = dataclasses.field(default_factory=lambda: _NOTHING)
    derive: Derive = lambda facts: _NOTHING
    derived: frozenset[str] = frozenset()
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=lambda: _NOTHING)
    aside: frozenset[str] = frozenset()
    layer: Mapping[str, str] = dataclasses.field(default_factory=lambda: LAYER)
    prefix: str = "model.layers"
    top: Mapping[str, str] = dataclasses.field(default_factory=lambda: TOP)
    restored: Mapping[str, Restore] = dataclasses.field(default_factory=lambda: _NOTHING)
    joined: Mapping[str, Joined] = dataclasses.field(default_factory=lambda: _NOTHING)
    made: Callable[[Facts], Mapping[str, ir.TensorProtocol]] = lambda facts: _NOTHING
    used: frozenset[str] = frozenset()
    heads: Literal["stated", "implied", "own", "none"] = "stated"
    rotary: bool = True
    partial_rotary: bool = False
