"""AttentionFusion and GroupedHeads: the chains that exporters write, masks and scales kept."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common_passes
import pytest

from mobius_ir_rules.fusion.attention import attention_rules
from mobius_ir_rules.testing import RuleCase, RuleConformance

DIMS = {"B": 2, "S": 5, "T": 7}
# Max keeps the mask above the number that kernels take to mean "never".
FUSED = {"Attention": 1, "Max": 1}
TURN = "kt = Transpose<perm: ints = [0, 1, 3, 2]>(k)"
MERGED = (
    "ks = Shape(k)  t = Slice(ks, m2, m1)  d = Slice(ks, m1, end)  bh = Slice(ks, low, m2)  "
    "r3 = Concat<axis: int = 0>(m1, t, d)  k3 = Reshape(k, r3)  t3 = Transpose<perm: ints = [0, 2, "
    "1]>(k3)  r4 = Concat<axis: int = 0>(bh, d, t)  kt = Reshape(t3, r4)"
)
LAST = "w = Softmax<axis: int = -1>(z)  [end] y = MatMul(w, v)"
PLAIN = f"{TURN}  qs = Mul(q, half)  kh = Mul(kt, half)  x = MatMul(qs, kh)  z = Add(x, mask)"
END = "MatMul (node 'end')"
OF_END = f"the attention that {END} ends"


def repeat(name: str, copies: int = 2, heads: int = 2) -> str:
    """Return text that makes `{name}r` of `name` with each head repeated."""
    return (
        f"u{name} = Unsqueeze({name}, two)  sh{name} = Shape({name})  "
        f"b{name} = Slice(sh{name}, zero, one)  l{name} = Slice(sh{name}, two, three)  "
        f"n{name} = Constant<value_ints: ints = [{heads}]>()  "
        f"c{name} = Constant<value_ints: ints = [{copies}]>()  "
        f"m{name} = Constant<value_ints: ints = [{heads * copies}]>()  "
        f"e{name} = Concat<axis: int = 0>(b{name}, n{name}, c{name}, l{name}, eight)  "
        f"x{name} = Expand(u{name}, e{name})  "
        f"f{name} = Concat<axis: int = 0>(b{name}, m{name}, l{name}, eight)  "
        f"{name}r = Reshape(x{name}, f{name})  "
    )


GROUPED = (
    repeat("k") + repeat("v") + f"{PLAIN}  {LAST}".replace("(k)", "(kr)").replace("w, v)", "w, vr)")
)


def graph(
    body: str,
    mask: str = "float[B,1,S,T] mask",
    dtype: str = "float",
    kv_heads: int = 4,
    opset: int = 24,
    numbers: str = "float half = {0.5}, float cap = {3}, float nothing = {0}, float low32 = "
    "{-3.4028234663852886e38}",
    query: str = "B,4,S,8",
    result: str = "",
    outputs: str = "",
) -> Callable[[], ir.Model]:
    text = f"""<ir_version: 10, opset_import: ["": {opset}]>
        g ({dtype}[{query}] q, {dtype}[B,{kv_heads},T,8] k, {dtype}[B,{kv_heads},T,8] v, {mask})
        => ({dtype}[{result or query}] y{outputs})
        <{numbers}, int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}},
         int64[1] three = {{3}}, int64[1] eight = {{8}}, int64[1] m1 = {{-1}}, int64[1] m2 = {{-2}},
         int64[1] end = {{9223372036854775807}}, int64[1] low = {{-9223372036854775808}}>
        {{ {body} }}"""

    def build() -> ir.Model:
        model = ir.from_onnx_text(text)
        common_passes.ShapeInferencePass()(model)
        return model

    return build


def refused(name: str, build: Callable[[], ir.Model], reason: str, **dims: int) -> RuleCase:
    return RuleCase(name, build, applications=0, reasons=(reason,), dims={**DIMS, **dims})


BOOL_MASK = "bool[B,1,S,T] visible"
# The second row is padded on the left: its first query sees nothing at all.
VISIBLE = np.tril(np.ones((2, 1, 5, 7), bool), 2)
VISIBLE[1, :, :, :4] = False
GUARDED = (
    "mask = Where(visible, nothing, low32)  "
    f"{PLAIN}  p = Softmax<axis: int = -1>(z)  bad = IsNaN(p)  w = Where(bad, nothing, p)  "
    "[end] y = MatMul(w, v)"
)

CASES = [
    RuleCase(
        "scales on both sides", graph(f"{PLAIN}  {LAST}"), dims=DIMS, after=FUSED, complete=True
    ),
    RuleCase(
        "torch.onnx turns the key by Reshape",
        graph(f"{PLAIN.replace(TURN, MERGED)}  {LAST}"),
        dims=DIMS,
        after=FUSED,
        complete=True,
    ),
    RuleCase(
        "scaled behind, mask first",
        graph(f"{TURN}  x = MatMul(q, kt)  s = Div(x, cap)  z = Add(mask, s)  {LAST}"),
        dims=DIMS,
        after=FUSED,
        complete=True,
    ),
    RuleCase(
        "key scaled before it is turned",
        graph(
            "ks = Mul(half, k)  kt = Transpose<perm: ints = [0, 1, 3, 2]>(ks)  x = MatMul(q, kt)  "
            f"z = Add(x, mask)  {LAST}"
        ),
        dims=DIMS,
        after=FUSED,
        complete=True,
    ),
    RuleCase(
        "no mask",
        graph(f"{TURN}  x = MatMul(q, kt)  z = Mul(x, half)  {LAST}", mask="float[1] o"),
        dims=DIMS,
        after={"Attention": 1},
        complete=True,
    ),
    RuleCase(
        "softcap before the mask (Gemma 2)",
        graph(
            f"{TURN}  x = MatMul(q, kt)  s = Mul(x, half)  i = Div(s, cap)  t = Tanh(i)  "
            f"c = Mul(t, cap)  z = Add(c, mask)  {LAST}"
        ),
        dims=DIMS,
        after=FUSED,
        complete=True,
    ),
    RuleCase("mask [S, T] (C038)", graph(f"{PLAIN}  {LAST}", "float[S,T] mask"), dims=DIMS),
    RuleCase(
        "mask [1, 1, 1, T] (C038)", graph(f"{PLAIN}  {LAST}", "float[1,1,1,T] mask"), dims=DIMS
    ),
    RuleCase(
        "mask [B, 1, 1, T] (C038)", graph(f"{PLAIN}  {LAST}", "float[B,1,1,T] mask"), dims=DIMS
    ),
    RuleCase(
        "mask [1, H, S, T] (C038)", graph(f"{PLAIN}  {LAST}", "float[1,4,S,T] mask"), dims=DIMS
    ),
    RuleCase("grouped heads", graph(GROUPED, kv_heads=2), dims=DIMS, after=FUSED, complete=True),
    RuleCase(
        "key and value repeated differently",
        graph(
            repeat("k")
            + repeat("v", 4, 1)
            + f"{PLAIN}  {LAST}".replace("(k)", "(kr)").replace("w, v)", "w, vr)"),
            kv_heads=2,
        ),
        compare=False,
        dims=DIMS,
        after={"Attention": 1, "Expand": 2},
    ),
    RuleCase(
        "softmax in float32 (C019)",
        graph(
            f"{TURN}  x = MatMul(q, kt)  z = Add(x, mask)  f = Cast<to: int = 1>(z)  "
            "p = Softmax<axis: int = -1>(f)  w = Cast<to: int = 10>(p)  [end] y = MatMul(w, v)",
            mask="float16[B,1,S,T] mask",
            dtype="float16",
        ),
        dims=DIMS,
        after=FUSED,
        complete=True,
    ),
    RuleCase(
        "NaN guard, mask of finite numbers, a row sees nothing",
        graph(GUARDED, mask=BOOL_MASK),
        dims=DIMS,
        inputs={"visible": VISIBLE},
        after={**FUSED, "Where": 1},
        complete=True,
    ),
    RuleCase("softmax of something else", graph(f"z = Add(mask, mask)  {LAST}"), 0, dims=DIMS),
]

REFUSALS = [
    refused(
        "opset 18",
        graph(f"{PLAIN}  {LAST}", opset=18),
        f"The graph of {END} imports opset 18 of ONNX; Attention exists from opset 23 on.",
    ),
    RuleCase(
        "NaN guard, mask of minus infinity",
        graph(
            GUARDED.replace("low32)", "lowest)").replace(
                "mask =", "zero32 = Neg(nothing)  lowest = Log(nothing)  mask ="
            ),
            mask=BOOL_MASK,
        ),
        applications=0,
        reasons=(
            f"{END} reads weights whose NaN are replaced by 0, and the mask is produced by Where "
            "(node 'mask'); a Where of two finite FLOAT constants is needed, because a row that is "
            "masked throughout is NaN otherwise.",
        ),
        dims=DIMS,
        inputs={"visible": VISIBLE},
    ),
    refused(
        "mask of rank 3",
        graph(f"{PLAIN}  {LAST}", mask="float[4,S,T] mask"),
        f"The mask of {OF_END} has rank 3; 2 or 4 is needed.",
    ),
    refused(
        "mask may be larger than the scores",
        graph(f"{PLAIN}  {LAST}", mask="float[N,1,S,T] mask"),
        f"The mask of {OF_END} has the shape [N,1,S,T], the query [B,4,S,8] and the key "
        "[B,4,T,8]; sizes that are provably those of the scores, or 1 before the last, are needed.",
        N=2,
    ),
    refused(
        "weights are used elsewhere",
        graph(f"{PLAIN}  {LAST}", outputs=", float[B,4,S,T] w"),
        f"The attention weights that {END} reads are used elsewhere; it must be their only use.",
    ),
    refused(
        "softmax in float64",
        graph(
            f"{PLAIN}  f = Cast<to: int = 11>(z)  [soft] p = Softmax<axis: int = -1>(f)  "
            "w = Cast<to: int = 1>(p)  [end] y = MatMul(w, v)"
        ),
        "Softmax (node 'soft') is computed in DOUBLE between Casts; FLOAT is needed.",
    ),
    refused(
        "query is 3-D",
        graph(
            "kt = Transpose<perm: ints = [0, 1, 3, 2]>(k)  x = MatMul(q, kt)  z = Add(x, mask)  "
            f"{LAST}",
            query="4,S,8",
            mask="float[B,4,S,T] mask",
            result="B,4,S,8",
        ),
        f"Query, key and value of {OF_END} have the ranks 3, 4, 4; 4 is needed, [batch, heads, "
        "length, size].",
    ),
    refused(
        "types differ",
        graph(
            f"{PLAIN}  {LAST}".replace("half", "half64"),
            dtype="double",
            mask="double[B,1,S,T] mask",
            numbers="double half64 = {0.5}",
        ),
        f"Query, key and value of {OF_END} have the types DOUBLE, DOUBLE, DOUBLE; one of FLOAT, "
        "FLOAT16 and BFLOAT16 is needed.",
    ),
    refused(
        "softmax over the heads",
        graph(f"{PLAIN}  {LAST}".replace("axis: int = -1", "axis: int = 1")),
        "Softmax (node 'w') has axis=1; the last is needed.",
    ),
]


@pytest.mark.parametrize("case", [*CASES, *REFUSALS], ids=str)
def test_conformance(case: RuleCase) -> None:
    RuleConformance(attention_rules).check(case)


GROUPED_CASES = [
    RuleCase(
        "repeated heads",
        graph(repeat("k") + repeat("v") + "y = Attention(q, kr, vr, mask)", kv_heads=2),
        dims=DIMS,
        after={"Attention": 1, "Expand": 0, "Reshape": 0},
    ),
    RuleCase(
        "attributes are kept",
        graph(
            repeat("k")
            + repeat("v")
            + "y = Attention<scale: float = 0.2, softcap: float = 2.0, is_causal: int = 1>"
            "(q, kr, vr)",
            kv_heads=2,
            mask="float[1] o",
        ),
        dims={**DIMS, "S": 7},
        after={"Attention": 1, "Expand": 0},
    ),
    RuleCase(
        "only the key",
        graph(
            repeat("k") + "vr = Concat<axis: int = 1>(v, v)  y = Attention(q, kr, vr, mask)",
            kv_heads=2,
        ),
        applications=0,
        reasons=(
            "Attention (node 'y') has key heads 2 times and value heads 1 times; equal numbers "
            "are needed.",
        ),
        dims=DIMS,
    ),
    RuleCase(
        "tiled, not repeated",
        graph(
            "kr = Concat<axis: int = 1>(k, k)  vr = Concat<axis: int = 1>(v, v)  "
            "y = Attention(q, kr, vr, mask)",
            kv_heads=2,
        ),
        applications=0,
        dims=DIMS,
    ),
]


@pytest.mark.parametrize("case", GROUPED_CASES, ids=str)
def test_grouped_heads(case: RuleCase) -> None:
    RuleConformance(attention_rules).check(case)


def test_scale_and_softcap_are_exact() -> None:
    model = graph(
        f"{TURN}  x = MatMul(q, kt)  s = Mul(x, half)  i = Div(s, cap)  t = Tanh(i)  "
        f"c = Mul(t, cap)  z = Add(c, mask)  {LAST}"
    )()
    assert RuleConformance(attention_rules).apply(model) == 1
    node = model.graph[-1]
    assert node.attributes["scale"].as_float() == 0.5
    assert node.attributes["softcap"].as_float() == 3.0
    assert "softmax_precision" not in node.attributes
