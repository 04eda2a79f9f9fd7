"""Checkpoints whose experts are integers: they stay so, in QMoE or gathered. C061, C062, C070."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import mobius
from mobius_ir_rules.testing import op_counts

from .test_builds import CASES, CONFIG, HIDDEN, LAYERS, Case, logits, others, saved
from .test_integers import rounded_scales

Array = npt.NDArray[Any]
Make = Callable[..., Any]

EXPERTS, INNER = 4, 32
QMOE, MOE = "com.microsoft::QMoE", "com.microsoft::MoE"
MIXTURE = {
    **CONFIG,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": INNER,
    "norm_topk_prob": True,
    "head_dim": 16,
}
SHAPES = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (HIDDEN // 2, HIDDEN),
    "self_attn.v_proj": (HIDDEN // 2, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    **{
        f"mlp.experts.{expert}.{name}": shape
        for expert in range(EXPERTS)
        for name, shape in {
            "gate_proj": (INNER, HIDDEN),
            "up_proj": (INNER, HIDDEN),
            "down_proj": (HIDDEN, INNER),
        }.items()
    },
}


def floats_beside() -> dict[str, Array]:
    """Return what no method quantizes: routers, norms of heads, and what Llama has."""
    random = np.random.default_rng(9)
    arrays = others()
    for layer in range(LAYERS):
        stem = f"model.layers.{layer}"
        arrays[f"{stem}.mlp.gate.weight"] = random.standard_normal((EXPERTS, HIDDEN)) / 4
        for name in ("q_norm", "k_norm"):
            arrays[f"{stem}.self_attn.{name}.weight"] = 1 + random.standard_normal(16) / 4
    return {name: array.astype(np.float16) for name, array in arrays.items()}


@pytest.fixture
def write(write_model: Make, quantized: Make, words_of: Make) -> Make:
    """Return a function that writes a quantized checkpoint and the one of its floats."""

    def make(case: Case) -> tuple[Path, Path, dict[str, Any]]:
        made = {
            f"model.layers.{layer}.{name}": quantized(
                *shape, 32, seed=100 * layer + index, **case.options
            )
            for layer in range(LAYERS)
            for index, (name, shape) in enumerate(SHAPES.items())
        }
        if "compressed" in case.settings["quant_method"]:
            made = {name: rounded_scales(weight) for name, weight in made.items()}
        stored = {
            f"{module}.{part}": array
            for module, weight in made.items()
            for part, array in case.arrays(weight, words_of).items()
        }
        plain = {f"{name}.weight": weight.floats for name, weight in made.items()}
        config = {**MIXTURE, "quantization_config": case.settings}
        return (
            write_model(config, {**floats_beside(), **stored}, folder="quantized"),
            write_model(MIXTURE, {**floats_beside(), **plain}, folder="floats"),
            made,
        )

    return make


@pytest.mark.parametrize("ep", ["default", "onnx-standard"])
@pytest.mark.parametrize("name", ["gptq", "gptq, symmetric, 8 bits", "awq", "packed"])
def test_logits_are_those_of_the_floats(write: Make, tmp_path: Path, name: str, ep: str) -> None:
    case = CASES[name]
    checkpoint, reference, _ = write(case)
    package = saved(checkpoint, tmp_path / "out", execution_provider=ep)
    saved(reference, tmp_path / "reference")
    eight = (
        case.options.get("bits") == 8
    )  # which the CPU's kernel computes with rounded activations
    counts = op_counts(package["model"])
    assert counts[QMOE] == (LAYERS if ep == "default" and not eight else 0)
    assert counts[MOE] == 0
    ours, theirs = logits(tmp_path / "out"), logits(tmp_path / "reference")
    assert 0.5 < np.abs(theirs).max() < 50
    assert np.abs(ours - theirs).max() < 2e-5
    assert package.quantization is not None
    assert package.quantization["stored"][0]["weights"] == LAYERS * (4 + 2)
    sizes = [(tmp_path / each / "model.onnx.data").stat().st_size for each in ("out", "reference")]
    assert sizes[0] < 0.5 * sizes[1]


def test_integers_in_the_file_are_those_of_the_checkpoint(write: Make, tmp_path: Path) -> None:
    """Those of gate and up projection in turn, as the kernel wants them."""
    checkpoint, _, made = write(CASES["awq"])
    saved(checkpoint, tmp_path / "out", execution_provider="default")
    model = onnx.load(tmp_path / "out" / "model.onnx")
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    stem = "model.layers.1.mlp.experts"

    def stacked(name: str, what: str) -> Array:
        return np.stack([getattr(made[f"{stem}.{e}.{name}"], what) for e in range(EXPERTS)])

    def bytes_of(integers: Array) -> Array:
        if integers.shape[-1] % 2:
            integers = np.concatenate([integers, np.zeros_like(integers[..., :1])], axis=-1)
        return integers[..., ::2] | integers[..., 1::2] << 4

    def in_turn(what: str) -> Array:
        gate, up = stacked("gate_proj", what), stacked("up_proj", what)
        return np.stack([gate, up], axis=2).reshape(EXPERTS, 2 * INNER, -1)

    for layer, rows in (
        ("gate_up_proj", in_turn),
        ("down_proj", lambda what: stacked("down_proj", what)),
    ):
        np.testing.assert_array_equal(arrays[f"{stem}.{layer}.qweight"], bytes_of(rows("integers")))
        np.testing.assert_array_equal(arrays[f"{stem}.{layer}.scales"], rows("scales"))
        zeros = arrays[f"{stem}.{layer}.zero_points"]
        blocks = rows("zeros").shape[-1]
        found = np.stack([zeros & 15, zeros >> 4], axis=-1).reshape(*zeros.shape[:2], -1)
        np.testing.assert_array_equal(found[..., :blocks], rows("zeros"))


def test_floats_on_request_and_other_integers(write: Make, tmp_path: Path) -> None:
    checkpoint, reference, _ = write(CASES["gptq"])
    for quantize in ("float", "int8"):
        out, floats = tmp_path / quantize, tmp_path / f"{quantize}-floats"
        package = saved(checkpoint, out, quantize=quantize)
        wanted = saved(reference, floats, quantize=quantize)
        assert op_counts(package["model"]) == op_counts(wanted["model"])
        np.testing.assert_array_equal(logits(out), logits(floats))


@pytest.mark.parametrize("name", ["gptq", "awq", "packed"])
def test_without_weights_the_graph_is_the_same(write: Make, tmp_path: Path, name: str) -> None:
    checkpoint, _, _ = write(CASES[name])
    saved(checkpoint, tmp_path / "whole", execution_provider="cpu")
    mobius.build(checkpoint, execution_provider="cpu", dtype="f32", load_weights=False).save(
        tmp_path / "graph"
    )
    whole, graph = ((tmp_path / each / "model.onnx").read_bytes() for each in ("whole", "graph"))
    assert whole == graph
