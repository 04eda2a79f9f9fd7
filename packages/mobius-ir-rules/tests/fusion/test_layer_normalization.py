"""LayerNormFusion: every order and form of a layer norm fuses, and nothing that is another one."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
import onnx_ir.passes.common as common_passes
import pytest

from mobius_ir_rules.fusion.layer_normalization import layer_normalization_rules
from mobius_ir_rules.testing import RuleCase, RuleConformance

DIMS = {"B": 2, "S": 3}
FUSED = {"LayerNormalization": 1}
MEAN = "ReduceMean<keepdims: int = 1>"
CENTRE = f"[mean] e = {MEAN}(x, axes)  d = Sub(x, e)"
SPREAD = f"s = Pow(d, two)  [square] m = {MEAN}(s, axes)  a = Add(m, eps)  q = Sqrt(a)"
LAST = "n = Div(d, q)  p = Mul(n, w)  [end] y = Add(p, b)"
END = "Add (node 'end')"


def graph(
    body: str,
    x: str = "float[B,S,16] x",
    w: str = "float[16] w",
    b: str = "float[16] b",
    y: str = "float[B,S,16] y",
    opset: int = 24,
    axes: str = "-1",
) -> Callable[[], ir.Model]:
    """Return a builder of `body`, which makes y of x, w and b."""
    text = f"""<ir_version: 8, opset_import: ["": {opset}]> g ({x}, {w}, {b}) => ({y})
        <float two = {{2}}, float minus = {{-0.5}}, float eps = {{1e-5}},
         int64[{len(axes.split(","))}] axes = {{{axes}}}> {{ {body} }}"""

    def build() -> ir.Model:
        model = ir.from_onnx_text(text)
        common_passes.ShapeInferencePass()(model)
        return model

    return build


def fused(name: str, body: str, **after: int) -> RuleCase:
    return RuleCase(name, graph(body), dims=DIMS, after={**FUSED, **after}, complete=True)


def refused(name: str, build: Callable[[], ir.Model], reason: str) -> RuleCase:
    return RuleCase(name, build, applications=0, reasons=(reason,), dims=DIMS)


ALL = f"{CENTRE}  {SPREAD}  {LAST}"
CASES = [
    fused("usual", ALL),
    fused("exchanged", f"{CENTRE}  {SPREAD}  n = Div(d, q)  p = Mul(w, n)  y = Add(b, p)"),
    fused(
        "reciprocal",
        f"{CENTRE}  {SPREAD}  r = Reciprocal(q)  n = Mul(r, d)  p = Mul(n, w)  y = Add(p, b)",
    ),
    fused(
        "power",
        f"{CENTRE}  {SPREAD}".replace("Sqrt(a)", "Pow(a, minus)")
        + "  n = Mul(d, q)  p = Mul(n, w)  y = Add(p, b)",
    ),
    fused("square by Mul", ALL.replace("Pow(d, two)", "Mul(d, d)")),
    fused(
        "two differences",
        ALL.replace("Pow(d, two)", "Pow(f, two)").replace("s =", "f = Sub(x, e)  s ="),
    ),
    fused("without a bias", f"{CENTRE}  {SPREAD}  n = Div(d, q)  [end] y = Mul(n, w)"),
    RuleCase(
        "residual behind, no bias",
        graph(f"{CENTRE}  {SPREAD}  n = Div(d, q)  p = Mul(n, w)  y = Add(p, x)"),
        dims=DIMS,
        after={**FUSED, "Add": 1},
        complete=True,
    ),
    RuleCase(
        "product is used elsewhere",
        graph(f"{CENTRE}  {SPREAD}  n = Div(d, q)  p = Mul(n, w)  z = Add(p, b)  y = Mul(z, p)"),
        dims=DIMS,
        after={**FUSED, "Add": 1, "Mul": 1},
        complete=True,
    ),
    RuleCase(
        "opset 17",
        graph(
            ALL.replace("(x, axes)", "<axes: ints = [-1], keepdims: int = 1>(x)")
            .replace("(s, axes)", "<axes: ints = [-1], keepdims: int = 1>(s)")
            .replace("<keepdims: int = 1><", "<"),
            opset=17,
        ),
        dims=DIMS,
        after=FUSED,
        complete=True,
    ),
    RuleCase(
        "RMS norm is none",
        graph(f"d = Neg(x)  {SPREAD}  {LAST}"),
        applications=0,
        dims=DIMS,
    ),
]

REFUSALS = [
    refused(
        "opset 13",
        graph(
            ALL.replace("(x, axes)", "<axes: ints = [-1], keepdims: int = 1>(x)")
            .replace("(s, axes)", "<axes: ints = [-1], keepdims: int = 1>(s)")
            .replace("<keepdims: int = 1><", "<"),
            opset=13,
        ),
        f"The graph of {END} imports opset 13 of ONNX; LayerNormalization exists from opset 17 on.",
    ),
    refused(
        "mean over two axes",
        graph(ALL, axes="1, 2"),
        "ReduceMean (node 'square') has the axes (1, 2) on rank 3; the last axis alone is needed.",
    ),
    refused(
        "weight is broadcast",
        graph(ALL, w="float[1] w"),
        f"The weight of {END} has the shape [1]; [16] is needed.",
    ),
    refused(
        "bias is broadcast",
        graph(ALL, b="float[1] b"),
        f"The bias of {END} has the shape [1]; [16] is needed.",
    ),
    refused(
        "float16",
        graph(
            ALL.replace("Pow(d, two)", "Mul(d, d)")
            .replace("Add(m, eps)", "Add(m, k)")
            .replace("a =", "k = Constant<value: tensor = float16 {8479}>()  a ="),
            x="float16[B,S,16] x",
            w="float16[16] w",
            b="float16[16] b",
            y="float16[B,S,16] y",
        ),
        f"The norm that {END} ends is computed in FLOAT16; FLOAT is needed, because that is what "
        "LayerNormalization computes in.",
    ),
]


@pytest.mark.parametrize("case", [*CASES, *REFUSALS], ids=str)
def test_conformance(case: RuleCase) -> None:
    RuleConformance(layer_normalization_rules).check(case)
