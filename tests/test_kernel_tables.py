"""Every node of every build has a kernel on the execution provider that it is built for.

A node without one falls back to the CPU, with copies around it: right numbers, wrong speed, and no
test that runs on a CPU sees it. Cases C017, C033, C037, C046, C078, C127, C135.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import warnings

import onnx_ir as ir
import pytest
from tests.kernel_tables import FOLDER, MICROSOFT, KernelTable, Use, tables, uses

from mobius import ArchitectureConfig, build_from_module, ep_registry
from mobius.dtypes import short_name
from mobius.models import CausalLMModel
from mobius.op_support import runs_node
from mobius.roles import Role
from mobius.stage import Target
from mobius_components import (
    GatedDeltaConfig,
    Mamba2Config,
    MambaConfig,
    RgLruConfig,
    ShortConvConfig,
)
from mobius_components.layers import layer_states
from mobius_ir_rules.passes import InlineFunctions

TABLES = tables()
needs_tables = pytest.mark.skipif(not TABLES, reason=f"no kernel tables in {FOLDER}")

PLAIN = ArchitectureConfig(
    vocab_size=64,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=64,
)
CONFIGS = {
    "llama": PLAIN,
    "qwen2": dataclasses.replace(PLAIN, attention_bias=True, tie_word_embeddings=True),
    "qwen3": dataclasses.replace(PLAIN, qk_norm="head"),
    "gemma": dataclasses.replace(
        PLAIN,
        attn_logit_softcapping=20.0,
        final_logit_softcapping=10.0,
        sliding_window=4,
        layer_types=("sliding_attention", "full_attention"),
        hidden_act="gelu_pytorch_tanh",
    ),
    "gpt": dataclasses.replace(
        PLAIN,
        norm_type="layer",
        mlp_gated=False,
        hidden_act="gelu",
        mlp_bias=True,
        attention_bias=True,
        attention_output_bias=True,
        tie_word_embeddings=True,
    ),
    "partial": dataclasses.replace(PLAIN, head_dim=32, partial_rotary_factor=0.5),
    "short_conv": dataclasses.replace(
        PLAIN,
        layer_types=("short_conv", "full_attention"),
        short_conv=ShortConvConfig(taps=3),
    ),
    "gated_delta": dataclasses.replace(
        PLAIN,
        layer_types=("gated_delta", "full_attention"),
        attention_gate=True,
        qk_norm="head",
        gated_delta=GatedDeltaConfig(
            key_heads=2, value_heads=4, key_size=16, value_size=16, conv_taps=4
        ),
    ),
    "mamba": dataclasses.replace(
        PLAIN,
        layer_types=("mamba", "full_attention"),
        rope_theta=None,
        mamba=MambaConfig(channels=128, state_size=16, time_step_rank=4, conv_taps=4),
    ),
    "mamba2": dataclasses.replace(
        PLAIN,
        layer_types=("mamba2", "attention_beside_mamba2"),
        mamba2=Mamba2Config(heads=8, head_size=16, groups=2, state_size=16, conv_taps=4),
    ),
    "rg_lru": dataclasses.replace(
        PLAIN,
        layer_types=("rg_lru", "full_attention"),
        rg_lru=RgLruConfig(width=64, blocks=4, conv_taps=4),
    ),
    "lightning": dataclasses.replace(PLAIN, layer_types=("lightning_attention", "full_attention")),
}
EPS = (
    "default",
    "cpu",
    "cuda",
    "dml",
    "webgpu",
    "mlx",
    "trt-rtx",
    "onnx-standard",
)
CELLS = [(ep, dtype) for ep in EPS for dtype in sorted(ep_registry[ep].dtypes)]
IDS = [f"{ep}-{short_name(dtype)}" for ep, dtype in CELLS]

INT64_ON_CPU = (
    "WebGPU has no 64-bit integers, and token counts, positions and masks are int64: these few "
    "nodes run on the CPU, once a step and not once a layer."
)
WRITTEN_LIST: dict[str, dict[str, str]] = {
    "webgpu": dict.fromkeys(
        (
            *("Add", "Cast", "Concat", "CumSum", "Equal", "Expand", "Gather", "GreaterOrEqual"),
            *("Less", "Mul", "Neg", "Range", "ReduceSum", "Reshape", "ScatterElements", "Shape"),
            *("Slice", "Squeeze", "Sub", "Unsqueeze", "Where"),
        ),
        INT64_ON_CPU,
    ),
    "dml": {
        "Loop": "DirectML has no loops: a recurrence over tokens is driven from the CPU.",
        "ScatterElements": "DirectML's is older than opset 18: one node, once a step, on int64.",
    },
}
"""Operators that may stay without a kernel where they work on int64, with the reason."""
NO_LOOP = "[0-9]+ Loop nodes stay that ep='dml' lacks"


@functools.cache
def build(config: ArchitectureConfig, ep: str, dtype: ir.DataType, **more: object) -> ir.Model:
    """Return the decoder without weights, not to be changed; an unexpected warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", NO_LOOP)
        package = build_from_module(
            CausalLMModel(config), config, execution_provider=ep, dtype=dtype, **more
        )
    return package["model"]


def expanded(model: ir.Model) -> ir.Model:
    """Return a copy in which the functions are inlined that ONNX Runtime has no schema for."""
    known = [table for name, table in TABLES.items() if name != "mlx"]
    copy = model.clone()
    InlineFunctions(
        lambda function: not any(table.knows(function.domain, function.name) for table in known)
    )(copy)
    return copy


def without_kernel(model: ir.Model, ep: str, table: KernelTable) -> list[Use]:
    """Return the uses of operators that the table has no kernel for."""
    found = []
    for use in uses(expanded(model)):
        if use.op_type == "Constant" and use.domain == "":
            continue  # becomes an initializer when the model is loaded
        # In float16 ONNX Runtime's CPU provider puts casts around what has a float32 kernel only.
        as_float32 = use.retyped("float16", "float")
        if not table.runs(use) and not (ep == "cpu" and table.runs(as_float32)):
            found.append(use)
    return found


def unexpected(model: ir.Model, ep: str) -> list[str]:
    """Return what has no kernel and is not on the written list."""
    written = WRITTEN_LIST.get(ep, {})
    return [
        use.shown
        for use in without_kernel(model, ep, TABLES[ep])
        if use.domain or use.op_type not in written or "int64" not in use.types.values()
    ]


@needs_tables
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(
    ("ep", "dtype"),
    [cell for cell in CELLS if cell[0] in ("cpu", "cuda", "dml", "webgpu", "mlx")],
)
def test_every_node_has_a_kernel(ep: str, dtype: ir.DataType, name: str) -> None:
    assert unexpected(build(CONFIGS[name], ep, dtype), ep) == []


@needs_tables
@pytest.mark.parametrize("name", ["qwen2", "gemma", "gated_delta"])
@pytest.mark.parametrize(
    ("ep", "dtype"), [cell for cell in CELLS if cell[0] in ("cpu", "cuda", "dml", "webgpu")]
)
def test_choosing_the_last_token_has_kernels(ep: str, dtype: ir.DataType, name: str) -> None:
    model = build(CONFIGS[name], ep, dtype, last_token_logits=None)
    assert str(model.graph.outputs[0].shape[1]) == "1"
    # INT64_ON_CPU: the index of a row's last token.
    assert unexpected(model, ep) == (["ReduceMax-20(T=int64)"] if ep == "webgpu" else [])


@needs_tables
@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_on_the_written_list_does_not_grow_with_the_layers(name: str) -> None:
    config = CONFIGS[name]
    more = dataclasses.replace(
        config, num_hidden_layers=6, layer_types=tuple(config.layer_types or ()) * 3
    )
    few, many = (
        without_kernel(build(each, "webgpu", ir.DataType.FLOAT), "webgpu", TABLES["webgpu"])
        for each in (config, more)
    )
    assert 0 < len(few) == len(many)


@needs_tables
def test_every_entry_of_the_written_list_is_needed() -> None:
    for ep, written in WRITTEN_LIST.items():
        met = {
            use.op_type
            for config in CONFIGS.values()
            for use in without_kernel(build(config, ep, ir.DataType.FLOAT), ep, TABLES[ep])
        }
        assert met == set(written)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("ep", "dtype"), CELLS, ids=IDS)
def test_the_target_runs_every_node_as_far_as_it_says(
    ep: str, dtype: ir.DataType, name: str
) -> None:
    # C135: trt-rtx has no table, and takes no Attention with a cache.
    model = build(CONFIGS[name], ep, dtype)
    target = Target(ep_registry[ep], dtype, Role.DECODER)
    lacking = {node.op_type for node in model.graph.all_nodes() if not runs_node(target, node)}
    assert lacking <= ({"Loop"} if ep == "dml" else set())
    assert model.opset_imports[""] == target.max_opset


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("ep", "dtype"), CELLS, ids=IDS)
def test_types_agree_and_caches_come_in_pairs(ep: str, dtype: ir.DataType, name: str) -> None:
    # C017, C046: `uses` raises for a value without a dtype, and where dtypes meet.
    model = build(CONFIGS[name], ep, dtype)
    for _ in uses(model):
        pass
    floats = {
        value.dtype
        for node in model.graph.all_nodes()
        for value in node.outputs
        if value.dtype is not None and value.dtype.is_floating_point()
    }
    assert floats <= {dtype, ir.DataType.FLOAT}
    # C037: a cache goes in and both parts of it come out, under their names.
    outputs = {str(value.name) for value in model.graph.outputs}
    past = [str(value.name) for value in model.graph.inputs if "past_key_values" in value.name]
    config = CONFIGS[name]
    layers = range(config.num_hidden_layers)
    assert len(past) == sum(len(layer_states(config, layer)) for layer in layers)
    assert {each.replace("past_key_values", "present") for each in past} == outputs - {"logits"}
    for node in model.graph.all_nodes():
        if (
            node.op_type in ("Attention", "GroupQueryAttention")
            and node.inputs[3 + (node.op_type == "Attention")]
        ):
            assert [value.is_graph_output() for value in node.outputs[1:3]] == [True, True]


@pytest.mark.parametrize("name", ["gemma", "gpt", "qwen3"])
@pytest.mark.parametrize("opset", [17, 18, 20, 21, 22, 23])
def test_onnx_standard_in_an_older_opset(opset: int, name: str) -> None:
    # C078: nothing newer is left anywhere, and the types agree in that opset.
    model = build(CONFIGS[name], "onnx-standard", ir.DataType.FLOAT16, opset=opset)
    assert dict(model.opset_imports) == {"": opset}
    found = collections.Counter(use.op_type for use in uses(model))
    lacking = {"Attention": 23, "RMSNormalization": 23, "RotaryEmbedding": 23, "Gelu": 20}
    for op_type, since in lacking.items():
        assert opset >= since or found[op_type] == 0


@needs_tables
def test_the_reader_of_tables_sees_what_is_missing() -> None:
    # What this file proves is worth as much as what it would notice.
    dml, cuda, mlx = TABLES["dml"], TABLES["cuda"], TABLES["mlx"]

    def use(op_type: str, since: int, domain: str = "", **types: str) -> Use:
        return Use("node", domain, op_type, since, types)

    assert dml.runs(use("Cast", 21, T1="int64", T2="bool"))
    # Open-ended entries are for exactly their version.
    assert not dml.runs(use("Cast", 23, T1="int64", T2="bool"))
    assert not dml.runs(use("RMSNormalization", 23, T="float"))
    assert cuda.runs(use("GroupQueryAttention", 1, MICROSOFT, T="float16", M="int32"))
    assert not cuda.runs(use("GroupQueryAttention", 1, MICROSOFT, T="float", M="int32"))
    assert mlx.runs(use("Cast", 23, T1="int64", T2="bool"))
    assert not mlx.runs(use("FusedMatMul", 1, MICROSOFT, T="float"))
    assert mlx.runs(use("ReduceSum", 13, T="int64"))


@needs_tables
def test_softcap_would_be_noticed() -> None:
    # C127, C033: a kernel is there, and its numbers are wrong; only the list of lacks knows.
    model = build(CONFIGS["gemma"], "webgpu", ir.DataType.FLOAT)
    counts = collections.Counter(node.op_type for node in model.graph.all_nodes())
    assert counts["GroupQueryAttention"] == counts["Attention"] == 0
    assert counts["Softmax"] == CONFIGS["gemma"].num_hidden_layers


@needs_tables
def test_why_dml_ends_at_opset_21() -> None:
    # The definitions that Cast and Cos have in each opset, and whether DirectML has the kernel.
    definitions = {21: (21, 7), 22: (21, 22), 23: (23, 22), 24: (24, 22)}
    has = {
        opset: (
            TABLES["dml"].runs(Use("node", "", "Cast", cast, {"T1": "float", "T2": "float16"})),
            TABLES["dml"].runs(Use("node", "", "Cos", cos, {"T": "float"})),
        )
        for opset, (cast, cos) in definitions.items()
    }
    assert has == {
        21: (True, True),
        22: (True, False),
        23: (False, False),
        24: (False, False),
    }
    assert ep_registry["dml"].max_opset == 21
