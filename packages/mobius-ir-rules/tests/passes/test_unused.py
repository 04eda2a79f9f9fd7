"""`RemoveUnused`: dead code in every scope, exact opset imports, outputs as they are."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx_ir as ir

from mobius_ir_rules.passes import RemoveUnused
from mobius_ir_rules.testing import op_counts

X = {"x": np.float32([1, -2])}


def test_nodes_initializers_functions_and_imports_c105(apply: Any) -> None:
    model = apply(
        RemoveUnused(),
        """<ir_version: 10, opset_import: ["": 24, "f": 1, "h": 1, "com.microsoft": 1]>
        g (float[2] x, float[2] unused) => (float[2] y) <float[2] w = {1, 2}, float[2] v = {3, 4}> {
            a = com.microsoft.Gelu(x)
            b = f.dead(a)
            c = Add(b, w)
            y = f.outer(x)
        }
        <domain: "f", opset_import: ["": 24, "f": 1, "com.microsoft": 1]> outer (u) => (v) {
            d = com.microsoft.Gelu(u) v = f.inner(u) }
        <domain: "f", opset_import: ["": 24]> inner (u) => (v) { v = Neg(u) }
        <domain: "f", opset_import: ["": 24]> dead (u) => (v) { v = Neg(u) }
        <domain: "h", opset_import: ["": 24]> unused (u) => (v) { v = Neg(u) }""",
        {**X, "unused": np.float32([0, 0])},
    )
    assert op_counts(model) == Counter({"f::outer": 1})
    assert not model.graph.initializers
    assert sorted(name for _, name, _ in model.functions) == ["inner", "outer"]
    assert model.graph.opset_imports == {"": 24, "f": 1}
    assert model.functions["f", "outer", ""].opset_imports == {"": 24, "f": 1}


def test_a_dead_if_releases_what_its_branches_read_c098(apply: Any) -> None:
    model = apply(
        RemoveUnused(),
        """<ir_version: 10, opset_import: ["": 24]>
        g (float[2] x, bool c) => (float[2] y) <float[2] w = {1, 2}> {
            a = Add(x, w)
            b = If(c) <then_branch = t () => (float[2] r) { r = Neg(a) },
                       else_branch = e () => (float[2] q) { q = Abs(a) }>
            y = Neg(x)
        }""",
        {**X, "c": np.array(True)},
    )
    assert op_counts(model) == Counter(Neg=1)
    assert not model.graph.initializers


def test_dead_code_in_subgraphs_c098(apply: Any) -> None:
    model = apply(
        RemoveUnused(),
        """<ir_version: 10, opset_import: ["": 24]>
        g (float[2] x, int64 n, bool c) => (float[2] y) <float[2] w = {1, 2}> {
            o = Neg(x)
            p = Abs(x)
            y = Loop(n, c, x) <body = b (int64 i, bool k, float[2] s) => (bool k2, float[2] s2)
                <float[2] v = {1, 2}, float[2] v2 = {1, 2}> {
                k2 = Identity(k) d = Add(p, w) d2 = Add(d, v) t = Add(s, v2) s2 = Add(t, o) }>
        }""",
        {**X, "n": np.array(2), "c": np.array(True)},
    )
    assert op_counts(model) == Counter(Neg=1, Loop=1, Identity=1, Add=2)
    (body,) = model.graph.subgraphs()
    assert list(body.initializers) == ["v2"]
    assert not model.graph.initializers


def test_attention_keeps_its_unused_outputs(apply: Any) -> None:
    """ONNX Runtime refuses an Attention with past_key and without present_key."""
    random = np.random.default_rng(0)
    inputs = {
        name: random.normal(size=(1, 2, 32)).astype(np.float32) for name in ("q", "k", "v")
    } | {name: random.normal(size=(1, 2, 3, 16)).astype(np.float32) for name in ("pk", "pv")}
    model = apply(
        RemoveUnused(),
        """<ir_version: 10, opset_import: ["": 24]>
        g (float[1,2,32] q, float[1,2,32] k, float[1,2,32] v, float[1,2,3,16] pk,
           float[1,2,3,16] pv) => (float[1,2,32] y) {
            y, a, b = Attention<q_num_heads = 2, kv_num_heads = 2>(q, k, v, , pk, pv)
        }""",
        inputs,
        modified=False,
    )
    assert [value.name for value in model.graph[0].outputs] == ["y", "a", "b"]


def test_placeholders_of_microsoft_operators_stay(apply: Any) -> None:
    model = apply(
        RemoveUnused(),
        """<ir_version: 10, opset_import: ["": 24, "com.microsoft": 1]>
        g (float[1,1,2] x, float[1,1,2] s) => (float[1,1,2] y, float[1,1,2] z)
        <float[2] w = {1, 2}> {
            y, , , z = com.microsoft.SkipSimplifiedLayerNormalization(x, s, w)
            u, , , r = com.microsoft.SkipSimplifiedLayerNormalization(y, s, w)
        }""",
        {"x": np.float32([[[1, 2]]]), "s": np.float32([[[3, 4]]])},
    )
    (node,) = model.graph
    assert [value.name for value in node.outputs] == ["y", "", "", "z"]


def test_unloaded_weights_c113(caplog: Any) -> None:
    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["": 24]> g (float[2] x) => (float[2] y) { y = Add(x, x) }'
    )
    for name in ("used", "unused"):
        model.graph.initializers.add(ir.val(name, ir.DataType.FLOAT, (2,)))
    model.graph[0].replace_input_with(1, model.graph.initializers["used"])
    assert RemoveUnused()(model).modified is True
    assert list(model.graph.initializers) == ["used"]
    assert not caplog.records
