"""RotaryFusion: rotations by halves with tables whose halves are provably equal."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
import onnx_ir.passes.common as common_passes
import pytest

from mobius_ir_rules.fusion.rotary_embedding import rotary_embedding_rules
from mobius_ir_rules.testing import RuleCase, RuleConformance

DIMS = {"B": 2, "S": 5, "H": 3}
# Of the tables, halves are read.
TABLE = {"Concat": 1, "Cos": 1, "Sin": 1, "Slice": 2, "Squeeze": 2, "Unsqueeze": 2}
FUSED = {"RotaryEmbedding": 1, **TABLE}
TABLES = (
    "f = Concat<axis: int = -1>(angles, angles)  c3 = Cos(f)  s3 = Sin(f)  "
    "cos = Unsqueeze(c3, one)  sin = Unsqueeze(s3, one)"
)
SLICES = "lo = Slice(x, zero, eight, last, one)  hi = Slice(x, eight, end, last, one)"
HALF = "neg = Neg(hi)  half = Concat<axis: int = -1>(neg, lo)"
SUM = "a = Mul(x, cos)  b = Mul(half, sin)  [sum] y = Add(a, b)"
ROOT = "Add (node 'sum')"


def graph(
    body: str,
    x: str = "float[B,H,S,16] x",
    angles: str = "float[B,S,8] angles",
    y: str = "float[B,H,S,16] y",
    opset: int = 24,
) -> Callable[[], ir.Model]:
    text = f"""<ir_version: 10, opset_import: ["": {opset}]> g ({x}, {angles}) => ({y})
        <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] eight = {{8}}, int64[1] last = {{3}},
         int64[1] end = {{9223372036854775807}}, int64[1] sixteen = {{16}}, float two = {{2}}>
        {{ {body} }}"""

    def build() -> ir.Model:
        model = ir.from_onnx_text(text)
        common_passes.ShapeInferencePass()(model)
        return model

    return build


def refused(name: str, build: Callable[[], ir.Model], reason: str, **dims: int) -> RuleCase:
    return RuleCase(name, build, applications=0, reasons=(reason,), dims={**DIMS, **dims})


ALL = f"{TABLES}  {SLICES}  {HALF}  {SUM}"
CASES = [
    RuleCase("transformers", graph(ALL), dims=DIMS, after=FUSED, complete=True),
    RuleCase(
        "operands exchanged",
        graph(f"{TABLES}  {SLICES}  {HALF}  a = Mul(cos, x)  b = Mul(sin, half)  y = Add(b, a)"),
        dims=DIMS,
        after=FUSED,
        complete=True,
    ),
    RuleCase(
        "split",
        graph(f"{TABLES}  lo, hi = Split<axis: int = -1, num_outputs: int = 2>(x)  {HALF}  {SUM}"),
        dims=DIMS,
        after=FUSED,
        complete=True,
    ),
    RuleCase(
        "one table for the whole batch",
        graph(ALL, angles="float[1,S,8] angles"),
        dims=DIMS,
        after={**FUSED, "Expand": 2, "Concat": 3, "Shape": 2},
        complete=True,
    ),
    RuleCase(
        "scaled tables (YaRN)",
        graph(ALL.replace("cos = Unsqueeze(c3", "c4 = Mul(c3, two)  cos = Unsqueeze(c4")),
        dims=DIMS,
        after={**FUSED, "Mul": 1},
        complete=True,
    ),
    RuleCase(
        "part of the head",
        graph(
            f"{TABLES}  x = Slice(w, zero, sixteen, last, one)  rest = Slice(w, sixteen, end, last,"
            f" one)  {SLICES}  {HALF}  {SUM.replace('y =', 'p =')}  "
            "y = Concat<axis: int = -1>(p, rest)",
            x="float[B,H,S,24] w",
            y="float[B,H,S,24] y",
        ),
        dims=DIMS,
        after={**FUSED, "Concat": 2, "Slice": 4},
        complete=True,
    ),
    RuleCase(
        "halves are not exchanged",
        graph(ALL.replace("Concat<axis: int = -1>(neg, lo)", "Concat<axis: int = -1>(lo, neg)")),
        applications=0,
        dims=DIMS,
    ),
    RuleCase(
        "the other half is negative",
        graph(ALL.replace("Neg(hi)", "Neg(lo)").replace("(neg, lo)", "(neg, hi)")),
        applications=0,
        dims=DIMS,
    ),
]

REFUSALS = [
    refused(
        "opset 18",
        graph(ALL, opset=18),
        f"The graph of {ROOT} imports opset 18 of ONNX; RotaryEmbedding exists from opset 23 on.",
    ),
    refused(
        "halves of the table differ",
        graph(
            ALL.replace("Concat<axis: int = -1>(angles, angles)", "Mul(angles, two)"),
            angles="float[B,S,16] angles",
        ),
        f"A table of {ROOT} is produced by Unsqueeze (node 'cos'); its two halves must provably "
        "be equal, made by a Concat of one value with itself.",
    ),
    refused(
        "halves of the sine differ",
        graph(
            ALL.replace(
                "s3 = Sin(f)", "n = Neg(angles) g = Concat<axis: int = -1>(angles, n) s3 = Sin(g)"
            )
        ),
        f"A table of {ROOT} is produced by Unsqueeze (node 'sin'); its two halves must provably "
        "be equal, made by a Concat of one value with itself.",
    ),
    refused(
        "tables of another length",
        graph(ALL, angles="float[B,T,8] angles"),
        f"A table of {ROOT} has the shape [B,1,T,16] and rotates [B,H,S,16]; [batch or 1, 1, "
        "length, width], provably of the same sizes, is needed.",
        T=1,
    ),
    refused(
        "3-D",
        graph(
            f"f = Concat<axis: int = -1>(angles, angles)  cos = Cos(f)  sin = Sin(f)  "
            f"{SLICES.replace('last', 'two3')}  {HALF}  {SUM}".replace(
                "lo =", "two3 = Constant<value_ints: ints = [2]>()  lo ="
            ),
            x="float[B,S,16] x",
            y="float[B,S,16] y",
        ),
        f"{ROOT} rotates [B,S,16] by 8; [batch, heads, length, 16] is needed.",
    ),
]


@pytest.mark.parametrize("case", [*CASES, *REFUSALS], ids=str)
def test_conformance(case: RuleCase) -> None:
    RuleConformance(rotary_embedding_rules).check(case)
