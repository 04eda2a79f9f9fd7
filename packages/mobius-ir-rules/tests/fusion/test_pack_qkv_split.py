"""PackQKVSplit: projections with norms behind them become one; C041, C042."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common_passes
import pytest

from mobius_ir_rules.fusion.pack_qkv_split import pack_qkv_split_rules
from mobius_ir_rules.passes import FoldWeights
from mobius_ir_rules.testing import RuleCase, RuleConformance, op_counts

HIDDEN, HEADS, KV_HEADS, SIZE = 32, 4, 2, 16
WIDTHS = {"q": HEADS * SIZE, "k": KV_HEADS * SIZE, "v": KV_HEADS * SIZE}


def _model(
    product: str = "MatMul (x, w{0})",
    stored: str = "plain",
    query: str = "norm",
    changes: dict[str, str] | None = None,
    extra: str = "",
    outputs: str = "",
    bias: bool = False,
) -> ir.Model:
    """Return one attention. `stored`: weights `[in, out]`, or `[out, in]` and transposed."""
    changes = changes or {}
    body, inputs = [], ["float[B,S,32] x", f"float[{SIZE}] g"]
    for role, width in WIDTHS.items():
        rows, columns = (HIDDEN, width) if stored == "plain" else (width, HIDDEN)
        inputs.append(f"float[{rows},{columns}] {'w' if stored != 'turned' else 's'}{role}")
        if stored == "turned":
            body.append(f"w{role} = Transpose <perm = [1, 0]> (s{role})")
        made = changes.get(role, product).format(role)
        if bias:
            inputs.append(f"float[{width}] b{role}")
            body.append(f"[p{role}] m{role} = {made}  {role}0 = Add (m{role}, b{role})")
        else:
            body.append(f"[p{role}] {role}0 = {made}")
    for role in "qk":
        if query == "norm":
            body.append(
                f"""{role}s = Reshape ({role}0, split)
                {role}n = RMSNormalization <axis = -1, epsilon = 1e-5> ({role}s, g)
                {role} = Reshape ({role}n, joined)"""
            )
        else:
            body.append(f"{role} = Identity ({role}0)")
    text = f"""<ir_version: 10, opset_import: ["": 24, "com.microsoft": 1]>
        g ({", ".join(inputs)}) => (float[B,S,64] y{outputs}) {{
            split = Constant <value_ints = [0, 0, -1, {SIZE}]> ()
            joined = Constant <value_ints = [0, 0, -1]> ()
            {" ".join(body)}
            {extra}
            [a] y = Attention <q_num_heads = {HEADS}, kv_num_heads = {KV_HEADS}> (q, k, v0)
        }}"""
    model = ir.from_onnx_text(text)
    random = np.random.default_rng(1)
    for value in list(model.graph.inputs[1:]):
        assert value.shape is not None
        array = random.standard_normal(value.shape.numpy()).astype(np.float32) / 6.0
        model.graph.inputs.remove(value)
        value.const_value = ir.tensor(array, name=value.name)
        model.graph.register_initializer(value)
    return common_passes.ShapeInferencePass()(model).model


FUSED = "com.microsoft.FusedMatMul <transB = 1> (x, w{0})"
CASES = [
    RuleCase(
        "weights as they are",
        _model,
        after={"MatMul": 1, "Split": 1, "Concat": 1, "RMSNormalization": 2},
        dims={"B": 2, "S": 3},
    ),
    RuleCase(
        "weights transposed by a node",
        lambda: _model(stored="turned"),
        after={"MatMul": 1, "Split": 1, "Transpose": 3},
        dims={"B": 2, "S": 3},
    ),
    RuleCase(
        "biases stay behind the split",
        lambda: _model(bias=True),
        after={"MatMul": 1, "Split": 1, "Add": 3},
        dims={"B": 2, "S": 3},
    ),
    RuleCase(
        "FusedMatMul",
        lambda: _model(FUSED, stored="rows"),
        after={"com.microsoft::FusedMatMul": 1, "Split": 1},
        dims={"B": 2, "S": 3},
    ),
    RuleCase(
        "an unknown operator between",
        lambda: _model(query="other"),
        applications=0,
        dims={"B": 2, "S": 3},
    ),
    RuleCase(
        "another value",
        lambda: _model(changes={"q": "MatMul (x, w{0})  z = Neg (x)", "k": "MatMul (z, w{0})"}),
        applications=0,
        reasons=(
            "The key projection of Attention (node 'a'), MatMul (node 'pk'), multiplies a value "
            "that is produced by Neg (node 'z'); the operator and the value of MatMul (node 'pq') "
            "are needed.",
        ),
        dims={"B": 2, "S": 3},
    ),
    RuleCase(
        "a weight that is read elsewhere",
        lambda: _model(extra="t = Neg (wk)", outputs=", float[32,32] t"),
        applications=0,
        reasons=(
            "The key projection, MatMul (node 'pk'), shares its weight, the initializer 'wk', with "
            "another reader; a weight of its own is needed, because packing would store the "
            "shared one twice.",
        ),
        dims={"B": 2, "S": 3},
    ),
    RuleCase(
        "alpha",
        lambda: _model(
            FUSED,
            stored="rows",
            changes={"v": "com.microsoft.FusedMatMul <transB = 1, alpha = 0.5> (x, w{0})"},
        ),
        applications=0,
        reasons=(
            "The value projection, com.microsoft::FusedMatMul (node 'pv'), has alpha 0.5 and the "
            "attributes {'transA': 0, 'transB': 1, 'transBatchA': 0, 'transBatchB': 0}; transB "
            "alone, and alpha 1, is needed.",
        ),
        dims={"B": 2, "S": 3},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_conformance(case: RuleCase) -> None:
    """In a function body weights are inputs, and the projections stay."""
    RuleConformance(pack_qkv_split_rules).check(case)


def test_weights_fold_into_one() -> None:
    """Nothing but the packed weight is stored."""
    model = _model(stored="turned")
    RuleConformance(pack_qkv_split_rules).apply(model)
    FoldWeights()(model)
    counts = op_counts(model)
    assert (counts["Concat"], counts["Transpose"], counts["MatMul"]) == (0, 0, 1)
    shapes = [list(value.shape or ()) for value in model.graph.initializers.values()]
    assert [HIDDEN, sum(WIDTHS.values())] in shapes
    assert len(shapes) == 2  # the packed weight and that of the norm
