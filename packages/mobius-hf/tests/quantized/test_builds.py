"""Quantized checkpoints, built and run: the logits of the floats they stand for. C061, C062."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import mobius
from mobius import ModelPackage
from mobius.errors import WeightsError
from mobius_hf.errors import CheckpointError
from mobius_ir_rules.testing import op_counts

from .test_integers import awq_arrays, gptq_arrays, packed_arrays, rounded_scales

Array = npt.NDArray[Any]
Arrays = dict[str, Array]
Make = Callable[..., Any]

HIDDEN, INNER, LAYERS, VOCABULARY = 64, 96, 2, 48
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
}
SHAPES = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (HIDDEN // 2, HIDDEN),
    "self_attn.v_proj": (HIDDEN // 2, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (INNER, HIDDEN),
    "mlp.up_proj": (INNER, HIDDEN),
    "mlp.down_proj": (HIDDEN, INNER),
}
PRODUCTS = LAYERS * len(SHAPES)


def others() -> Arrays:
    """Return the tensors that no method quantizes."""
    random = np.random.default_rng(7)
    arrays = {
        "model.embed_tokens.weight": random.standard_normal((VOCABULARY, HIDDEN)),
        "lm_head.weight": random.standard_normal((VOCABULARY, HIDDEN)) / 8,
        "model.norm.weight": 1 + random.standard_normal(HIDDEN) / 4,
    }
    for layer in range(LAYERS):
        for name in ("input_layernorm", "post_attention_layernorm"):
            arrays[f"model.layers.{layer}.{name}.weight"] = 1 + random.standard_normal(HIDDEN) / 4
    return {name: array.astype(np.float16) for name, array in arrays.items()}


def modules(quantized: Make, **options: Any) -> dict[str, Any]:
    """Return a quantized weight for each product of the layers."""
    made = {}
    for layer in range(LAYERS):
        for index, (name, (n, k)) in enumerate(SHAPES.items()):
            seed = 10 * layer + index
            weight = quantized(n, k, 32, seed=seed, **options)
            # As large as trained ones: attention is not flat, and nothing blows up.
            made[f"model.layers.{layer}.{name}"] = weight
    return made


def floats(made: dict[str, Any]) -> Arrays:
    return {**others(), **{f"{name}.weight": weight.floats for name, weight in made.items()}}


def joined(made: dict[str, Any], arrays: Callable[[Any], Arrays]) -> Arrays:
    parts = {
        f"{module}.{name}": array
        for module, weight in made.items()
        for name, array in arrays(weight).items()
    }
    return {**others(), **parts}


def logits(folder: Path) -> Array:
    """Return the logits of a padded batch."""
    session = onnxruntime.InferenceSession(
        folder / "model.onnx", providers=["CPUExecutionProvider"]
    )
    random = np.random.default_rng(3)
    mask = np.ones((2, 7), np.int64)
    mask[1, 5:] = 0
    feed: dict[str, Array] = {
        "input_ids": random.integers(0, VOCABULARY, (2, 7)),
        "attention_mask": mask,
        "position_ids": np.clip(np.cumsum(mask, axis=1) - 1, 0, None),
    }
    dtypes = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
    for port in session.get_inputs():
        if port.name.startswith("past"):
            feed[port.name] = np.zeros((2, 2, 0, HIDDEN // 4), dtypes[port.type])
    result: Array = session.run(["logits"], feed)[0]
    return result[mask.astype(bool)]


class Case:
    """A way to store a checkpoint.

    Attributes:
        settings: `quantization_config`.
        options: Of the weights.
        arrays: What a module is stored as.
    """

    def __init__(self, settings: Any, options: Any, arrays: Callable[[Any, Any], Arrays]) -> None:
        self.settings = settings
        self.options = options
        self.arrays = arrays


def plain8(weight: Any, words_of: Any) -> Arrays:
    del words_of
    return {
        "weight": (weight.integers - 128).astype(np.int8),
        "weight_scale": weight.scales.astype(ml_dtypes.bfloat16),
    }


def compressed(form: str, bits: int) -> dict[str, Any]:
    weights = {"num_bits": bits, "type": "int", "strategy": "group", "group_size": 32}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"],
    }


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, "desc_act": False}
CASES = {
    "gptq": Case(GPTQ, {}, gptq_arrays),
    "gptq, symmetric, 8 bits": Case(
        {**GPTQ, "bits": 8, "sym": True}, {"bits": 8, "symmetric": True}, gptq_arrays
    ),
    "awq": Case(
        {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}, {}, awq_arrays
    ),
    "packed": Case(
        compressed("pack-quantized", 4),
        {"symmetric": True},
        lambda weight, words_of: packed_arrays(weight, words_of, symmetric=True),
    ),
    "plain": Case(compressed("int-quantized", 8), {"symmetric": True, "bits": 8}, plain8),
}


@pytest.fixture
def write(write_model: Make, quantized: Make, words_of: Make) -> Make:
    """Return a function that writes a quantized checkpoint and the one of its floats."""

    def make(case: Case, **more: Any) -> tuple[Path, Path]:
        made = modules(quantized, **{**case.options, **more})
        if "compressed" in case.settings["quant_method"]:
            made = {name: rounded_scales(weight) for name, weight in made.items()}
        config = {**CONFIG, "quantization_config": case.settings}
        stored = joined(made, lambda weight: case.arrays(weight, words_of))
        return (
            write_model(config, stored, folder="quantized"),
            write_model(CONFIG, floats(made), folder="floats"),
        )

    return make


def saved(checkpoint: Path, out: Path, **options: Any) -> ModelPackage:
    package = mobius.build(checkpoint, dtype="f32", **options)
    package.save(out)
    return package


@pytest.mark.parametrize("ep", ["default", "onnx-standard", "cpu"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_logits_are_those_of_the_floats(write: Make, tmp_path: Path, case: Case, ep: str) -> None:
    checkpoint, reference = write(case)
    package = saved(checkpoint, tmp_path / "out", execution_provider=ep)
    saved(reference, tmp_path / "reference")
    counts = op_counts(package["model"])
    if ep == "default":
        assert counts["com.microsoft::MatMulNBits"] == PRODUCTS
    elif ep == "cpu":
        assert counts["com.microsoft::MatMulNBits"] == PRODUCTS - 2 * LAYERS  # packed q, k, v
    else:
        assert counts["DequantizeLinear"] == PRODUCTS
    ours, theirs = logits(tmp_path / "out"), logits(tmp_path / "reference")
    assert 0.5 < np.abs(theirs).max() < 50
    # The cpu target lets its kernel round activations to 8 bits (accuracy level 4).
    assert np.abs(ours - theirs).max() < (0.1 if ep == "cpu" else 2e-5)
    assert package.quantization is not None
    assert package.quantization["stored"][0]["weights"] == PRODUCTS
    if ep == "default":
        # Nothing is there twice: integers, scales and zero points in place of floats.
        assert (tmp_path / "out" / "model.onnx.data").stat().st_size < 0.6 * (
            tmp_path / "reference" / "model.onnx.data"
        ).stat().st_size


def test_integers_in_the_file_are_those_of_the_checkpoint(
    write: Make, quantized: Make, tmp_path: Path
) -> None:
    checkpoint, _ = write(CASES["gptq"])
    saved(checkpoint, tmp_path / "out", execution_provider="cuda", quantize=None)
    model = onnx.load(tmp_path / "out" / "model.onnx")
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    made = modules(quantized)
    layer = "model.layers.1.self_attn"
    packed = arrays[f"{layer}.o_proj.qweight"].reshape(HIDDEN, -1)
    integers = made[f"{layer}.o_proj"].integers
    np.testing.assert_array_equal(packed, integers[:, ::2] | integers[:, 1::2] << 4)
    scales = made[f"{layer}.o_proj"].scales
    np.testing.assert_array_equal(
        arrays[f"{layer}.o_proj.scales"].astype(np.float32), scales.astype(np.float32)
    )


def test_fused_projections_keep_their_integers(
    write_model: Make, quantized: Make, words_of: Make, tmp_path: Path
) -> None:
    # phi3 stores query, key and value as one, gate and up as one: rows of one weight each.
    made = {
        f"model.layers.{layer}.{name}": quantized(n, k, 32, seed=layer + n)
        for layer in range(LAYERS)
        for name, (n, k) in {
            "self_attn.qkv_proj": (2 * HIDDEN, HIDDEN),
            "self_attn.o_proj": (HIDDEN, HIDDEN),
            "mlp.gate_up_proj": (2 * INNER, HIDDEN),
            "mlp.down_proj": (HIDDEN, INNER),
        }.items()
    }
    config = {
        **CONFIG,
        "architectures": ["Phi3ForCausalLM"],
        "model_type": "phi3",
        "pad_token_id": 0,
    }
    stored = joined(made, lambda weight: gptq_arrays(weight, words_of))
    checkpoint = write_model({**config, "quantization_config": GPTQ}, stored, folder="quantized")
    reference = write_model(config, floats(made), folder="floats")
    package = saved(checkpoint, tmp_path / "out")
    saved(reference, tmp_path / "reference")
    assert op_counts(package["model"])["com.microsoft::MatMulNBits"] == PRODUCTS
    difference = np.abs(logits(tmp_path / "out") - logits(tmp_path / "reference")).max()
    assert difference < 2e-5


def test_mixed_groups_run_as_floats(write: Make, tmp_path: Path) -> None:
    case = Case({**GPTQ, "desc_act": True}, {"mixed": True}, gptq_arrays)
    checkpoint, reference = write(case)
    package = saved(checkpoint, tmp_path / "out")
    saved(reference, tmp_path / "reference")
    assert op_counts(package["model"])["com.microsoft::MatMulNBits"] == 0
    np.testing.assert_array_equal(logits(tmp_path / "out"), logits(tmp_path / "reference"))


def test_floats_on_request_and_other_integers(write: Make, tmp_path: Path) -> None:
    checkpoint, reference = write(CASES["gptq"])
    package = saved(checkpoint, tmp_path / "out", quantize="float")
    saved(reference, tmp_path / "reference")
    assert package.quantization is None
    counts = Counter(op_counts(package["model"]))
    assert counts["com.microsoft::MatMulNBits"] == 0
    np.testing.assert_array_equal(logits(tmp_path / "out"), logits(tmp_path / "reference"))
    # Rounded anew, head and all.
    again = saved(checkpoint, tmp_path / "int8", quantize="int8")
    rounded = saved(reference, tmp_path / "reference8", quantize="int8")
    assert op_counts(again["model"]) == op_counts(rounded["model"])
    np.testing.assert_array_equal(logits(tmp_path / "int8"), logits(tmp_path / "reference8"))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_without_weights_the_graph_is_the_same(write: Make, tmp_path: Path, case: Case) -> None:
    checkpoint, _ = write(case)
    saved(checkpoint, tmp_path / "whole", execution_provider="cuda")
    mobius.build(checkpoint, execution_provider="cuda", dtype="f32", load_weights=False).save(
        tmp_path / "graph"
    )
    whole, graph = (ir.load(tmp_path / each / "model.onnx").graph for each in ("whole", "graph"))
    assert [(n.op_type, n.name) for n in whole] == [(n.op_type, n.name) for n in graph]
    assert (tmp_path / "whole" / "model.onnx").read_bytes() == (
        tmp_path / "graph" / "model.onnx"
    ).read_bytes()


def test_blocks_of_8_bit_floats(write_model: Make, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    stored, plain = others(), others()
    for layer in range(LAYERS):
        for name, (n, k) in SHAPES.items():
            module = f"model.layers.{layer}.{name}"
            weight = random.standard_normal((n, k)).astype(ml_dtypes.float8_e4m3fn)
            scale = random.uniform(0.5, 1.5, (-(-n // 32), -(-k // 32))).astype(np.float32)
            scale /= np.float32(k**0.5)
            stored[f"{module}.weight"] = weight
            stored[f"{module}.weight_scale_inv"] = scale
            factors = np.repeat(np.repeat(scale, 32, axis=0), 32, axis=1)
            plain[f"{module}.weight"] = weight.astype(np.float32) * factors
    settings = {"quant_method": "fp8", "weight_block_size": [32, 32]}
    checkpoint = write_model({**CONFIG, "quantization_config": settings}, stored, folder="fp8")
    reference = write_model(CONFIG, plain, folder="floats")
    package = saved(checkpoint, tmp_path / "out")
    saved(reference, tmp_path / "reference")
    assert package.quantization is None
    np.testing.assert_array_equal(logits(tmp_path / "out"), logits(tmp_path / "reference"))


def test_parts_that_belong_to_no_parameter_are_reported(
    write_model: Make, quantized: Make, words_of: Make
) -> None:
    made = modules(quantized)
    made["model.layers.0.mlp.unknown"] = quantized(16, 64, 32)
    stored = joined(made, lambda weight: gptq_arrays(weight, words_of))
    checkpoint = write_model({**CONFIG, "quantization_config": GPTQ}, stored)
    with pytest.raises(WeightsError, match=r"left over: model.layers.0.mlp.unknown.weight"):
        mobius.build(checkpoint)


def test_an_unknown_method_is_named_before_weights_are_looked_for(write_model: Make) -> None:
    checkpoint = write_model({**CONFIG, "quantization_config": {"quant_method": "bitsandbytes"}})
    with pytest.raises(CheckpointError, match="weights quantized by 'bitsandbytes'"):
        mobius.build(checkpoint)
    # The graph alone can be had.
    assert not mobius.build(checkpoint, load_weights=False).is_loaded
