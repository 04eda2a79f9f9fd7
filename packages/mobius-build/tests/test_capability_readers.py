"""Every field of `EpCapabilities` has a reader: change it, and what is built changes."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from mobius import build_from_module
from mobius.models import CausalLMModel
from mobius.optimizer import optimize_model
from mobius.package import ModelPackage
from mobius_components import ArchitectureConfig
from mobius_eps import EpCapabilities, Lack, RuntimeNames
from mobius_ir_rules.testing import op_counts

F16, F32, BF16 = ir.DataType.FLOAT16, ir.DataType.FLOAT, ir.DataType.BFLOAT16
CONFIG = ArchitectureConfig(
    vocab_size=64,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=64,
    attn_logit_softcapping=20.0,
)
CAPABLE = EpCapabilities(
    name="capable",
    gqa_dtypes={F16},
    qkv_pack_dtypes={F16},
    supports_packed_multi_head_attention=True,
)
# Changes that a decoder shows: the graph, or what is written beside it.
CHANGES: dict[str, dict[str, Any]] = {
    "name": {"name": "another"},
    "gqa_dtypes": {"gqa_dtypes": set(), "qkv_pack_dtypes": set()},
    "qkv_pack_dtypes": {"qkv_pack_dtypes": set()},
    "supports_fused_rope": {"supports_fused_rope": False},
    "supports_skip_layer_norm": {"supports_skip_layer_norm": False},
    "supports_fused_matmul": {"supports_fused_matmul": False},
    "default_int4_accuracy_level": {"default_int4_accuracy_level": 4},
    "provider_options": {"provider_options": {"key": "value"}},
    "enable_graph_capture": {"enable_graph_capture": True},
    "max_opset": {"max_opset": 21},
    "keeps_function_bodies": {"keeps_function_bodies": False},
    "lacks": {"lacks": [Lack("GroupQueryAttention", "com.microsoft", attribute="softcap")]},
    "runtime_names": {"runtime_names": RuntimeNames(genai="capable")},
}
# Changes that only a graph with the operator shows: operator, its body's operator.
OPERATORS = {
    "supports_fused_moe": "MoE",
    "supports_packed_multi_head_attention": "PackedMultiHeadAttention",
}
# Fields that decide what is refused, each tested below.
REFUSALS = {"dtypes", "allowed_domains"}
# Fields that decide what is warned about: tests/test_size_limits.py.
LIMITS = {"max_buffer_bytes", "max_tensor_elements"}


def test_every_field_is_here() -> None:
    fields = {field.name for field in dataclasses.fields(EpCapabilities)}
    assert fields == {*CHANGES, *OPERATORS, *REFUSALS, *LIMITS, "fast_loops"}


def written(capabilities: EpCapabilities, folder: Path) -> str:
    """Return the graph and the manifest of a decoder, as text."""
    package = build_from_module(
        CausalLMModel(CONFIG), CONFIG, execution_provider=capabilities, dtype=F16
    )
    package.save(folder)
    model = package["model"]
    bodies = sorted(model.functions)
    graph = json.dumps([sorted(op_counts(model).items()), dict(model.opset_imports), bodies])
    manifest = json.loads((folder / "mobius.json").read_text(encoding="utf-8"))
    return graph + json.dumps(manifest, sort_keys=True)


@pytest.mark.parametrize("field", CHANGES)
def test_a_decoder_shows_the_change(field: str, tmp_path: Path) -> None:
    changed = dataclasses.replace(CAPABLE, **CHANGES[field])
    before, after = written(CAPABLE, tmp_path / "before"), written(changed, tmp_path / "after")
    assert before != after
    assert written(changed, tmp_path / "again") == after


@pytest.mark.parametrize("field", OPERATORS)
def test_an_operator_that_is_lacking_is_expanded(field: str) -> None:
    operator = OPERATORS[field]

    def operators(flag: bool) -> set[str]:
        model = ir.from_onnx_text(f"""
            <ir_version: 10, opset_import: ["" : 24, "com.microsoft" : 1]>
            g (float16[N] x) => (float16[N] y) {{ y = com.microsoft.{operator} (x) }}
            <domain: "com.microsoft", opset_import: ["" : 24]>
            {operator} (x) => (y) {{ y = Neg (x) }}
        """)
        capabilities = dataclasses.replace(CAPABLE, **{field: flag})  # type: ignore[arg-type]
        optimize_model(model, capabilities, F16)
        return {node.op_type for node in model.graph}

    assert operators(True) == {operator}
    assert operators(False) == {"Neg"}


def test_slow_loops_are_avoided() -> None:
    def operators(fast: bool) -> set[str]:
        model = ir.from_onnx_text("""
            <ir_version: 10, opset_import: ["" : 24, "mobius.recurrence" : 1]>
            g (float[B,S,8] x, float[B,S,8] decay, float[B,8] past)
                => (float[B,S,8] y, float[B,8] present) {
                y, present = mobius.recurrence.GatedRecurrence (x, decay, past)
            }
        """)
        optimize_model(model, dataclasses.replace(CAPABLE, fast_loops=fast), F16)
        return {node.op_type for node in model.graph} & {"LinearAttention", "Loop"}

    assert operators(True) == {"Loop"}
    assert operators(False) == {"LinearAttention"}


def test_dtypes_decide_what_is_built() -> None:
    narrow = EpCapabilities(name="narrow", dtypes={F32, F16})
    for capabilities, accepted in ((CAPABLE, True), (narrow, False)):
        module, arguments = CausalLMModel(CONFIG), {"execution_provider": capabilities}
        if accepted:
            package = build_from_module(module, CONFIG, dtype=BF16, **arguments)
            assert isinstance(package, ModelPackage)
            continue
        with pytest.raises(ValueError, match="'narrow' does not run bf16; it runs f32, "):
            build_from_module(module, CONFIG, dtype=BF16, **arguments)


def test_allowed_domains_decide_what_stays() -> None:
    def model() -> ir.Model:
        return ir.from_onnx_text("""
            <ir_version: 10, opset_import: ["" : 24, "their.own" : 1]>
            g (float16[N] x) => (float16[N] y) { y = their.own.Thing (x) }
        """)

    theirs = dataclasses.replace(CAPABLE, allowed_domains={"", "com.microsoft", "their.own"})
    optimize_model(model(), theirs, F16)
    with pytest.raises(ValueError, match=r"their\.own"):
        optimize_model(model(), CAPABLE, F16)


def test_what_stays_although_it_is_lacking_is_warned_about() -> None:
    lacking = dataclasses.replace(
        CAPABLE, lacks=[Lack("TensorScatter", reason="no kernel"), Lack("Softcap", attribute="x")]
    )
    model = ir.from_onnx_text("""
        <ir_version: 10, opset_import: ["" : 24]>
        g (float16[B, H, T, D] c, float16[B, H, S, D] u) => (float16[B, H, T, D] y) {
            [scatter] y = TensorScatter (c, u)
        }
    """)
    message = (
        "1 TensorScatter nodes stay that ep='capable' lacks in FLOAT16: no kernel (first: scatter)."
    )
    with pytest.warns(UserWarning, match=rf"^{re.escape(message)}$"):
        report = optimize_model(model, lacking, F16)
    assert report.warnings == (message,)
