"""Decoder blocks for the tests of the attention rules: `decoder(...)` builds one with weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import onnx_ir.passes.common as common_passes
import pytest

from mobius_ir_rules.functions import FUNCTIONS
from mobius_ir_rules.testing import run_model

Arrays = dict[str, npt.NDArray[Any]]

VOCABULARY = 40
POSITIONS = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoder:
    """Settings of a decoder of attention blocks, x -> x + MatMul(attention(x)).

    `rotary` is the width that is rotated, 0 for none. `extra` is ONNX text added to the graph,
    `extra_outputs` are the graph outputs that it makes.
    """

    heads: int = 4
    kv_heads: int = 2
    head_size: int = 16
    value_size: int = 0
    layers: int = 1
    rotary: int = 16
    interleaved: int = 0
    window: int = 0
    attributes: str = ""
    bias: bool = False
    dtype: str = "float"
    mask: str = ""
    extra: str = ""
    extra_outputs: str = ""
    edit: Callable[[str], str] = str

    @property
    def hidden(self) -> int:
        """Width of the residual stream."""
        return self.heads * self.head_size

    def build(self) -> ir.Model:
        """Return the model, the same at each call, with weights and inferred types."""
        model = ir.from_onnx_text(self._text(), initializers=[])
        random = np.random.default_rng(1)
        for value in list(model.graph.inputs):
            name = value.name or ""
            if not name.startswith("w_"):
                continue
            assert value.shape is not None
            assert value.dtype is not None
            shape = [int(dim) for dim in value.shape]  # type: ignore[arg-type]
            array = random.standard_normal(shape) / np.sqrt(shape[0])
            if name in ("w_cos", "w_sin"):
                # Each table is its own, and not that of any model.
                rate = 8.0 ** -np.arange(shape[1]) * 0.9
                angle = np.arange(POSITIONS)[:, None] * rate[None, :]
                array = np.cos(angle) if name == "w_cos" else np.sin(angle)
            model.graph.inputs.remove(value)
            value.const_value = ir.tensor(array.astype(value.dtype.numpy()), name=name)
            model.graph.register_initializer(value)
        for identifier, make_body in FUNCTIONS.items():
            if any((node.domain, node.op_type) == identifier for node in model.graph):
                function = make_body(24)
                model.functions[function.identifier()] = function
        return common_passes.ShapeInferencePass()(model).model

    def _text(self) -> str:
        float_ = self.dtype
        value_size = self.value_size or self.head_size
        mask = self.mask or (
            f"mobius.mask.SlidingWindowMask <window: int = {self.window}>"
            if self.window
            else "mobius.mask.CausalMask"
        )
        if not self.mask:
            mask += " (attention_mask, position_ids)"
        inputs = [
            f"{float_}[B, S, {self.hidden}] x",
            "int64[B, T] attention_mask",
            "int64[B, S] position_ids",
        ]
        outputs = [f"{float_}[B, S, {self.hidden}] y"]
        body = [f"mask = {mask}"]
        if self.rotary:
            inputs += [f"{float_}[{POSITIONS}, {self.rotary // 2}] w_{t}" for t in ("cos", "sin")]
        stream = "x"
        for layer in range(self.layers):
            sizes = {"q": self.heads * self.head_size, "k": self.kv_heads * self.head_size}
            sizes["v"] = self.kv_heads * value_size
            for role, size in sizes.items():
                inputs.append(f"{float_}[{self.hidden}, {size}] w_{role}{layer}")
                if self.bias:
                    inputs.append(f"{float_}[{size}] w_b{role}{layer}")
                    body.append(f"mm_{role}{layer} = MatMul({stream}, w_{role}{layer})")
                    body.append(f"{role}{layer} = Add(mm_{role}{layer}, w_b{role}{layer})")
                else:
                    body.append(f"{role}{layer} = MatMul({stream}, w_{role}{layer})")
            inputs.append(f"{float_}[{self.heads * value_size}, {self.hidden}] w_o{layer}")
            for role, size in (("key", self.head_size), ("value", value_size)):
                cache = f"{float_}[B, {self.kv_heads}, {{}}, {size}]"
                inputs.append(f"{cache.format('P')} past_{role}_{layer}")
                outputs.append(f"{cache.format('T')} present_{role}_{layer}")
            query, key = f"q{layer}", f"k{layer}"
            if self.rotary:
                for name, heads in ((query, self.heads), (key, self.kv_heads)):
                    body.append(
                        f"[rotary_{name}] r{name} = RotaryEmbedding <num_heads: int = {heads}, "
                        f"interleaved: int = {self.interleaved}, rotary_embedding_dim: int = "
                        f"{self.rotary if self.rotary != self.head_size else 0}> "
                        f"({name}, w_cos, w_sin, position_ids)"
                    )
                query, key = f"r{query}", f"r{key}"
            body.append(
                f"[attention{layer}] a{layer}, present_key_{layer}, present_value_{layer} = "
                f"Attention <q_num_heads: int = {self.heads}, kv_num_heads: int = "
                f"{self.kv_heads}{self.attributes}> ({query}, {key}, v{layer}, mask, "
                f"past_key_{layer}, past_value_{layer})"
            )
            body.append(f"o{layer} = MatMul(a{layer}, w_o{layer})")
            following = "y" if layer == self.layers - 1 else f"x{layer + 1}"
            body.append(f"{following} = Add({stream}, o{layer})")
            stream = following
        if self.extra:
            body.append(self.extra)
        if self.extra_outputs:
            outputs.append(self.extra_outputs)
        lines = "\n".join(body)
        return self.edit(
            '<ir_version: 10, opset_import: ["" : 24, "mobius.mask" : 1, "com.microsoft" : 1]>\n'
            f"decoder ({', '.join(inputs)}) => ({', '.join(outputs)}) {{\n{lines}\n}}"
        )

    def inputs(self, mask: Any, past: Mapping[str, npt.NDArray[Any]] | None, x: Any) -> Arrays:
        """Return the inputs of a step: `mask` is `[B, T]`, x the embeddings `[B, S, hidden]`.

        `past` holds the presents of the step before, by their own names; `None` for a prompt.
        """
        mask = np.asarray(mask, np.int64)
        x = np.asarray(x)
        positions = np.maximum(np.cumsum(mask, 1) - 1, 0)[:, -x.shape[1] :]
        inputs = {"x": x, "attention_mask": mask, "position_ids": positions}
        for layer in range(self.layers):
            for role, size in (("key", self.head_size), ("value", self.value_size)):
                shape = (x.shape[0], self.kv_heads, 0, size or self.head_size)
                inputs[f"past_{role}_{layer}"] = (
                    np.zeros(shape, x.dtype) if past is None else past[f"present_{role}_{layer}"]
                )
        return inputs

    def noise(self, batch: int, length: int, seed: int = 0) -> npt.NDArray[Any]:
        """Return embeddings `[batch, length, hidden]` of the scale of normalised ones."""
        random = np.random.default_rng(seed)
        dtype = np.float16 if self.dtype == "float16" else np.float32
        return random.standard_normal((batch, length, self.hidden)).astype(dtype)

    def prompt(self, batch: int = 2, length: int = 7) -> Arrays:
        """Return the inputs of a prompt without padding."""
        return self.inputs(np.ones((batch, length)), None, self.noise(batch, length))


def rows_alone(
    decoder: Decoder, model: ir.Model, x: npt.NDArray[Any], lengths: list[int], steps: int
) -> list[npt.NDArray[Any]]:
    """Return y of each row of `x` run alone without padding: its prompt and `steps` tokens.

    `x` is `[B, longest + steps, hidden]`; row b has the prompt `x[b, :lengths[b]]`, its further
    tokens are the last `steps` of `x[b]`. The result of row b has `lengths[b] + steps` rows.
    """
    results = []
    for row, length in enumerate(lengths):
        tokens = np.concatenate([x[row, :length], x[row, x.shape[1] - steps :]])[None]
        mask = np.ones((1, tokens.shape[1]))
        results.append(run_model(model, decoder.inputs(mask, None, tokens))["y"][0])
    return results


def padded_batch(
    decoder: Decoder,
    model: ir.Model,
    x: npt.NDArray[Any],
    lengths: list[int],
    steps: int,
    side: str = "right",
) -> list[npt.NDArray[Any]]:
    """Return the same as `rows_alone`, from one batch padded on a side and token steps."""
    longest = x.shape[1] - steps
    mask = (np.arange(longest)[None] < np.array(lengths)[:, None]).astype(np.int64)
    prompt = np.where(mask[..., None], x[:, :longest], np.asarray(9, x.dtype))
    if side == "left":
        shifts = [longest - length for length in lengths]
        mask = np.stack([np.roll(row, shift) for row, shift in zip(mask, shifts, strict=True)])
        prompt = np.stack(
            [np.roll(row, shift, 0) for row, shift in zip(prompt, shifts, strict=True)]
        )
    out = run_model(model, decoder.inputs(mask, None, prompt))
    results = [[out["y"][row, mask[row] == 1]] for row in range(len(lengths))]
    for step in range(steps):
        mask = np.concatenate([mask, np.ones((x.shape[0], 1), np.int64)], 1)
        token = x[:, longest + step : longest + step + 1]
        out = run_model(model, decoder.inputs(mask, out, token))
        for row, result in enumerate(results):
            result.append(out["y"][row])
    return [np.concatenate(result) for result in results]


@pytest.fixture(name="decoder")
def _decoder() -> type[Decoder]:
    return Decoder


@pytest.fixture(name="rows_alone")
def _rows_alone() -> Callable[..., list[npt.NDArray[Any]]]:
    return rows_alone


@pytest.fixture(name="padded_batch")
def _padded_batch() -> Callable[..., list[npt.NDArray[Any]]]:
    return padded_batch
