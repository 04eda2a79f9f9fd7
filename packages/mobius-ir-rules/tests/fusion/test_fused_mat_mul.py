"""FusedMatMul: which transposes and scales it takes in, and which it leaves."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common_passes
import onnxscript.rewriter
import pytest

from mobius_ir_rules.functions.attach import AttachFunctions
from mobius_ir_rules.functions.fused_mat_mul import fused_mat_mul
from mobius_ir_rules.fusion.fused_mat_mul import fused_matmul_rules
from mobius_ir_rules.testing import RuleCase, RuleConformance, op_counts

FUSED = "com.microsoft::FusedMatMul"
ONE = {FUSED: 1}
DIMS = {"B": 2, "M": 3, "N": 4, "K": 5}
TRANSPOSE = "[t] t = Transpose <perm = [0, 2, 1]>"
LAST_TWO = "an exchange of the last two axes, and no other, is needed."


def graph(
    body: str,
    a: str = "float[B,M,K]",
    b: str = "float[B,K,N]",
    y: str = "float[B,M,N]",
    outputs: str = "",
    scale: str = "float c = {0.125}",
) -> Callable[[], ir.Model]:
    """Return a builder of `body`, which makes y of a and b; c is a constant."""

    def build() -> ir.Model:
        model = ir.from_onnx_text(
            f"""<ir_version: 10, opset_import: ["": 24, "com.microsoft": 1]>
            g ({a} a, {b} b) => ({y} y{outputs}) <{scale}> {{ {body} }}"""
        )
        common_passes.ShapeInferencePass()(model)
        return model

    return build


def refused(name: str, build: Callable[[], ir.Model], *reasons: str, run: bool = True) -> RuleCase:
    """Return a case that must stay as it is."""
    return RuleCase(name, build, applications=0, reasons=reasons, dims=DIMS, compare=run)


BY_B = f"{TRANSPOSE}(b)  [m] y = MatMul(a, t)"
CASES = [
    RuleCase("right", graph(BY_B, b="float[B,N,K]"), dims=DIMS, after=ONE, complete=True),
    RuleCase(
        "left",
        graph(f"{TRANSPOSE}(a)  y = MatMul(t, b)", a="float[B,K,M]"),
        dims=DIMS,
        after=ONE,
        complete=True,
    ),
    RuleCase(
        "both",
        graph(
            "t = Transpose <perm = [0, 2, 1]> (a)  u = Transpose <perm = [0, 2, 1]> (b)  "
            "y = MatMul(t, u)",
            a="float[B,K,M]",
            b="float[B,N,K]",
        ),
        dims=DIMS,
        after=ONE,
        complete=True,
    ),
    RuleCase(
        "rank 2, no perm",
        graph("t = Transpose(b)  y = MatMul(a, t)", b="float[N,K]"),
        dims=DIMS,
        after=ONE,
        complete=True,
    ),
    RuleCase(
        "rank 4",
        graph(
            "t = Transpose <perm = [0, 1, 3, 2]> (b)  y = MatMul(a, t)",
            a="float[B,2,M,K]",
            b="float[B,2,N,K]",
            y="float[B,2,M,N]",
        ),
        dims=DIMS,
        after=ONE,
        complete=True,
    ),
    RuleCase(
        "vector on the left",
        graph(BY_B, a="float[K]", b="float[B,N,K]", y="float[B,N]"),
        dims=DIMS,
        after=ONE,
        complete=True,
    ),
    # C094: one Transpose, two products.
    RuleCase(
        "two products",
        graph(
            f"{TRANSPOSE}(b)  y = MatMul(a, t)  n = Neg(a)  z = MatMul(n, t)",
            b="float[B,N,K]",
            outputs=", float[B,M,N] z",
        ),
        applications=2,
        dims=DIMS,
        after={FUSED: 2, "Neg": 1},
        complete=True,
    ),
    RuleCase(
        "one value on both sides",
        graph(f"{TRANSPOSE}(b)  y = MatMul(t, t)", b="float[B,4,4]", y="float[B,4,4]"),
        dims=DIMS,
        after=ONE,
        complete=True,
    ),
    RuleCase(
        "transpose leaves the graph",
        graph(BY_B, b="float[B,N,K]", outputs=", float[B,K,N] t"),
        dims=DIMS,
        after={**ONE, "Transpose": 1},
        complete=True,
    ),
    RuleCase(
        "transpose of a FusedMatMul's operand",
        graph(
            f"{TRANSPOSE}(b)  y = com.microsoft.FusedMatMul <transB = 1, alpha = 0.5> (a, t)",
        ),
        dims=DIMS,
        after=ONE,
        complete=True,
    ),
    RuleCase(
        "scale", graph("p = MatMul(a, b)  y = Mul(p, c)"), dims=DIMS, after=ONE, complete=True
    ),
    RuleCase(
        "scale first", graph("p = MatMul(a, b)  y = Mul(c, p)"), dims=DIMS, after=ONE, complete=True
    ),
    RuleCase(
        "divided", graph("p = MatMul(a, b)  y = Div(p, c)"), dims=DIMS, after=ONE, complete=True
    ),
    RuleCase(
        "scale of rank 1",
        graph("p = MatMul(a, b)  y = Mul(p, c)", scale="float[1] c = {0.125}"),
        dims=DIMS,
        after=ONE,
        complete=True,
    ),
    RuleCase(
        "transposed and scaled twice",
        graph(f"{TRANSPOSE}(b)  p = MatMul(a, t)  q = Mul(p, c)  y = Div(q, c)", b="float[B,N,K]"),
        applications=3,
        dims=DIMS,
        after=ONE,
        complete=True,
    ),
    RuleCase(
        "moved batch keeps",
        graph(
            "p = com.microsoft.FusedMatMul <transBatchA = 1> (a, b)  y = Mul(p, c)",
            a="float[M,B,K]",
        ),
        dims=DIMS,
        after=ONE,
        complete=True,
    ),
    RuleCase(
        "float16",
        graph(
            BY_B,
            a="float16[B,M,K]",
            b="float16[B,N,K]",
            y="float16[B,M,N]",
        ),
        compare=False,  # the CPU provider has the kernel in float32 and double only
        after=ONE,
        complete=True,
    ),
    RuleCase(
        "double",
        graph(
            f"{TRANSPOSE}(b)  p = MatMul(a, t)  y = Mul(p, c)",
            a="double[B,M,K]",
            b="double[B,N,K]",
            y="double[B,M,N]",
            scale="double c = {0.125}",
        ),
        applications=2,
        dims=DIMS,
        after=ONE,
        complete=True,
    ),
    refused("plain product", graph("y = MatMul(a, b)")),
    refused(
        "scale by a variable",
        graph("p = MatMul(a, b)  s = ReduceMax <keepdims = 0> (a)  y = Mul(p, s)"),
    ),
    refused(
        "scale by a vector",
        graph(
            "p = MatMul(a, b)  y = Mul(p, c)",
            scale="float[4] c = {1, 2, 3, 4}",
            b="float[B,K,4]",
            y="float[B,M,4]",
        ),
    ),
    refused("scale over the product", graph("p = MatMul(a, b)  y = Div(c, p)")),
    refused(
        "batch exchanged",
        graph("[t] t = Transpose <perm = [1, 0, 2]> (b)  y = MatMul(a, t)", b="float[K,B,N]"),
        f"Transpose (node 't') has perm=[1, 0, 2]; {LAST_TWO}",
    ),
    refused(
        "reversed",
        graph("[t] t = Transpose(b)  y = MatMul(a, t)", b="float[N,K,B]"),
        f"Transpose (node 't') has perm=[2, 1, 0]; {LAST_TWO}",
    ),
    refused(
        "unknown rank",
        graph("[t] t = Transpose(b)  y = MatMul(a, t)", b="float[]", y="float[]"),
        f"Transpose (node 't') has no 'perm' and an input of unknown rank; {LAST_TWO}",
        run=False,
    ),
    refused(
        "integers",
        graph(
            f"{TRANSPOSE}(b)  [m] y = MatMul(a, t)",
            a="int32[B,M,K]",
            b="int32[B,N,K]",
            y="int32[B,M,N]",
        ),
        "The result of MatMul (node 'm') has the type INT32; FLOAT, FLOAT16, BFLOAT16 or DOUBLE "
        "is needed.",
        run=False,
    ),
    refused(
        "unscaled product is used",
        graph("[m] p = MatMul(a, b)  [s] y = Mul(p, c)", outputs=", float[B,M,N] p"),
        "The result of MatMul (node 'm') is used elsewhere; Mul (node 's') must be its only use.",
    ),
    refused(
        "scale of rank 4",
        graph(
            "[m] p = MatMul(a, b)  [s] y = Mul(p, c)",
            y="float[1,B,M,N]",
            scale="float[1,1,1,1] c = {0.125}",
        ),
        "The scale of Mul (node 's') has rank 4; one of rank 0 is needed, or of at most the rank "
        "of the product, 3.",
    ),
    refused(
        "division by zero",
        graph("p = MatMul(a, b)  [s] y = Div(p, c)", scale="float c = {0}"),
        "Div (node 's') divides by zero; a finite scale is needed.",
        run=False,
    ),
    refused(
        "scale that is no float32",
        graph(
            "p = MatMul(a, b)  [s] y = Mul(p, c)",
            a="double[B,M,K]",
            b="double[B,K,N]",
            y="double[B,M,N]",
            scale="double c = {0.1}",
        ),
        "Mul (node 's') scales by 0.1, a double; the attribute 'alpha' is a float32 and not equal "
        "to it.",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_conformance(case: RuleCase) -> None:
    """Fused exactly where the kernel computes the same; every refusal has its reason."""
    RuleConformance(fused_matmul_rules).check(case)


def test_tied_weight_stays_one_tensor() -> None:
    """C055: the transposed embedding is read as it is stored."""
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["": 24]>
        g (int64[S] ids) => (float[S,3] y) <float[3,2] w = {1, 2, 3, 4, 5, 6}> {
            x = Gather(w, ids)
            t = Transpose(w)
            y = MatMul(x, t)
        }"""
    )
    common_passes.ShapeInferencePass()(model)
    onnxscript.rewriter.rewrite(model, fused_matmul_rules())
    assert list(model.graph.initializers) == ["w"]
    assert op_counts(model) == {"Gather": 1, FUSED: 1}
    assert model.graph[1].inputs[1] is model.graph.initializers["w"]


def test_body_of_the_fused_operator_stays_and_is_not_cyclic() -> None:
    """C095: rules after bodies; the inliner would never end on a body that calls itself."""
    model = graph(BY_B, b="float[B,N,K]")()
    onnxscript.rewriter.rewrite(model, fused_matmul_rules())
    AttachFunctions()(model)
    # A body of the plainest kind, which the rule would like to fuse.
    function = fused_mat_mul(24)
    a, b = (ir.val(name, ir.DataType.FLOAT, ["B", "K", "K"]) for name in "ab")
    transpose = ir.node("Transpose", [b], {"perm": [0, 2, 1]})
    product = ir.node("MatMul", [a, transpose.outputs[0]])
    product.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    body = ir.Graph([a, b], product.outputs, nodes=[transpose, product], opset_imports={"": 24})
    plain = ir.Function(*function.identifier()[:2], graph=body, attributes=function.attributes)
    model.functions[plain.identifier()] = plain
    onnxscript.rewriter.rewrite(model, fused_matmul_rules())
    assert [node.op_type for node in plain] == ["Transpose", "MatMul"]
    common_passes.InlinePass()(model)
    assert op_counts(model) == {"Transpose": 1, "MatMul": 1}


def test_scale_and_transpose_are_written_as_attributes() -> None:
    """Both transposes and the scale, in one node."""
    model = graph(
        "t = Transpose <perm = [0, 2, 1]> (b)  p = MatMul(a, t)  y = Div(p, c)", b="float[B,N,K]"
    )()
    onnxscript.rewriter.rewrite(model, fused_matmul_rules())
    (node,) = model.graph
    assert node.attributes.get_int("transA") == 0
    assert node.attributes.get_int("transB") == 1
    assert node.attributes.get_float("alpha") == 8.0
    assert np.float32(node.attributes.get_float("alpha")) == np.float32(8.0)
