"""Quantized decoders compute what the same graph computes with the weights rounded beforehand.

On every target, in whatever form it gets them: MatMulNBits, its body, DequantizeLinear. Cases C069,
C117, C141.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from tests.parity.decoder import Decoder, padded_logits
from tests.test_kernel_tables import CELLS, CONFIGS, TABLES, needs_tables, without_kernel
from tests.test_lowered_decoders import tokens, weights

from mobius import ModelPackage, QuantizationConfig, build_from_module
from mobius.models import CausalLMModel
from mobius_ir_rules.block_quantization import BlockFormat, dequantize_rows, quantize_rows
from mobius_ir_rules.testing import op_counts

EXACT = QuantizationConfig(accuracy_level=0)
"""Activations are not rounded, so that numbers can be compared."""

TARGETS = [
    ("default", "f32", None),
    ("default", "f16", None),
    ("cpu", "f32", None),
    ("dml", "f32", None),
    ("webgpu", "f32", None),
    ("trt-rtx", "f32", None),
    ("onnx-standard", "f32", None),
    ("onnx-standard", "f16", None),
    ("onnx-standard", "f32", 17),
]
IDS = [f"{ep}-{dtype}" + (f"-opset{opset}" if opset else "") for ep, dtype, opset in TARGETS]
TOLERANCES = {"f32": 2e-5, "f16": 4e-2}


def build(
    name: str,
    ep: str,
    dtype: str,
    quantize: QuantizationConfig | None,
    opset: int | None = None,
    tensors: Mapping[str, ir.TensorProtocol] | None = None,
) -> ModelPackage:
    config = CONFIGS[name]
    return build_from_module(
        CausalLMModel(config),
        config,
        execution_provider=ep,
        dtype=dtype,
        opset=opset,
        quantize=quantize,
        weights=tensors if tensors is not None else weights(name),
    )


def rounded(name: str, quantize: QuantizationConfig, dtype: str) -> dict[str, ir.TensorProtocol]:
    """Return float weights that are what the integers of a quantized build stand for."""
    form = BlockFormat(quantize.bits, quantize.block_size, quantize.symmetric)
    made = dict(weights(name))
    for key, tensor in made.items():
        array = tensor.numpy().astype({"f32": np.float32, "f16": np.float16}[dtype])
        if array.ndim == 2 and ("embed_tokens" not in key or quantize.embeddings):
            array = dequantize_rows(quantize_rows(array, form), form, array.shape[1])
        made[key] = ir.tensor(array, name=key)
    return made


@pytest.mark.parametrize(("ep", "dtype", "opset"), TARGETS, ids=IDS)
@pytest.mark.parametrize(
    "quantize",
    [
        EXACT,
        QuantizationConfig(bits=8, symmetric=False, block_size=64, accuracy_level=0),
        QuantizationConfig(symmetric=False, embeddings=True, block_size=16, accuracy_level=0),
    ],
    ids=["int4", "int8-asymmetric", "embeddings"],
)
def test_same_numbers_on_every_target(
    tmp_path: Path, ep: str, dtype: str, opset: int | None, quantize: QuantizationConfig
) -> None:
    build("llama", ep, dtype, quantize, opset).save(tmp_path / "out")
    build("llama", "default", dtype, None, tensors=rounded("llama", quantize, dtype)).save(
        tmp_path / "reference"
    )
    model = ir.load(tmp_path / "out" / "model.onnx")
    counts = op_counts(model)
    products, tables = (0, 0) if ep in ("onnx-standard", "trt-rtx") else (1, quantize.embeddings)
    assert (counts["com.microsoft::MatMulNBits"] > 0) == bool(products)
    if ep != "dml":  # it has no kernel for lookups in integers
        assert counts["com.microsoft::GatherBlockQuantized"] == tables
    if not products:
        assert (counts["DequantizeLinear"] > 0) == (opset is None)
    got = padded_logits(Decoder(tmp_path / "out" / "model.onnx"), tokens(), 2, "right", ())
    wanted = padded_logits(Decoder(tmp_path / "reference" / "model.onnx"), tokens(), 2, "right", ())
    for ours, theirs in zip(got, wanted, strict=True):
        assert 0.5 < np.abs(theirs).max() < 50
        assert np.abs(ours - theirs).max() < TOLERANCES[dtype]


@needs_tables
@pytest.mark.parametrize(("ep", "dtype"), [cell for cell in CELLS if cell[0] in TABLES])
@pytest.mark.parametrize("symmetric", [True, False])
def test_the_target_has_kernels_for_what_reads_integers(
    ep: str, dtype: ir.DataType, symmetric: bool
) -> None:
    quantize = QuantizationConfig(symmetric=symmetric, embeddings=True)
    config = CONFIGS["qwen2"]
    package = build_from_module(
        CausalLMModel(config), config, execution_provider=ep, dtype=dtype, quantize=quantize
    )
    readers = ("DequantizeLinear", "GatherBlockQuantized", "MatMulNBits")
    missing = without_kernel(package["model"], ep, TABLES[ep])
    assert [use.shown for use in missing if use.op_type in readers] == []
    counts = op_counts(package["model"])
    assert counts["com.microsoft::MatMulNBits"] > 0
    assert counts["com.microsoft::GatherBlockQuantized"] == (ep != "dml")


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("embeddings", [True, False])
@pytest.mark.parametrize("name", ["llama", "qwen2"])
@pytest.mark.parametrize("ep", ["cpu", "onnx-standard"])
def test_tied_and_untied_tables_load_and_are_stored_once(
    tmp_path: Path, ep: str, name: str, embeddings: bool, symmetric: bool
) -> None:
    # C117, C141; qwen2 is tied.
    quantize = QuantizationConfig(symmetric=symmetric, embeddings=embeddings)
    build(name, ep, "f32", quantize).save(tmp_path / "out")
    model = tmp_path / "out" / "model.onnx"
    onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    proto = onnx.load(model, load_external_data=False)
    places: dict[str, list[int]] = {}
    for tensor in proto.graph.initializer:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        places.setdefault(entries["offset"], []).append(int(entries["length"]))
    # What is stored in one place has one length.
    assert all(len(set(lengths)) == 1 for lengths in places.values())
    shared = sum(len(lengths) - 1 for lengths in places.values())
    tied = CONFIGS[name].tie_word_embeddings
    # Scales, zero points where there are some, and integers: without zero points DequantizeLinear
    # has signed ones, and lookups without a kernel have none of that type.
    once = {("cpu", True): 2, ("cpu", False): 3, ("onnx-standard", True): 1}
    assert shared == (once.get((ep, symmetric), 3) if tied and embeddings else 0)
    table = CONFIGS[name].vocab_size * CONFIGS[name].hidden_size
    floats = [length for lengths in places.values() for length in lengths if length == 4 * table]
    assert len(floats) == (0 if embeddings else 1)


@pytest.mark.parametrize("quantize", [EXACT, QuantizationConfig(symmetric=False, embeddings=True)])
def test_saved_again_it_is_the_same_file(tmp_path: Path, quantize: QuantizationConfig) -> None:
    build("qwen2", "cpu", "f32", quantize).save(tmp_path / "once")
    again = ModelPackage.load(tmp_path / "once")
    again.save(tmp_path / "twice")
    for file in ("model.onnx", "model.onnx.data", "mobius.json"):
        assert (tmp_path / "once" / file).read_bytes() == (tmp_path / "twice" / file).read_bytes()
    assert again.quantization == quantize.to_dict()


def test_without_weights_it_is_the_same_graph(tmp_path: Path) -> None:
    config = CONFIGS["llama"]
    package = build_from_module(
        CausalLMModel(config), config, execution_provider="cpu", dtype="f32", quantize="int4"
    )
    package.save(tmp_path / "graph")
    package.apply_weights(weights("llama"))
    package.save(tmp_path / "whole")
    graph, whole = ((tmp_path / each / "model.onnx").read_bytes() for each in ("graph", "whole"))
    assert graph == whole


def test_integers_are_those_of_the_packed_projection(tmp_path: Path) -> None:
    build("llama", "cpu", "f32", EXACT).save(tmp_path / "out")
    model = ir.load(tmp_path / "out" / "model.onnx")
    found = {str(name): value for name, value in model.graph.initializers.items()}
    layer = "model.layers.0.self_attn"
    names = [f"{layer}.{each}_proj.weight" for each in "qkv"]
    rows = np.concatenate([weights("llama")[name].numpy() for name in names])
    wanted = quantize_rows(rows, BlockFormat(4, 32, True))
    packed = found[f"{layer}.qkv_proj.qweight"].const_value
    scales = found[f"{layer}.qkv_proj.scales"].const_value
    assert packed is not None
    assert scales is not None
    np.testing.assert_array_equal(packed.numpy(), wanted.packed)
    np.testing.assert_array_equal(scales.numpy(), wanted.scales)


def test_every_level_of_optimization_of_onnxruntime_gives_the_same(tmp_path: Path) -> None:
    # C069: its own fusion of DequantizeLinear and MatMul is wrong along axis 0.
    build("llama", "onnx-standard", "f32", EXACT).save(tmp_path / "out")
    inputs = None
    results = []
    for level in (
        onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
        onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
    ):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = level
        session = onnxruntime.InferenceSession(
            tmp_path / "out" / "model.onnx", options, providers=["CPUExecutionProvider"]
        )
        if inputs is None:
            random = np.random.default_rng(0)
            sizes = {"batch": 2, "sequence": 5}
            inputs = {}
            for each in session.get_inputs():
                shape = [dim if isinstance(dim, int) else sizes.get(dim, 0) for dim in each.shape]
                if each.name == "input_ids":
                    inputs[each.name] = random.integers(0, 64, (2, 5))
                elif each.name == "attention_mask":
                    inputs[each.name] = np.ones((2, 5), np.int64)
                elif each.name == "position_ids":
                    inputs[each.name] = np.tile(np.arange(5), (2, 1))
                else:
                    inputs[each.name] = np.zeros((2, shape[1], 0, shape[3]), np.float32)
        results.append(session.run(["logits"], inputs)[0])
    assert np.abs(results[0]).max() > 0.5
    np.testing.assert_allclose(results[0], results[1], atol=2e-5)


@pytest.mark.parametrize("ep", ["default", "cpu", "webgpu", "cuda"])
def test_accuracy_level_is_that_of_the_target(ep: str) -> None:
    config = CONFIGS["llama"]
    levels = {"default": None, "cuda": None, "cpu": 4, "webgpu": 4}
    dtype = "f16" if ep == "cuda" else "f32"
    for quantize, wanted in ((QuantizationConfig(), levels[ep]), (EXACT, None)):
        package = build_from_module(
            CausalLMModel(config), config, execution_provider=ep, dtype=dtype, quantize=quantize
        )
        nodes = [n for n in package["model"].graph if n.op_type == "MatMulNBits"]
        found = [n.attributes.get("accuracy_level") for n in nodes]
        assert {None if each is None else each.as_int() for each in found} == {wanted}


def test_what_is_left_out_is_reported() -> None:
    config = dataclasses.replace(CONFIGS["llama"], num_hidden_layers=2)
    package = build_from_module(
        CausalLMModel(config),
        config,
        execution_provider="cpu",
        dtype="f32",
        quantize=QuantizationConfig(lm_head=False, exclude=(r"layers\.1\.mlp\.down",)),
    )
    report = package.reports["model"]
    (stage,) = [stage for stage in report.stages if stage.name == "Quantize"]
    # In each layer: packed query, key and value, output, gate, up and down.
    assert stage.applications == 2 * 5 - 1
    reasons = {refusal.reason for refusal in stage.refusals}
    assert reasons == {
        "The weight is the output head, which was left out (lm_head=False).",
        r"The name of the weight has a match of 'layers\.1\.mlp\.down', which was left out.",
    }
    assert len(stage.refusals) == 2
