"""`EliminateIdentity`: nodes go, names of the interface stay."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx_ir as ir

from mobius_ir_rules.passes import EliminateIdentity
from mobius_ir_rules.testing import op_counts

X = {"x": np.float32([1, -2])}


def test_inner_identities_go(apply: Any) -> None:
    model = apply(
        EliminateIdentity(),
        """<ir_version: 10, opset_import: ["": 24]>
        g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> {
            a = Identity(x)
            b = Identity(a)
            c = Identity(w)
            d = Add(b, c)
            y = Identity(d)
        }""",
        X,
    )
    assert op_counts(model) == Counter(Add=1)


def test_two_outputs_of_one_value_c058(apply: Any) -> None:
    """C058: the stock pass turns the outputs into [logits, logits]."""
    model = apply(
        EliminateIdentity(),
        """<ir_version: 10, opset_import: ["": 24]>
        g (float[2] x) => (float[2] logits, float[n] key) {
            a = Abs(x)
            logits = Identity(a)
            key = Identity(a)
            b = Neg(a)
        }""",
        X,
    )
    assert [value.name for value in model.graph.outputs] == ["logits", "key"]
    assert op_counts(model) == Counter(Abs=1, Identity=1, Neg=1)


def test_output_that_is_an_input_or_initializer_c058(apply: Any) -> None:
    model = apply(
        EliminateIdentity(),
        """<ir_version: 10, opset_import: ["": 24]>
        g (float[2] x) => (float[2] y, float[2] z) <float[2] w = {1, 2}> {
            y = Identity(x)
            z = Identity(w)
        }""",
        X,
        modified=False,
    )
    assert op_counts(model) == Counter(Identity=2)


def test_subgraphs_and_functions_c098(apply: Any) -> None:
    model = apply(
        EliminateIdentity(),
        """<ir_version: 10, opset_import: ["": 24, "f": 1]>
        g (float[2] x, bool c) => (float[2] y) {
            a = Abs(x)
            b = f.twice(a)
            y = If(c) <
                then_branch = t () => (float[2] r) { i = Identity(b) r = Identity(a) s = Neg(i) },
                else_branch = e () => (float[2] q) { j = Neg(a) k = Identity(j) q = Identity(k) }
            >
        }
        <domain: "f", opset_import: ["": 24]>
        twice (v) => (w) { k = Identity(v) l = Add(k, k) w = Identity(l) }""",
        {**X, "c": np.array(False)},
    )
    # The output of a branch is made there: Identity of an outer value stays.
    assert op_counts(model) == Counter({"Abs": 1, "f::twice": 1, "If": 1, "Identity": 1, "Neg": 2})
    assert [node.op_type for node in model.functions["f", "twice", ""]] == ["Add"]


def test_types_move_to_the_value_that_stays(apply: Any) -> None:
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["": 24]>
        g (float[2] x) => (float[2] y) { a = Abs(x) b = Identity(a) y = Neg(b) }"""
    )
    identity = model.graph[1]
    identity.outputs[0].dtype, identity.outputs[0].shape = ir.DataType.FLOAT, ir.Shape([2])
    apply(EliminateIdentity(), model, X)
    value = model.graph[0].outputs[0]
    assert (value.dtype, value.shape) == (ir.DataType.FLOAT, [2])
