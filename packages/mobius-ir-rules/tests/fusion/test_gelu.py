"""GeluFusion: every order and form of the two formulas fuses, and nothing that is another one."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common_passes
import onnxscript.rewriter
import pytest

from mobius_ir_rules.fusion.gelu import gelu_rules
from mobius_ir_rules.testing import RuleCase, RuleConformance, run_model

ROOT_OF_2 = math.sqrt(2.0)
ROOT_OF_2_BY_PI = math.sqrt(2.0 / math.pi)
DIMS = {"B": 2, "S": 3}
GELU = {"Gelu": 1}


def graph(
    body: str,
    dtype: str = "float",
    opset: int = 24,
    outputs: str = "",
    axes: str = "",
    **constants: float,
) -> Callable[[], ir.Model]:
    """Return a builder of `body`, which makes y of x; `constants` are initializers of x's type."""

    def build() -> ir.Model:
        model = ir.from_onnx_text(
            f"""<ir_version: 10, opset_import: ["": {opset}]>
            g ({dtype}[B,S,16] x) => ({dtype}[B,S,16] y{outputs})
            <{", ".join(f"{dtype}{axes} {name} = {{0}}" for name in constants)}> {{ {body} }}"""
        )
        for name, constant in constants.items():
            value = model.graph.initializers[name]
            assert value.dtype is not None
            assert value.shape is not None
            array = np.full(value.shape.numpy(), constant).astype(value.dtype.numpy())
            value.const_value = ir.tensor(array, dtype=value.dtype, name=name)
        common_passes.ShapeInferencePass()(model)
        return model

    return build


def erf(body: str, **options: object) -> Callable[[], ir.Model]:
    """Return a builder of a form with erf."""
    return graph(body, **{"r": ROOT_OF_2, "h": 0.5, "o": 1.0, **options})  # type: ignore[arg-type]


def tanh(body: str, **options: object) -> Callable[[], ir.Model]:
    """Return a builder of a form with tanh."""
    defaults = {"r": ROOT_OF_2_BY_PI, "h": 0.5, "o": 1.0, "c": 0.044715, "t": 3.0}
    return graph(body, **{**defaults, **options})  # type: ignore[arg-type]


ERF = "d = Div(x, r)  [erf] e = Erf(d)  p = Add(e, o)  m = Mul(x, h)  [end] y = Mul(m, p)"
TANH = """q = Pow(x, t)  w = Mul(c, q)  a = Add(x, w)  i = Mul(r, a)  [tanh] e = Tanh(i)
    p = Add(o, e)  m = Mul(h, x)  [end] y = Mul(m, p)"""

FUSED = [
    RuleCase("erf", erf(ERF), dims=DIMS, after=GELU, complete=True),
    RuleCase(
        "erf, operands exchanged, torch.onnx",
        erf("d = Div(x, r)  e = Erf(d)  p = Add(o, e)  m = Mul(x, p)  y = Mul(h, m)"),
        dims=DIMS,
        after=GELU,
        complete=True,
    ),
    RuleCase(
        "erf, reciprocal constant",
        erf("d = Mul(r, x)  e = Erf(d)  p = Add(e, o)  m = Mul(p, h)  y = Mul(x, m)", r=0.5**0.5),
        dims=DIMS,
        after=GELU,
        complete=True,
    ),
    RuleCase(
        "erf, halved last",
        erf("d = Div(x, r)  e = Erf(d)  p = Add(e, o)  m = Mul(p, x)  y = Div(m, h)", h=2.0),
        dims=DIMS,
        after=GELU,
        complete=True,
    ),
    RuleCase(
        "erf, half multiplied out",
        erf("d = Div(x, r)  e = Erf(d)  f = Mul(e, h)  p = Add(f, h)  y = Mul(p, x)"),
        dims=DIMS,
        after=GELU,
        complete=True,
    ),
    RuleCase(
        "erf, constants of rank 1", erf(ERF, axes="[1]"), dims=DIMS, after=GELU, complete=True
    ),
    RuleCase(
        "erf of a sum",
        erf(f"b = Add(z, z)  {ERF}".replace("x", "b").replace("z", "x")),
        dims=DIMS,
        after={**GELU, "Add": 1},
        complete=True,
    ),
    RuleCase(
        "two in a row",
        erf(
            f"{ERF}  d2 = Div(y, r)  e2 = Erf(d2)  p2 = Add(e2, o)  m2 = Mul(y, h)  "
            "z = Mul(m2, p2)",
            outputs=", float[B,S,16] z",
        ),
        dims=DIMS,
        applications=2,
        after={**GELU, "Gelu": 2},
        complete=True,
    ),
    RuleCase(
        "erf, gated",
        erf(ERF.replace("y =", "g =") + "  y = Mul(g, x)"),
        dims=DIMS,
        after={**GELU, "Mul": 1},
        complete=True,
    ),
    RuleCase(
        "erf, scaled afterwards",
        erf(ERF.replace("y =", "g =") + "  y = Mul(g, o)", o=1.0),
        dims=DIMS,
        after={**GELU, "Mul": 1},
        complete=True,
    ),
    RuleCase(
        "erf, an inner value is used elsewhere",
        erf(ERF + "  z = Neg(e)", outputs=", float[B,S,16] z"),
        dims=DIMS,
        after={"Gelu": 1, "Erf": 1, "Div": 1, "Add": 0, "Mul": 0},
    ),
    RuleCase(
        "erf, an inner value is a graph output",
        erf(ERF, outputs=", float[B,S,16] p"),
        dims=DIMS,
        after={"Gelu": 1, "Erf": 1, "Div": 1, "Add": 1, "Mul": 0},
    ),
    RuleCase("tanh, GPT-2", tanh(TANH), dims=DIMS, after=GELU, complete=True),
    RuleCase(
        "tanh, x * x * x",
        tanh(TANH.replace("q = Pow(x, t)", "s = Mul(x, x)  q = Mul(s, x)")),
        dims=DIMS,
        after=GELU,
        complete=True,
    ),
    RuleCase(
        "tanh, gelu_fast of transformers",
        tanh(
            """k = Mul(x, r)  s = Mul(c, x)  s2 = Mul(s, x)  s3 = Add(o, s2)  i = Mul(k, s3)
            e = Tanh(i)  p = Add(o, e)  m = Mul(x, h)  y = Mul(m, p)""",
            r=0.7978845608,
        ),
        dims=DIMS,
        after=GELU,
        complete=True,
    ),
    RuleCase(
        "tanh, constants multiplied out",
        tanh(
            """q = Pow(x, t)  w = Mul(q, c)  k = Mul(x, r)  i = Add(k, w)  e = Tanh(i)
            p = Add(e, o)  m = Mul(h, p)  y = Mul(x, m)""",
            c=0.044715 * ROOT_OF_2_BY_PI,
        ),
        dims=DIMS,
        after=GELU,
        complete=True,
    ),
    # ONNX Runtime's CPU provider has Gelu in float32 only: it runs the function body.
    RuleCase("erf, float16", erf(ERF, dtype="float16"), dims=DIMS, after=GELU, complete=True),
    RuleCase("tanh, float16", tanh(TANH, dtype="float16"), dims=DIMS, after=GELU, complete=True),
    RuleCase("erf, bfloat16", erf(ERF, dtype="bfloat16"), compare=False, after=GELU, complete=True),
    RuleCase(
        "tanh, bfloat16", tanh(TANH, dtype="bfloat16"), compare=False, after=GELU, complete=True
    ),
    RuleCase("erf, double", erf(ERF, dtype="double"), compare=False, after=GELU, complete=True),
]


def refused(name: str, build: Callable[[], ir.Model], *reasons: str) -> RuleCase:
    """Return a case that must stay as it is."""
    return RuleCase(name, build, applications=0, reasons=reasons, dims=DIMS)


WANTED_ERF = "0.707107*x is needed."
WANTED_TANH = "0.797885*x + 0.0356774*x^3 is needed."
OUTER = "t with t the result of Erf (node 'erf'); 0.5*x + 0.5*x*t is needed."
REFUSED = [
    refused(
        "rounded root of two",
        erf(ERF, r=1.4142),
        f"Erf (node 'erf') is taken of 0.707114*x; {WANTED_ERF}",
    ),
    refused(
        "no root of two",
        erf(ERF.replace("Erf(d)", "Erf(x)")),
        f"Erf (node 'erf') is taken of 1*x; {WANTED_ERF}",
    ),
    refused(
        "cubic constant",
        tanh(TANH, c=0.044),
        "Tanh (node 'tanh') is taken of 0.797885*x + 0.0351069*x^3; " + WANTED_TANH,
    ),
    refused(
        "square instead of the cube",
        tanh(TANH, t=2.0),
        "Tanh (node 'tanh') is taken of 0.797885*x + 0.0356774*x^2; " + WANTED_TANH,
    ),
    refused(
        "not halved",
        erf(ERF.replace("m = Mul(x, h)", "m = Mul(x, o)")),
        f"Mul (node 'end') is 1*x + 1*x*{OUTER}",
    ),
    refused("no one", erf(ERF, o=2.0)),
    refused("minus", erf(ERF.replace("Add(e, o)", "Sub(o, e)"))),
    refused(
        "another variable outside", erf("n = Neg(x)  " + ERF.replace("Mul(x, h)", "Mul(n, h)"))
    ),
    refused("softcap", tanh("i = Mul(x, h)  e = Tanh(i)  y = Mul(e, t)")),
    refused(
        "sigmoid approximation",
        graph("s = Mul(x, k)  g = Sigmoid(s)  y = Mul(x, g)", k=1.702),
    ),
    refused(
        "opset without Gelu",
        erf(ERF, opset=19),
        "The graph of Mul (node 'end') imports opset 19 of ONNX; Gelu exists from opset 20 on.",
    ),
    RuleCase(
        "constant of rank 4",
        erf(ERF, axes="[1,1,1,1]"),
        applications=0,
        reasons=(
            "A constant of Mul (node 'm') has rank 4; one of rank 0 is needed, or of at most the "
            "rank of its input, 3.",
        ),
        compare=False,
    ),
]


@pytest.mark.parametrize("case", FUSED + REFUSED, ids=str)
def test_conformance(case: RuleCase) -> None:
    """Fused exactly where Gelu computes the same; every refusal has its reason."""
    RuleConformance(gelu_rules).check(case)


@pytest.mark.parametrize(("build", "approximate"), [(erf(ERF), "none"), (tanh(TANH), "tanh")])
def test_forms_are_not_swapped(build: Callable[[], ir.Model], approximate: str) -> None:
    """C003: a swap shows as 4.7e-4 on [-4, 4], so the tolerance is 1e-6."""
    inputs = {"x": np.linspace(-4.0, 4.0, 96, dtype=np.float32).reshape(2, 3, 16)}
    model = build()
    before = run_model(model, inputs)["y"]
    onnxscript.rewriter.rewrite(model, gelu_rules())
    (node,) = model.graph
    assert node.attributes.get_string("approximate", "none") == approximate
    assert np.max(np.abs(run_model(model, inputs)["y"] - before)) < 1e-6


@pytest.mark.parametrize("opset", [20, 24])
def test_constant_nodes_are_read_too(opset: int) -> None:
    """Exporters write constants as nodes."""
    model = ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["": {opset}]>
        g (float[N] x) => (float[N] y) {{
            r = Constant <value_float = 1.4142135>()
            h = Constant <value = float {{0.5}}>()
            o = Constant <value_float = 1.0>()
            d = Div(x, r)  e = Erf(d)  p = Add(e, o)  m = Mul(x, h)  y = Mul(m, p)
        }}"""
    )
    onnxscript.rewriter.rewrite(model, gelu_rules())
    assert [node.op_type for node in model.graph] == ["Gelu"]


def test_input_that_a_caller_can_replace_is_no_constant() -> None:
    """An initializer that is a graph input is only a default."""
    model = erf(ERF)()
    model.graph.inputs.append(model.graph.initializers["r"])
    onnxscript.rewriter.rewrite(model, gelu_rules())
    assert [node.op_type for node in model.graph] == ["Div", "Erf", "Add", "Mul", "Mul"]
