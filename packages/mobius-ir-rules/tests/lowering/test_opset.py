"""LowerOpset: the same numbers at every older opset, or an error that names what is in the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.reference
import onnx_ir as ir
import pytest
from onnxscript.rewriter import rewrite

from mobius_ir_rules.functions import FUNCTIONS
from mobius_ir_rules.functions.attach import AttachFunctions
from mobius_ir_rules.functions.group_query_attention import (
    GROUP_QUERY_ATTENTION,
    GROUP_QUERY_ATTENTION_BODY,
)
from mobius_ir_rules.fusion.group_query_attention import group_query_attention_rules
from mobius_ir_rules.lowering.opset import LowerOpset, OpsetError
from mobius_ir_rules.passes import InferShapes, InlineFunctions
from mobius_ir_rules.testing import op_counts, random_inputs, run_model

OLDER = range(17, 24)
DIMS = {"B": 2, "S": 3, "P": 4, "T": 7, "M": 8}
POSITIONS = np.array([[4, 5, 6], [0, 1, 2]])

BLOCK = """
    <ir_version: 10, opset_import: ["" : 24]>
    g (float[B, S, 64] x, float[64] w, float[M, 4] c, float[M, 4] s, int64[B, S] p,
       bool[B, 1, S, S] m) => (float[B, S, 64] y, float[B, S, 1] top, float[B, S, 22] part) {
        n = RMSNormalization <epsilon = 1e-6> (x, w)
        q = RotaryEmbedding <num_heads = 8> (n, c, s, p)
        a = Attention <q_num_heads = 8, kv_num_heads = 8, softcap = 3.0> (q, n, n, m)
        r = Add (x, a)
        g0 = Gelu (r)
        g1 = Gelu <approximate = "tanh"> (r)
        g2 = Swish <alpha = 1.5> (r)
        last = Constant <value_ints = [-1]> ()
        e, f = Split <axis = -1, num_outputs = 2> (g0)
        h, part, rest = Split <axis = -1, num_outputs = 3> (g1)
        top = ReduceMax (g2, last)
        low = ReduceMin <keepdims = 0> (rest)
        d = Cast <to = 1, saturate = 1> (f)
        ef = Concat <axis = -1> (d, e)
        t = Add (ef, g2)
        y = Sub (t, low)
    }"""


def parse(text: str) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(text))


def versions(model: ir.Model) -> set[int]:
    """Return all versions of the standard domain that the model imports, anywhere."""
    graphs = [model.graph, *model.graph.subgraphs(), *model.functions.values()]
    return {graph.opset_imports[""] for graph in graphs if "" in graph.opset_imports}


def run_reference(model: ir.Model, feeds: Mapping[str, Any]) -> list[Any]:
    with np.errstate(all="ignore"):
        return list(onnx.reference.ReferenceEvaluator(ir.to_proto(model)).run(None, dict(feeds)))


def check_lowered(
    build: Callable[[], ir.Model],
    version: int,
    feeds: Mapping[str, Any],
    reference: bool = True,
    tolerance: float = 2e-5,
) -> ir.Model:
    """Lower and check: valid at the opset, the same numbers twice, a second run does nothing."""
    model = build()
    assert LowerOpset(version)(model).modified
    assert versions(model) == {version}
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    before, after = run_model(build(), feeds), run_model(model, feeds)
    assert list(before) == list(after)
    for name, value in before.items():
        assert value.dtype == after[name].dtype
        np.testing.assert_allclose(after[name], value, rtol=tolerance, atol=tolerance)
    if reference:
        for found, value in zip(run_reference(model, feeds), before.values(), strict=True):
            np.testing.assert_allclose(found, value, rtol=tolerance, atol=tolerance)
    assert not LowerOpset(version)(model).modified
    return model


@pytest.mark.parametrize("version", OLDER)
def test_a_block_of_everything(version: int) -> None:
    feeds = random_inputs(
        parse(BLOCK),
        DIMS,
        {"p": POSITIONS, "m": np.random.default_rng(2).random((2, 1, 3, 3)) < 0.7},
    )
    model = check_lowered(lambda: parse(BLOCK), version, feeds)
    counts = op_counts(model)
    assert counts["Attention"] == counts["RMSNormalization"] == int(version >= 23)
    assert counts["RotaryEmbedding"] == int(version >= 23)
    assert counts["Gelu"] == 2 * int(version >= 20)
    assert counts["Swish"] == 0


@pytest.mark.parametrize("version", [17, 20, 23])
@pytest.mark.parametrize(
    "settings", [{}, {"window": 3, "head_size": 32, "interleaved": 1}], ids=str
)
def test_a_decoder_with_its_mask_functions(
    decoder: Any, settings: dict[str, Any], version: int
) -> None:
    """Bodies of this package are made anew; a prompt and a step give the same."""
    block = decoder(layers=2, bias=True, **settings)
    model = check_lowered(block.build, version, block.prompt(), reference=False)
    for identifier, function in model.functions.items():
        assert function.opset_imports[""] == version
        assert identifier[:2] in FUNCTIONS
    first = run_model(model, block.prompt())
    step = block.inputs(np.ones((2, 8)), first, block.noise(2, 1, seed=5))
    before, after = run_model(block.build(), step), run_model(model, step)
    for name, value in before.items():
        np.testing.assert_allclose(after[name], value, rtol=2e-5, atol=2e-5)


TYPES = {"float": 1, "bool": 9, "bfloat16": 16}


def in_a_branch(inputs: str, body: str, output: str, source: int = 24) -> str:
    """Return a model with the body, which makes y, in a branch of an If."""
    other = f"e = Cast <to = {TYPES[output.split('[')[0]]}> ({inputs.split('] ')[1].split(',')[0]})"
    return f"""
        <ir_version: 10, opset_import: ["" : {source}]>
        g (bool flag, {inputs}) => ({output} out) {{
            out = If (flag) <
                then_branch = then_graph () => ({output} y) {{ {body} }},
                else_branch = else_graph () => ({output} e) {{ {other} }}>
        }}"""


@pytest.mark.parametrize("version", [17, 19, 23])
def test_subgraphs_are_lowered(version: int) -> None:
    head, body = BLOCK.split("=> (")[0].split("g (")[1], BLOCK.split(") {", 1)[1]
    text = in_a_branch(head.rsplit(")", 1)[0], body.rsplit("}", 1)[0], "float[B, S, 64]")
    given = {"p": POSITIONS, "m": np.ones((2, 1, 3, 3), np.bool_), "flag": np.array(True)}
    feeds = random_inputs(parse(text), DIMS, given)
    model = check_lowered(lambda: parse(text), version, feeds, reference=False)
    assert op_counts(model)["Attention"] == int(version >= 23)


FUNCTION = """
    <ir_version: 10, opset_import: ["" : 24, "own" : 1]>
    g (float[B, S, 64] x, float[64] w) => (float[B, S, 64] y) {
        t = own.Block <epsilon = 1e-3> (x, w)
        y = own.Block <epsilon = 1e-6> (t, w)
    }
    <domain: "own", opset_import: ["" : 24]>
    Block <epsilon> (x, w) => (y) { BODY }"""


def test_a_function_is_converted_as_it_is_where_that_needs_no_types() -> None:
    """Reductions and attributes need none; a function of someone else stays one."""
    body = (
        "eps = Constant <value_float: float = @epsilon> () "
        "a = Constant <value_ints = [-1]> () m = ReduceMean (x, a) "
        "i = Identity (m) z = Add (i, eps) y = Sub (x, z)"
    )

    def build() -> ir.Model:
        return parse(FUNCTION.replace("BODY", body))

    model = check_lowered(build, 17, random_inputs(build(), DIMS))
    assert list(model.functions) == [("own", "Block", "")]
    assert op_counts(model)["own::Block"] == 2


def test_a_function_is_inlined_where_its_operators_need_types() -> None:
    body = "n = RMSNormalization (x, w) y = Gelu (n)"

    def build() -> ir.Model:
        return parse(
            FUNCTION.replace("BODY", body)
            .replace("<epsilon = 1e-3>", "")
            .replace("<epsilon = 1e-6>", "")
            .replace("<epsilon>", "")
        )

    model = check_lowered(build, 17, random_inputs(build(), DIMS))
    assert not model.functions
    counts = op_counts(model)
    assert (counts["ReduceMean"], counts["Erf"]) == (2, 2)


@pytest.mark.parametrize("version", [17, 18, 22])
def test_bodies_of_this_package_are_those_of_the_opset(version: int) -> None:
    text = """
        <ir_version: 10, opset_import: ["" : 24, "com.microsoft" : 1]>
        g (float[B, S, 64] x, float[B, S, 64] r, float[64] w, float[64] b)
          => (float[B, S, 64] y, float[B, S, 64] z) {
            n, , , t = com.microsoft.SkipSimplifiedLayerNormalization <epsilon = 1e-6> (x, r, w)
            y = com.microsoft.BiasGelu (n, b)
            z = com.microsoft.QuickGelu <alpha = 1.5> (t)
        }"""

    def build() -> ir.Model:
        model = parse(text)
        AttachFunctions()(model)
        assert len(model.functions) == 3
        return model

    # The reference evaluator does not know the types in a body, which its Gelu needs.
    model = check_lowered(build, version, random_inputs(build(), DIMS), reference=version < 20)
    for (domain, name, _), function in model.functions.items():
        expected = FUNCTIONS[domain, name](version)
        assert [n.op_type for n in function] == [n.op_type for n in expected]


@pytest.mark.parametrize("inlined", [False, True], ids=["called", "inlined"])
def test_a_body_that_is_made_for_its_call_is_made_anew(decoder: Any, inlined: bool) -> None:
    """GroupQueryAttention: its body depends on the call; beside the kernel, and in its place."""
    block = decoder(layers=2)

    def build() -> ir.Model:
        model = rewrite(block.build(), group_query_attention_rules())
        AttachFunctions()(model)
        assert (*GROUP_QUERY_ATTENTION, "") in model.functions
        return model

    model = check_lowered(build, 17, block.prompt(), reference=False)
    call = next(node for node in model.graph if node.op_type == "GroupQueryAttention")
    expected = GROUP_QUERY_ATTENTION_BODY.for_call(call, 17)
    function = model.functions[*GROUP_QUERY_ATTENTION, ""]
    assert [node.op_type for node in function] == [node.op_type for node in expected]
    if inlined:
        InlineFunctions()(model)
        assert versions(model) == {17}
        onnx.checker.check_model(ir.to_proto(model), full_check=True)
        before, after = (run_model(m, block.prompt()) for m in (build(), model))
        for name, value in before.items():
            np.testing.assert_allclose(after[name], value, rtol=2e-5, atol=2e-5)


def test_a_function_that_only_has_the_name_of_one_of_this_package_keeps_its_body() -> None:
    text = """
        <ir_version: 10, opset_import: ["" : 24, "com.microsoft" : 1]>
        g (float[B] x) => (float[B] y) { y = com.microsoft.QuickGelu (x) }
        <domain: "com.microsoft", opset_import: ["" : 24]>
        QuickGelu (x) => (y) { t = Neg (x) y = Exp (t) }"""
    model = parse(text)
    assert LowerOpset(17)(model).modified
    (function,) = model.functions.values()
    assert [node.op_type for node in function] == ["Neg", "Exp"]
    assert versions(model) == {17}


def test_bfloat16_and_float16_stay_what_they_are() -> None:
    for name, dtype in (("bfloat16", ml_dtypes.bfloat16), ("float16", np.float16)):
        text = BLOCK.replace("float[", f"{name}[").replace(
            "to = 1", f"to = {16 if name[0] == 'b' else 10}"
        )
        model = parse(text)
        assert LowerOpset(17)(model).modified
        onnx.checker.check_model(ir.to_proto(model), full_check=True)
        mask = np.ones((2, 1, 3, 3), np.bool_)
        feeds = random_inputs(parse(text), DIMS, {"p": POSITIONS, "m": mask})
        wide = {key: v.astype(np.float32) if v.dtype == dtype else v for key, v in feeds.items()}
        expected = run_model(parse(BLOCK), wide)
        for found, value in zip(run_reference(model, feeds), expected.values(), strict=True):
            assert found.dtype == dtype
            np.testing.assert_allclose(found.astype(np.float32), value, rtol=0.1, atol=0.15)


def test_what_is_old_enough_is_left_alone() -> None:
    model = parse(
        BLOCK.replace('"" : 24', '"" : 17').split("n = RMS")[0] + "y = Neg (x) "
        "top = Neg (x) part = Neg (x) }"
    )
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    for version in (17, 20, 25):
        assert not LowerOpset(version)(model).modified
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("version", [16, 26])
def test_a_version_that_is_not_known_is_an_error(version: int) -> None:
    with pytest.raises(ValueError, match=f"version is {version}; one from 17 to 25 is needed"):
        LowerOpset(version)


def test_a_model_that_is_too_new_is_an_error() -> None:
    model = parse(
        '<ir_version: 13, opset_import: ["" : 27]> g (float[B] x) => (float[B] y) { y = Neg (x) }'
    )
    with pytest.raises(ValueError, match="The model is written for opset 27; at most 25 is needed"):
        LowerOpset(17)(model)


# Each: inputs, nodes that make y, its type, source, target, reason.
REFUSALS: dict[str, tuple[str, str, str, int, int, str]] = {
    "nonpad_kv_seqlen": (
        "float[B, S, 32] q, float[B, S, 16] k, float[B, S, 16] v, int64[B] n",
        "[a] y = Attention <q_num_heads = 4, kv_num_heads = 2> (q, k, v, , , , n)",
        "float[B, S, 32]",
        24,
        23,
        "Attention (node 'a') has the input nonpad_kv_seqlen; opset 23 has only the first 6.",
    ),
    "nonpad_kv_seqlen, decomposed": (
        "float[B, S, 32] q, float[B, S, 16] k, float[B, S, 16] v, int64[B] n",
        "[a] y = Attention <q_num_heads = 4, kv_num_heads = 2> (q, k, v, , , , n)",
        "float[B, S, 32]",
        24,
        17,
        "Attention has nonpad_kv_seqlen; none is needed.",
    ),
    "TensorScatter": (
        "float[B, 2, S, 8] x, float[B, 2, 1, 8] u, int64[B] i",
        "[a] y = TensorScatter (x, u, i)",
        "float[B, 2, S, 8]",
        24,
        23,
        "TensorScatter exists from opset 24 on, and nothing lowers it to opset 23.",
    ),
    "a window": (
        "float[B, S, 32] q, float[B, S, 16] k, float[B, S, 16] v",
        "[a] y = Attention <q_num_heads=4, kv_num_heads=2, is_causal=1, left_window_size=2> "
        "(q, k, v)",
        "float[B, S, 32]",
        25,
        24,
        "Attention (node 'a') has left_window_size = 2; opset 24 has no such attribute, only what "
        "it does by default.",
    ),
    "axes that are not constant": (
        "float[B, S, 32] x, int64[1] k",
        "[a] y = ReduceMean (x, k)",
        "float[P, Q, R]",
        24,
        17,
        "The axes of ReduceMean (node 'a') are the graph input 'k'; a constant that is not empty "
        "is needed, because they are an attribute before opset 18.",
    ),
    "a reduction of nothing": (
        "float[B, S, 32] x",
        "[a] y = ReduceMax <noop_with_empty_axes = 1> (x)",
        "float[B, S, 32]",
        24,
        17,
        "ReduceMax (node 'a') has noop_with_empty_axes and no axes; axes are needed before opset "
        "18.",
    ),
    "a boolean reduction": (
        "bool[B, S] x",
        "k = Constant <value_ints = [-1]> () [a] y = ReduceMax (x, k)",
        "bool[B, 1]",
        24,
        19,
        "ReduceMax (node 'a') has data of the type tensor(bool); opset 19 has no ReduceMax of it.",
    ),
    "a split of an unknown size": (
        "float[B, S] x",
        "[a] y, z = Split <num_outputs = 2, axis = 1> (x)",
        "float[B, P]",
        24,
        17,
        "Split (node 'a') splits an axis of the size unknown of the graph input 'x' in 2 parts; a "
        "known size that leaves something for each is needed before opset 18.",
    ),
    "a type": (
        "bfloat16[B, S] x",
        "[a] y = Sin (x)",
        "bfloat16[B, S]",
        24,
        21,
        "Sin (node 'a') has input of the type tensor(bfloat16); opset 21 has no Sin of it.",
    ),
    "a cast": (
        "float[B, S] x",
        "[a] y = Cast <to = 17> (x)",
        "float8e4m3fn[B, S]",
        24,
        18,
        "Cast (node 'a') has output of the type tensor(float8e4m3fn); opset 18 has no Cast of it.",
    ),
    "an attribute": (
        "float[1, 1, 4, 4] x, float[4] r",
        '[a] y = Resize <antialias = 1, mode = "linear"> (x, , r)',
        "float[P, Q, R, U]",
        24,
        17,
        "Resize (node 'a') has antialias = 1; opset 17 has no such attribute, only what it does "
        "by default.",
    ),
    "a value of an attribute": (
        "float[4] x, int64[2, 1] i, float[2] u",
        '[a] y = ScatterND <reduction = "max"> (x, i, u)',
        "float[4]",
        24,
        17,
        "ScatterND (node 'a') has reduction = max; opset 17 has not.",
    ),
    "wrapped padding": (
        "float[B, S] x, int64[4] p",
        '[a] y = Pad <mode = "wrap"> (x, p)',
        "float[P, Q]",
        24,
        18,
        "Pad (node 'a') has mode = wrap; opset 18 has not.",
    ),
    "axes of padding": (
        "float[B, S] x, int64[2] p, int64[1] k",
        "[a] y = Pad (x, p, , k)",
        "float[P, Q]",
        24,
        17,
        "Pad (node 'a') has the input axes; opset 17 has only the first 3.",
    ),
    "another definition": (
        "float[1, 1, 4, 4] x, float[1, 2, 2, 2] g",
        "[a] y = GridSample (x, g)",
        "float[P, Q, R, U]",
        24,
        19,
        "The definition of GridSample changed in opset 22; one that holds at opset 19 is needed.",
    ),
    "an unknown operator": (
        "float[B] x",
        "[a] y = Frobnicate (x)",
        "float[B]",
        24,
        17,
        "Frobnicate (node 'a') is no operator of opset 24.",
    ),
    "an operator that its rule refuses": (
        "float[B, S, H] x, float[16] w, float[B, S, 8] c",
        "[a] y = LayerNormalization (x, w) [b] z = RotaryEmbedding <num_heads = 2> (x, c, c)",
        "float[B, S, H]",
        24,
        17,
        "The last dimension of the input of RotaryEmbedding (node 'b'), the graph input 'x', is "
        "not known; it is needed.",
    ),
}


# An If has no float8 at that opset either, and would be refused too.
PLACES = [
    (name, inside)
    for name in REFUSALS
    for inside in (False, True)
    if name != "a cast" or not inside
]


@pytest.mark.parametrize(("name", "inside"), PLACES)
def test_refusals(name: str, inside: bool) -> None:
    """Case C078: in the graph and in a branch, with the model as it was."""
    inputs, body, output, source, target, reason = REFUSALS[name]
    text = f"""<ir_version: 10, opset_import: ["" : {source}]>
        g ({inputs}) => ({output} y) {{ {body} }}"""
    if inside:
        text = in_a_branch(inputs, body, output, source)
    model = parse(text)
    with pytest.raises(OpsetError) as raised:
        LowerOpset(target)(model)
    (refusal,) = raised.value.refusals
    assert refusal.reason == reason
    assert refusal.node == ("b" if "node 'b'" in reason else "a")
    assert str(raised.value) == (
        f"Cannot lower the model from opset {source} to {target}:\n"
        f"  {refusal.node} ({refusal.op_type}): {reason}"
    )
    assert structure(model) == structure(parse(text))


def structure(model: ir.Model) -> list[Any]:
    """Return all but the types of values in between, which may have been inferred."""
    nodes: list[Any] = [dict(model.opset_imports), len(model.functions)]
    for node in model.graph.all_nodes():
        names = [None if value is None else value.name for value in node.inputs]
        plain = {
            name: attribute.value
            for name, attribute in node.attributes.items()
            if attribute.type not in (ir.AttributeType.GRAPH, ir.AttributeType.TENSOR)
        }
        nodes.append([node.op_type, names, [value.name for value in node.outputs], plain])
    return nodes


def test_every_node_in_the_way_is_named() -> None:
    text = """
        <ir_version: 10, opset_import: ["" : 24]>
        g (bfloat16[B] x, float[B] z, int64[1] k) => (bfloat16[B] y, float[B] t) {
            [first] y = Sin (x)
            [second] t = ReduceMean (z, k)
        }"""
    with pytest.raises(OpsetError) as raised:
        LowerOpset(17)(parse(text))
    assert [refusal.node for refusal in raised.value.refusals] == ["first", "second"]


def test_a_function_that_cannot_be_lowered_is_an_error() -> None:
    body = "t = Mish (x) y = Mul (t, w)"
    text = (
        FUNCTION.replace("BODY", body)
        .replace("<epsilon = 1e-3>", "")
        .replace("<epsilon = 1e-6>", "")
        .replace("<epsilon>", "")
    )
    with pytest.raises(OpsetError, match="Mish exists from opset 18 on"):
        LowerOpset(17)(parse(text))


def test_types_are_inferred_where_the_model_has_none() -> None:
    model = parse(BLOCK)
    assert all(node.outputs[0].dtype is None for node in model.graph if node.op_type == "Gelu")
    assert LowerOpset(17)(model).modified
    InferShapes()(model)
    for node in model.graph:
        assert all(value.dtype is not None for value in node.outputs if value.name), node
