"""`EliminateCommonSubexpressions`: what is equal in every bit is merged, and nothing else."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from mobius_ir_rules.passes import EliminateCommonSubexpressions
from mobius_ir_rules.testing import op_counts

X = {"x": np.float32([1, -2])}
HEADER = '<ir_version: 10, opset_import: ["": 24]>'


def _apply(apply: Any, body: str, modified: bool, outputs: str = "float[2] y") -> Counter[str]:
    model = apply(
        EliminateCommonSubexpressions(),
        f"{HEADER} g (float[2] x) => ({outputs}) {{ {body} }}",
        X,
        modified=modified,
    )
    return op_counts(model)


def test_chains_are_merged(apply: Any) -> None:
    counts = _apply(
        apply,
        """a = Softmax<axis = 0>(x) b = Softmax<axis = 0>(x) c = Neg(a) d = Neg(b)
        e = Softmax<axis = -1>(x) f = Mul(c, d) y = Add(f, e)""",
        modified=True,
    )
    assert counts == Counter(Softmax=2, Neg=1, Mul=1, Add=1)


@pytest.mark.parametrize(
    "node",
    [
        "RandomNormalLike(x)",
        "RandomUniformLike(x)",
        "RandomUniform<shape = [2]>()",
        "RandomNormal<shape = [2]>()",
        "Bernoulli(x)",
        "Dropout(x, ratio, training)",
    ],
)
def test_random_operators_stay_apart_c057(apply: Any, node: str) -> None:
    """C057: the stock pass merges Bernoulli and training Dropout."""
    model = apply(
        EliminateCommonSubexpressions(),
        f"""{HEADER} g (float[2] x) => (float[2] y)
        <float ratio = {{0.5}}, bool training = {{1}}> {{ a = {node} b = {node} y = Sub(a, b) }}""",
        modified=False,
    )
    assert len(model.graph) == 3


def test_multinomial_stays_apart_c057(apply: Any) -> None:
    apply(
        EliminateCommonSubexpressions(),
        f"""{HEADER} g (float[1, 2] x) => (int32[1, 1] y) {{
            a = Multinomial(x) b = Multinomial(x) y = Sub(a, b) }}""",
        modified=False,
    )


def test_inference_dropout_is_merged(apply: Any) -> None:
    counts = _apply(apply, "a = Dropout(x) b = Dropout(x) y = Sub(a, b)", modified=True)
    assert counts == Counter(Dropout=1, Sub=1)


def test_functions_that_hold_random_operators_stay_apart_c057(apply: Any) -> None:
    model = apply(
        EliminateCommonSubexpressions(),
        """<ir_version: 10, opset_import: ["": 24, "f": 1]>
        g (float[2] x) => (float[2] y) {
            a = f.outer(x) b = f.outer(x) c = f.pure(x) d = f.pure(x)
            e = Sub(a, b) h = Sub(c, d) y = Add(e, h)
        }
        <domain: "f", opset_import: ["": 24, "f": 1]> outer (u) => (v) { v = f.inner(u) }
        <domain: "f", opset_import: ["": 24]> inner (u) => (v) { v = RandomNormalLike(u) }
        <domain: "f", opset_import: ["": 24]> pure (u) => (v) {
            m = Neg(u) n = Neg(u) v = Add(m, n) }""",
    )
    assert op_counts(model)["f::outer"] == 2
    assert op_counts(model)["f::pure"] == 1
    assert [node.op_type for node in model.functions["f", "pure", ""]] == ["Neg", "Add"]


def test_unknown_domains_stay_apart(apply: Any) -> None:
    text = """<ir_version: 10, opset_import: ["": 24, "z": 1]>
        g (float[2] x) => (float[2] y) { a = z.Op(x) b = z.Op(x) y = Sub(a, b) }"""
    apply(EliminateCommonSubexpressions(), text, modified=False)
    apply(EliminateCommonSubexpressions(pure_domains=["z"]), text)


def test_attributes_are_compared_in_full_c057(apply: Any) -> None:
    """C057: equal values of two dtypes, +0 and -0, and other shapes are not the same."""
    body = """a = Constant<value = float[1] {0.0}>()
        b = Constant<value = double[1] {0.0}>()
        c = Constant<value = float[1] {-0.0}>()
        d = Constant<value = float {0.0}>()
        e = Constant<value_float = 0.0>()
        f = Constant<value_float = -0.0>()
        h = Constant<value_floats = [0.0]>()
        i = Constant<value_floats = [-0.0]>()
        y = Identity(x)"""
    assert _apply(apply, body, modified=False)["Constant"] == 8


def test_equal_constants_are_merged(apply: Any) -> None:
    counts = _apply(
        apply,
        """a = Constant<value = bfloat16[2] {1, 2}>() b = Constant<value = bfloat16[2] {1, 2}>()
        c = Cast<to = 1>(a) d = Cast<to = 1>(b) e = Cast<to = 11>(b) f = Cast<to = 1>(e)
        h = Add(c, d) i = Add(h, f) y = Add(i, x)""",
        modified=True,
    )
    assert counts == Counter(Constant=1, Cast=3, Add=3)


def test_large_constants_are_not_compared(apply: Any) -> None:
    model = ir.from_onnx_text(
        f"{HEADER} g (float[2] x) => (float[2] y) {{ a = Constant<value = float {{1}}>() "
        "b = Constant<value = float {1}>() c = Shape(a) d = Shape(b) y = Identity(x) }"
    )
    for node in list(model.graph)[:2]:
        node.attributes["value"] = ir.AttrTensor("value", ir.tensor(np.zeros(1000, np.float32)))
    apply(EliminateCommonSubexpressions(), model, X, modified=False)
    assert op_counts(model)["Constant"] == 2


def test_string_attributes_c133(apply: Any) -> None:
    """C133: CSE crashed on strings, as attributes and as tensors."""
    counts = _apply(
        apply,
        """a = Constant<value_string = "p">() b = Constant<value_string = "p">()
        c = Constant<value_string = "q">()
        d = Constant<value_strings = ["p", "q"]>() e = Constant<value_strings = ["p", "q"]>()
        f = Constant<value = string[1] {"p"}>() h = Constant<value = string[1] {"p"}>()
        i = Constant<value = string[1] {"r"}>()
        y = Identity(x)""",
        modified=True,
    )
    assert counts["Constant"] == 5


def test_ifs_stay_apart_and_branches_are_scopes_c057_c098(apply: Any) -> None:
    branch = "{ p = Neg(x) q = Neg(x) r = Add(p, q) }"
    model = apply(
        EliminateCommonSubexpressions(),
        f"""{HEADER} g (float[2] x, bool c) => (float[2] y) {{
            a = If(c) <then_branch = t1 () => (float[2] r) {branch},
                       else_branch = e1 () => (float[2] r1) {{ p1 = Abs(x) r1 = Neg(p1) }}>
            b = If(c) <then_branch = t2 () => (float[2] r2) {{ p2 = Abs(x) r2 = Neg(p2) }},
                       else_branch = e2 () => (float[2] r3) {{ p3 = Abs(x) r3 = Exp(p3) }}>
            y = Add(a, b)
        }}""",
        {**X, "c": np.array(True)},
    )
    assert op_counts(model) == Counter(If=2, Neg=3, Abs=3, Exp=1, Add=2)


def test_loop_bodies_c098(apply: Any) -> None:
    model = apply(
        EliminateCommonSubexpressions(),
        f"""{HEADER} g (float[2] x, int64 n, bool c) => (float[2] y, float[k, 2] z) {{
            o = Neg(x)
            y, z = Loop(n, c, x) <body = b (int64 i, bool k, float[2] s)
                => (bool k2, float[2] s2, float[2] u) {{
                k2 = Identity(k) m = Neg(x) m2 = Neg(x) t = Add(m, m2) s2 = Add(s, t)
                u = Add(s2, o) }}>
        }}""",
        {**X, "n": np.array(3), "c": np.array(True)},
    )
    assert op_counts(model)["Neg"] == 2


def test_graph_outputs_keep_their_names_c058(apply: Any) -> None:
    counts = _apply(
        apply,
        "a = Neg(x) b = Exp(a) c = Neg(x) y = Neg(x) z = Neg(x) d = Neg(z)",
        modified=True,
        outputs="float[2] y, float[n] z",
    )
    # Both outputs are made by nodes of their own; the others read the first.
    assert counts == Counter(Neg=3, Exp=1)


def test_several_outputs(apply: Any) -> None:
    counts = _apply(
        apply,
        """one = Constant<value_ints = [1]>()
        v1, i1 = TopK(x, one) v2, i2 = TopK(x, one) v3, i3 = TopK<largest = 0>(x, one)
        s, t = Split<num_outputs = 2>(x) u, v = Split<num_outputs = 2>(x)
        w = Sub(v1, v2) z = Sub(s, v) a = Add(w, z) y = Add(a, x)""",
        modified=True,
    )
    assert counts["TopK"] == 2
    assert counts["Split"] == 1


def test_omitted_inputs_and_outputs(apply: Any) -> None:
    """An omitted input equals an omitted input; a node with fewer outputs is another node."""
    counts = _apply(
        apply,
        """hi = Constant<value_float = 1.0>()
        a = Clip(x, , hi) b = Clip(x, , hi) c = Clip(x, hi)
        m = LayerNormalization(a, x) n, k = LayerNormalization(b, x)
        d = Add(m, n) e = Add(c, k) y = Add(d, e)""",
        modified=True,
    )
    assert counts["Clip"] == 2
    assert counts["LayerNormalization"] == 2
