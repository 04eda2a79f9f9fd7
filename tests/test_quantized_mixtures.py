"""Mixtures with experts of a few bits compute what rounded floats compute, on every target.

As QMoE where the target has the kernel, as gathered integers elsewhere. Cases C029, C030, C070.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from tests.kernel_tables import uses
from tests.parity.decoder import Decoder, padded_logits
from tests.test_kernel_tables import CELLS, IDS, TABLES, needs_tables, without_kernel
from tests.test_kernel_tables import build as build_floats
from tests.test_lowered_decoders import tokens
from tests.test_mixtures import CONFIGS, STAYS, WRITTEN_LIST
from tests.test_quantized_decoders import EXACT

from mobius import ModelPackage, QuantizationConfig, build_from_module, ep_registry, optimize_model
from mobius.models import CausalLMModel
from mobius.op_support import runs_node
from mobius.roles import Role
from mobius.stage import Target
from mobius_ir_rules.block_quantization import BlockFormat, dequantize_rows, quantize_rows
from mobius_ir_rules.testing import op_counts

QMOE, MOE = "com.microsoft::QMoE", "com.microsoft::MoE"
LAYERS = 2
INT8 = QuantizationConfig(bits=8, symmetric=False, accuracy_level=0)
TARGETS = [
    ("default", "f32", None),
    ("default", "f16", None),
    ("cpu", "f32", None),
    ("webgpu", "f32", None),
    ("dml", "f32", None),
    ("onnx-standard", "f32", None),
    ("onnx-standard", "f16", None),
    ("onnx-standard", "f32", 17),
]
TOLERANCES = {"f32": 2e-5, "f16": 4e-2}
# Attention matters, and routers are sure of their choice: a near tie is decided by rounding.
SCALES = {"q_proj": 2.0, "k_proj": 2.0, "gate": 4.0}


@functools.cache
def weights(name: str) -> dict[str, ir.TensorProtocol]:
    """Return weights of the scale of trained ones: no norm of ones, no bias of zeros."""
    config = CONFIGS[name]
    random = np.random.default_rng(5)
    package = build_from_module(CausalLMModel(config), config, dtype="f32")
    made = {}
    for key, (value, *_) in package.parameters().items():
        assert value.shape is not None
        shape = [int(dim) for dim in value.shape]
        array = random.standard_normal(shape)
        if len(shape) > 1 and not key.endswith("bias"):
            array *= SCALES.get(key.split(".")[-2], 1.0) / shape[-1] ** 0.5
        else:
            array = 0.3 * array + (0.0 if key.endswith("bias") else 1.0)
        made[key] = ir.tensor(array.astype(np.float32), name=key)
    return made


def rounded(name: str, quantize: QuantizationConfig, dtype: str) -> dict[str, ir.TensorProtocol]:
    """Return float weights that are what the integers of a quantized build stand for."""
    form = BlockFormat(quantize.bits, quantize.block_size, quantize.symmetric)
    made = dict(weights(name))
    for key, tensor in made.items():
        array = tensor.numpy()
        stays = "embed_tokens" in key or "mlp.gate" in key or key.endswith("bias")
        if array.ndim > 1 and not stays:
            array = array.astype({"f32": np.float32, "f16": np.float16}[dtype])
            rows = array.reshape(-1, array.shape[-1])
            rows = dequantize_rows(quantize_rows(rows, form), form, rows.shape[1])
            made[key] = ir.tensor(rows.reshape(array.shape), name=key)
    return made


def build(
    name: str,
    ep: str,
    dtype: str,
    quantize: QuantizationConfig | str | None,
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
        weights=tensors,
    )


def logits(folder: Path) -> list[np.ndarray]:
    return padded_logits(Decoder(folder / "model.onnx"), tokens(), 2, "right", ())


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory):
    """Logits of the float graph without MoE, with rounded weights; each made once."""

    @functools.cache
    def get(name: str, quantize: QuantizationConfig, dtype: str) -> list[np.ndarray]:
        folder = tmp_path_factory.mktemp("reference")
        exact = rounded(name, quantize, dtype)
        build(name, "onnx-standard", dtype, None, tensors=exact).save(folder)
        return logits(folder)

    return get


@pytest.mark.parametrize(("ep", "dtype", "opset"), TARGETS)
@pytest.mark.parametrize("quantize", [EXACT, INT8], ids=["int4", "int8-asymmetric"])
@pytest.mark.parametrize("name", ["qwen2_moe", "deepseek_v3", "gpt_oss"])
def test_same_numbers_on_every_target(
    tmp_path: Path, reference, name: str, ep: str, dtype: str, opset, quantize: QuantizationConfig
) -> None:
    """Three routings: a part of a softmax, sigmoids in groups, and a softmax of the chosen."""
    build(name, ep, dtype, quantize, opset, weights(name)).save(tmp_path)
    counts = op_counts(ir.load(tmp_path / "model.onnx"))
    fused = ep in ("default", "cpu") and quantize.bits == 4
    assert counts[QMOE] == (LAYERS if fused else 0)
    assert counts[MOE] == 0
    for ours, theirs in zip(logits(tmp_path), reference(name, quantize, dtype), strict=True):
        assert 0.5 < np.abs(theirs).max() < 50
        assert np.abs(ours - theirs).max() < TOLERANCES[dtype]


def fuses(ep: str, dtype: ir.DataType, quantize: QuantizationConfig) -> bool:
    """Return whether the target has the kernel for the format, written down once more."""
    if ep == "cuda":
        return dtype != ir.DataType.FLOAT and quantize.block_size in (64, 128)
    rounds = quantize.bits == 8 and (quantize.accuracy_level == 0 or ep == "default")
    return ep in ("cpu", "default") and not rounds


FORMATS = {
    "int4": QuantizationConfig(symmetric=False),
    "int8": QuantizationConfig(bits=8),
    "int8-exact": INT8,
}


@pytest.mark.parametrize("quantize", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("name", ["deepseek_v3", "llama4"])
@pytest.mark.parametrize(("ep", "dtype"), CELLS, ids=IDS)
def test_fused_where_the_target_has_the_kernel_for_the_format(
    ep: str, dtype: ir.DataType, name: str, quantize: QuantizationConfig
) -> None:
    package = build(name, ep, dtype, quantize)
    model = package["model"]
    fused = fuses(ep, dtype, quantize) and name not in STAYS
    counts = op_counts(model)
    assert counts[QMOE] == (LAYERS if fused else 0)
    assert counts[MOE] == 0
    assert "mobius.moe" not in model.opset_imports
    target = Target(ep_registry[ep], dtype, Role.DECODER)
    assert [node for node in model.graph.all_nodes() if not runs_node(target, node)] == []
    for _ in uses(model):  # raises where a value has no dtype, or dtypes do not meet
        pass
    experts = {
        str(key): value.dtype
        for key, value in model.graph.initializers.items()
        if "mlp.experts." in key
    }
    integers = [key for key, dtype in experts.items() if dtype == ir.DataType.UINT8]
    assert len([key for key in integers if "zero_points" not in key]) == 2 * LAYERS
    assert not any("qweight" in key for key in experts if key not in integers)
    # Routers stay, each is reported, and nothing else does.
    (stage,) = [stage for stage in package.reports["model"].stages if stage.name == "Quantize"]
    assert len(stage.refusals) == LAYERS
    assert all("chooses experts" in refusal.reason for refusal in stage.refusals)


def test_larger_blocks_are_fused_on_cuda() -> None:
    config = CONFIGS["mixtral"]
    assert config.moe is not None
    config = dataclasses.replace(
        config, moe=dataclasses.replace(config.moe, moe_intermediate_size=64)
    )
    for block, fused in ((32, 0), (64, LAYERS)):
        package = build_from_module(
            CausalLMModel(config),
            config,
            execution_provider="cuda",
            dtype="bf16",
            quantize=QuantizationConfig(block_size=block),
        )
        assert op_counts(package["model"])[QMOE] == fused
        (stage,) = [each for each in package.reports["model"].stages if each.name == "QMoEFusion"]
        reasons = [refusal.reason for refusal in stage.refusals]
        assert len(reasons) == LAYERS - fused
        assert all(
            "would have block_size=32, which the target does not" in each for each in reasons
        )


@needs_tables
@pytest.mark.parametrize("quantize", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize(("ep", "dtype"), [cell for cell in CELLS if cell[0] in TABLES])
def test_every_node_has_a_kernel(ep: str, dtype: ir.DataType, quantize: QuantizationConfig) -> None:
    """As with floats: what may stay without one is on the written list."""
    config = CONFIGS["gpt_oss"]
    floats = {use.shown for use in without_kernel(build_floats(config, ep, dtype), ep, TABLES[ep])}
    missing = without_kernel(build("gpt_oss", ep, dtype, quantize)["model"], ep, TABLES[ep])
    written, _ = WRITTEN_LIST.get(ep, (set(), ""))
    assert [
        use.shown
        for use in missing
        if use.shown not in floats
        and (use.domain or use.op_type not in written or "int64" not in use.types.values())
    ] == []


@pytest.mark.parametrize("ep", ["cpu", "onnx-standard", "webgpu"])
def test_as_many_nodes_for_128_experts_as_for_8(ep: str) -> None:
    few = CONFIGS["mixtral"]
    assert few.moe is not None
    many = dataclasses.replace(few, moe=dataclasses.replace(few.moe, num_experts=128))
    counts = [
        op_counts(
            build_from_module(
                CausalLMModel(config), config, execution_provider=ep, dtype="f32", quantize="int4"
            )["model"]
        )
        for config in (few, many)
    ]
    assert counts[0] == counts[1]
    assert not {"Loop", "Scan", "If"} & counts[0].keys()


@pytest.mark.parametrize("ep", ["cpu", "default", "onnx-standard", "cuda"])
@pytest.mark.parametrize("quantize", ["int4", "int8"])
def test_a_second_run_finds_nothing(ep: str, quantize: str) -> None:
    dtype = "f16" if ep == "cuda" else "f32"
    model = build("deepseek_v3", ep, dtype, quantize)["model"]
    before = op_counts(model)
    report = optimize_model(model, ep, dtype)
    assert op_counts(model) == before
    assert [stage.name for stage in report.stages if stage.applications] == []


@pytest.mark.filterwarnings("ignore:GQA fusion expected:UserWarning")  # masks are inlined by now
@pytest.mark.parametrize(("ep", "stays"), [("cpu", LAYERS), ("cuda", 0), ("onnx-standard", 0)])
def test_a_graph_that_was_built_for_another_target(ep: str, stays: int) -> None:
    """CUDA's kernel has no blocks of 32: the bodies take the place of such calls."""
    model = build("gpt_oss", "default", "f16", "int4")["model"]
    assert op_counts(model)[QMOE] == LAYERS
    optimize_model(model, ep, "f16")
    counts = op_counts(model)
    assert counts[QMOE] == stays
    target = Target(ep_registry[ep], ir.DataType.FLOAT16, Role.DECODER)
    assert [node for node in model.graph.all_nodes() if not runs_node(target, node)] == []
    again = optimize_model(model, ep, "f16")
    assert [stage.name for stage in again.stages if stage.applications] == []
    assert op_counts(model) == counts


@pytest.mark.parametrize("ep", ["cpu", "onnx-standard"])
def test_the_package_is_smaller(tmp_path: Path, ep: str) -> None:
    """Experts of 4 bits are an eighth of float32 ones, and a scale for every 32 numbers."""
    sizes = {}
    for quantize in (None, "int4"):
        folder = tmp_path / str(quantize)
        build("mixtral", ep, "f32", quantize, tensors=weights("mixtral")).save(folder)
        sizes[quantize] = (folder / "model.onnx.data").stat().st_size
    config = CONFIGS["mixtral"]
    assert config.moe is not None
    numbers = 3 * config.moe.num_experts * config.hidden_size * config.moe.moe_intermediate_size
    saved = LAYERS * numbers * (4 - 1 / 2 - 4 / 32)
    assert sizes[None] - sizes["int4"] > saved


def test_saved_again_it_is_the_same_file(tmp_path: Path) -> None:
    build("gpt_oss", "cpu", "f32", INT8, tensors=weights("gpt_oss")).save(tmp_path / "once")
    ModelPackage.load(tmp_path / "once").save(tmp_path / "twice")
    for file in ("model.onnx", "model.onnx.data", "mobius.json"):
        assert (tmp_path / "once" / file).read_bytes() == (tmp_path / "twice" / file).read_bytes()


def test_what_is_left_out_is_reported() -> None:
    quantize = QuantizationConfig(block_size=64, exclude=(r"layers\.1\.mlp\.experts\.gate_up",))
    package = build("mixtral", "cpu", "f32", quantize)
    (stage,) = [stage for stage in package.reports["model"].stages if stage.name == "Quantize"]
    assert [refusal.reason for refusal in stage.refusals if "router" not in refusal.reason] == [
        "The rows of the weight of experts 'model.layers.0.mlp.experts.down_proj' have 32 numbers; "
        "a multiple of the block size, 64, is needed.",
        r"The name of the weight has a match of 'layers\.1\.mlp\.experts\.gate_up', which was left "
        "out.",
        "The rows of the weight of experts 'model.layers.1.mlp.experts.down_proj' have 32 numbers; "
        "a multiple of the block size, 64, is needed.",
    ]
    # Experts that are floats altogether are MoE's, as in a build with floats.
    counts = op_counts(package["model"])
    assert (counts[MOE], counts[QMOE]) == (1, 0)
