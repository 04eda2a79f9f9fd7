"""RMSNormFusion: every order and form of an RMS norm fuses, and nothing that is another one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common_passes
import pytest

from mobius_ir_rules.fusion.rms_normalization import rms_normalization_rules
from mobius_ir_rules.testing import RuleCase, RuleConformance

DIMS = {"B": 2, "S": 3}
FUSED = {"RMSNormalization": 1}
MEAN = "s = Pow(x, two)  m = ReduceMean<keepdims: int = 1>(s, axes)  a = Add(m, eps)"
ROOT = "q = Sqrt(a)  r = Reciprocal(q)  n = Mul(x, r)"
LAST = "[end] y = Mul(w, n)"
END = "Mul (node 'end')"


def graph(
    body: str,
    x: str = "float[B,S,16] x",
    w: str = "float[16] w",
    y: str = "float[B,S,16] y",
    opset: int = 24,
    axes: str = "-1",
    epsilon: str = "1e-5",
) -> Callable[[], ir.Model]:
    """Return a builder of `body`, which makes y of x and w."""
    text = f"""<ir_version: 10, opset_import: ["": {opset}]> g ({x}, {w}) => ({y})
        <float two = {{2}}, float one = {{1}}, float minus = {{-0.5}}, float half = {{0.5}},
         float eps = {{{epsilon}}}, int64[{len(axes.split(","))}] axes = {{{axes}}}> {{ {body} }}"""

    def build() -> ir.Model:
        model = ir.from_onnx_text(text)
        common_passes.ShapeInferencePass()(model)
        return model

    return build


def fused(name: str, body: str, **options: str) -> RuleCase:
    return RuleCase(name, graph(body, **options), dims=DIMS, after=FUSED, complete=True)  # type: ignore[arg-type]


def narrow(body: str) -> Callable[[], ir.Model]:
    return graph(body, x="float16[B,S,16] x", w="float16[16] w", y="float16[B,S,16] y")


WIDE = f"z = Cast<to: int = 1>(x)  {MEAN}".replace("Pow(x", "Pow(z")
CASTS = f"{WIDE}  q = Sqrt(a)  n = Div(z, q)  c = Cast<to: int = 10>(n)  [end] y = Mul(w, c)"
OFFSET = (
    f"{WIDE}  q = Sqrt(a)  n = Div(z, q)  v = Cast<to: int = 1>(w)  u = Add(one, v)  "
    "o = Mul(n, u)  y = Cast<to: int = 10>(o)"
)

CASES = [
    fused("torch.onnx", f"{MEAN}  {ROOT}  {LAST}"),
    fused("weight last", f"{MEAN}  {ROOT}  y = Mul(n, w)"),
    fused("division", f"{MEAN}  q = Sqrt(a)  n = Div(x, q)  {LAST}"),
    fused("one by root", f"{MEAN}  q = Sqrt(a)  r = Div(one, q)  n = Mul(r, x)  {LAST}"),
    fused("power", f"{MEAN}  r = Pow(a, minus)  n = Mul(r, x)  {LAST}"),
    fused("divided by power", f"{MEAN}  r = Pow(a, half)  n = Div(x, r)  {LAST}"),
    fused(
        "square by Mul, epsilon first",
        f"s = Mul(x, x)  m = ReduceMean<keepdims: int = 1>(s, axes)  a = Add(eps, m)  {ROOT}"
        f"  {LAST}",
    ),
    fused("axis from the front", f"{MEAN}  {ROOT}  {LAST}", axes="2"),
    RuleCase(
        "offset weight",
        graph(f"{MEAN}  {ROOT}  o = Add(w, one)  [end] y = Mul(n, o)"),
        dims=DIMS,
        after={**FUSED, "Add": 1},
        complete=True,
    ),
    RuleCase(
        "two norms of one value",
        graph(f"{MEAN}  {ROOT}  b = Mul(w, n)  c = Mul(n, w)  y = Add(b, c)"),
        applications=2,
        dims=DIMS,
        after={"RMSNormalization": 2, "Pow": 0},
    ),
    RuleCase("float16 between casts", narrow(CASTS), dims=DIMS, after=FUSED, complete=True),
    RuleCase(
        "float16, weight before the cast back",
        narrow(OFFSET),
        dims=DIMS,
        after={**FUSED, "Cast": 3, "Add": 1},
        complete=True,
    ),
    RuleCase(
        "mean is used elsewhere",
        graph(f"{MEAN}  {ROOT}  z = Mul(w, n)  y = Add(z, m)"),
        dims=DIMS,
        after={"RMSNormalization": 1, "ReduceMean": 1, "Pow": 1, "Reciprocal": 0},
    ),
    RuleCase(
        "layer norm is none",
        graph(
            "e = ReduceMean<keepdims: int = 1>(x, axes)  d = Sub(x, e)  s = Pow(d, two)  m = "
            "ReduceMean<keepdims: int = 1>(s, axes)  a = Add(m, eps)  q = Sqrt(a)  n = Div(d, q)"
            f"  {LAST}"
        ),
        applications=0,
        dims=DIMS,
    ),
    RuleCase(
        "another value is squared",
        graph(f"{MEAN.replace('Pow(x', 'Pow(b')}  {ROOT}  {LAST}".replace("s =", "b = Neg(x) s =")),
        applications=0,
        dims=DIMS,
    ),
    RuleCase(
        "cubed",
        graph(f"{MEAN.replace('two', 'one')}  {ROOT}  {LAST}"),
        applications=0,
        compare=False,
        dims=DIMS,
    ),
]


def refused(name: str, build: Callable[[], ir.Model], reason: str, **options: bool) -> RuleCase:
    return RuleCase(
        name,
        build,
        applications=0,
        reasons=(reason,),
        dims=DIMS,
        **options,  # type: ignore[arg-type]
    )


ALL = f"{MEAN}  {ROOT}  {LAST}"
REFUSALS = [
    refused(
        "opset 18",
        graph(ALL, opset=18),
        f"The graph of {END} imports opset 18 of ONNX; RMSNormalization exists from opset 23 on.",
    ),
    refused(
        "two axes",
        graph(ALL, axes="1, 2"),
        "ReduceMean (node 'm') has the axes (1, 2) on rank 3; the last axis alone is needed.",
    ),
    refused(
        "first axis",
        graph(ALL, axes="0"),
        "ReduceMean (node 'm') has the axes (0,) on rank 3; the last axis alone is needed.",
    ),
    refused(
        "epsilon is computed",
        graph(ALL.replace("a = Add(m, eps)", "f = Neg(eps)  g = Abs(f)  a = Add(m, g)")),
        "The number added to the result of ReduceMean (node 'm') is no constant; a constant "
        "scalar of at least 0 is needed.",
    ),
    refused(
        "epsilon is negative",
        graph(ALL, epsilon="-1e-7"),
        "The number added to the result of ReduceMean (node 'm') is -1e-07; a constant scalar of "
        "at least 0 is needed.",
    ),
    refused(
        "weight is an activation (C089)",
        graph(ALL, w="float[B,S,16] w"),
        f"The weight of {END} has the shape [B,S,16]; [16] is needed.",
    ),
    refused(
        "weight has more axes (C089)",
        graph(ALL, w="float[1,1,16] w"),
        f"The weight of {END} has the shape [1,1,16]; [16] is needed.",
    ),
    refused(
        "weight is broadcast",
        graph(ALL, w="float[1] w"),
        f"The weight of {END} has the shape [1]; [16] is needed.",
    ),
    refused(
        "hidden size is not known",
        graph(ALL, x="float[B,S,H] x", w="float[H] w", y="float[B,S,H] y"),
        f"The last size of the value that {END} ends the normalisation of is not known; it is "
        "needed.",
        compare=False,
    ),
    refused(
        "computed in float16",
        graph(
            ALL.replace("Pow(x, two)", "Mul(x, x)").replace(
                "a = Add(m, eps)", "k = Constant<value: tensor = float16 {8479}>()  a = Add(m, k)"
            ),
            x="float16[B,S,16] x",
            w="float16[16] w",
            y="float16[B,S,16] y",
        ),
        f"The norm that {END} ends is computed in FLOAT16; FLOAT is needed, because that is what "
        "RMSNormalization computes in.",
    ),
    refused(
        "float32 norm cast to float16",
        graph(
            f"{MEAN}  {ROOT}  [back] c = Cast<to: int = 10>(n)  [end] y = Mul(w, c)",
            w="float16[16] w",
            y="float16[B,S,16] y",
        ),
        "Cast (node 'back') casts to FLOAT16 a norm of unknown computed in FLOAT; a norm of "
        "FLOAT16 or BFLOAT16, computed in FLOAT and cast back, is needed.",
    ),
]


@pytest.mark.parametrize("case", [*CASES, *REFUSALS], ids=str)
def test_conformance(case: RuleCase) -> None:
    RuleConformance(rms_normalization_rules).check(case)


def test_epsilon_and_name_are_kept() -> None:
    model = graph(ALL, epsilon="3e-3")()
    assert RuleConformance(rms_normalization_rules).apply(model) == 1
    (node,) = (item for item in model.graph if item.op_type == "RMSNormalization")
    assert node.name == "end"
    assert node.attributes["epsilon"].as_float() == np.float32(3e-3)
    assert node.attributes["axis"].as_int() == -1
