"""PackedMultiHeadAttentionFusion: what it fuses, what it refuses, and the numbers."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from mobius_ir_rules.functions.attach import AttachFunctions
from mobius_ir_rules.fusion.packed_multi_head_attention import packed_multi_head_attention_rules
from mobius_ir_rules.passes import EliminateCommonSubexpressions, InlineFunctions, RemoveUnused
from mobius_ir_rules.testing import (
    RuleCase,
    RuleConformance,
    op_counts,
    random_inputs,
    run_model,
)

PACKED = "com.microsoft::PackedMultiHeadAttention"
HEADS = "q_num_heads = 4, kv_num_heads = 4"


def _model(
    body: str = "",
    attributes: str = HEADS,
    shape: str = "1,N,64",
    tokens: str = "1,N,64",
    outputs: str = "float[1,N,64] y",
    lengths: str = "int32",
) -> ir.Model:
    body = body or f"[n] y = Attention <{attributes}> (q, k, v, mask)"
    model = ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["": 24, "mobius.mask": 1, "com.microsoft": 1]>
        g (float[{shape}] q, float[{shape}] k, float[{shape}] v, {lengths}[M] cu,
           float[{tokens}] x) => ({outputs}) {{
            mask = mobius.mask.BlockDiagonalMask (cu, x)
            {body}
        }}"""
    )
    for node in model.graph:
        for index, value in enumerate(node.outputs):
            if node.op_type == "Attention" and index == 0:
                value.dtype, value.shape = ir.DataType.FLOAT, ir.Shape([1, "N", 64])
    return model


CHAIN = f"""
    t = Attention <{HEADS}, scale = 0.3> (q, k, v, mask)
    y = Attention <{HEADS}, scale = 0.3> (t, k, t, mask)
"""
FOUND = "Attention (node 'n')"
CASES = [
    RuleCase("one", _model, after={PACKED: 1, "Attention": 0}, compare=False),
    RuleCase(
        "two layers, scale",
        lambda: _model(CHAIN),
        applications=2,
        after={PACKED: 2, "Attention": 0},
        compare=False,
    ),
    RuleCase(
        "a mask from elsewhere is no candidate",
        lambda: _model(f"m = Equal(x, x) [n] y = Attention <{HEADS}> (q, k, v)"),
        applications=0,
        compare=False,
    ),
    RuleCase(
        "grouped heads",
        lambda: _model(attributes="q_num_heads = 4, kv_num_heads = 2"),
        applications=0,
        reasons=(f"{FOUND} has q_num_heads 4 and kv_num_heads 2; the same number is needed.",),
        compare=False,
    ),
    RuleCase(
        "causal, capped",
        lambda: _model(attributes=HEADS + ", is_causal = 1, softcap = 2.0"),
        applications=0,
        reasons=(
            f"{FOUND} has is_causal 1, softcap 2 and softmax_precision 0; 0, 0, and 0 or 1, are "
            "needed.",
        ),
        compare=False,
    ),
    RuleCase(
        "a batch",
        lambda: _model(shape="B,N,64"),
        applications=0,
        reasons=(
            f"The query of {FOUND}, the graph input 'q', has the shape [B,N,64]; "
            "[1, tokens, hidden] is needed.",
        ),
        compare=False,
    ),
    RuleCase(
        "a mask of other tokens",
        lambda: _model(tokens="1,P,64"),
        applications=0,
        reasons=(
            f"The query of {FOUND} has N tokens and its mask is of P; the same number, other than "
            "1, is needed.",
        ),
        compare=False,
    ),
    RuleCase(
        "a mask of one token",
        lambda: _model(tokens="1,1,64"),
        applications=0,
        reasons=(
            f"The query of {FOUND} has N tokens and its mask is of 1; the same number, other than "
            "1, is needed.",
        ),
        compare=False,
    ),
    RuleCase(
        "a cache",
        lambda: _model(
            f"[n] y, pk, pv = Attention <{HEADS}> (q, k, v, mask)",
            outputs="float[1,N,64] y, float[1,4,N,16] pk",
        ),
        applications=0,
        reasons=(
            f"The output present_key of {FOUND} is used; it must not be, because "
            "PackedMultiHeadAttention has none.",
        ),
        compare=False,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_conformance(case: RuleCase) -> None:
    """ONNX Runtime's CPU provider has no kernel of the operator: numbers are compared below."""
    RuleConformance(packed_multi_head_attention_rules).check(case)


def _expanded(model: ir.Model) -> ir.Model:
    assert not AttachFunctions(overloads=True)(model).refusals
    InlineFunctions()(model)
    return model


@pytest.mark.parametrize("lengths", ["int32", "int64"])
@pytest.mark.parametrize("bounds", [(0, 1, 3), (0, 5), (0, 4, 4, 6, 9)])
def test_numbers(lengths: str, bounds: tuple[int, ...]) -> None:
    """C066: through the bodies of mask and operator, the same numbers before and after."""
    inputs = random_inputs(
        _model(CHAIN, lengths=lengths), {"N": bounds[-1]}, {"cu": np.array(bounds, lengths)}
    )
    before = run_model(_expanded(_model(CHAIN, lengths=lengths)), inputs)["y"]
    model = _model(CHAIN, lengths=lengths)
    assert RuleConformance(packed_multi_head_attention_rules).apply(model) == 2
    after = run_model(_expanded(model), inputs)["y"]
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ((0, 1, 3), [[0, 2], [3, 1]]),
        ((0, 3), [[0, 1, 2]]),
        ((0, 2, 2, 5), [[0, 1, 6], [7, 8, 2], [3, 4, 5]]),
    ],
)
def test_token_offset(bounds: tuple[int, ...], expected: list[list[int]]) -> None:
    """C066: `[sequences, longest]`, tokens first and padding after them; one for all layers."""
    model = _model(CHAIN)
    RuleConformance(packed_multi_head_attention_rules).apply(model)
    EliminateCommonSubexpressions()(model)
    RemoveUnused()(model)
    assert op_counts(model)["Compress"] == 2
    calls = [node for node in model.graph if node.op_type == "PackedMultiHeadAttention"]
    assert calls[0].inputs[4] is calls[1].inputs[4]
    offset = calls[0].inputs[4]
    assert offset is not None
    model.graph.outputs[:] = [offset]
    RemoveUnused()(model)
    inputs = random_inputs(model, {"N": bounds[-1]}, {"cu": np.array(bounds, np.int32)})
    (found,) = run_model(model, inputs).values()
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, expected)
