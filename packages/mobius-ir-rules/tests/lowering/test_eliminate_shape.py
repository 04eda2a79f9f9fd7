"""EliminateShape: what a declared shape states becomes constant, all else stays with its reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx
import onnx_ir as ir
import pytest

from mobius_ir_rules.lowering.eliminate_shape import eliminate_shape_rules
from mobius_ir_rules.passes import InferShapes
from mobius_ir_rules.testing import RuleCase, RuleConformance, op_counts

CONFORMANCE = RuleConformance(eliminate_shape_rules)
DIMS = {"B": 2}
X = "float[B, 8, 64] x"


def graph(body: str, output: str = "int64[N] y", x: str = X) -> Callable[[], ir.Model]:
    text = f"""
        <ir_version: 10, opset_import: ["" : 24]>
        g ({x}) => ({output}) {{ {body} }}"""

    def build() -> ir.Model:
        model = ir.from_proto(onnx.parser.parse_model(text))
        InferShapes()(model)  # The rewriter declares constants that are not.
        return model

    return build


I64 = "Constant <value_ints = {}> ()".format
INT = "Constant <value_int = {}> ()".format
READ = "[shape] d = Shape (x)"
NEEDED = "sizes that are known when the model is built are needed."
BATCH = f"Shape (node 'shape') reads the dimensions 0 ('B') of the graph input 'x'; {NEEDED}"

STATIC: dict[str, tuple[Callable[[], ir.Model], int]] = {
    "all sizes": (graph("y = Shape (x)", "int64[3] y", "float[2, 8, 64] x"), 1),
    "start": (graph("y = Shape <start = 1> (x)", "int64[2] y"), 1),
    "start and end": (graph("y = Shape <start = -2, end = -1> (x)", "int64[1] y"), 1),
    "none": (graph("y = Shape <start = 2, end = 1> (x)", "int64[0] y"), 1),
    "a scalar's": (graph("y = Shape (x)", "int64[0] y", "float x"), 1),
    "gathered": (graph(f"{READ} i = {INT(2)} y = Gather (d, i)", "int64 y"), 1),
    "gathered vector": (graph(f"{READ} i = {I64([-1, 1])} y = Gather (d, i)", "int64[2] y"), 1),
    "sliced": (
        graph(
            f"{READ} i = {I64([1])} j = {I64([9])} k = {I64([0])} y = Slice (d, i, j, k)",
            "int64[2] y",
        ),
        1,
    ),
    "squeezed": (graph("d = Shape <start = 1, end = 2> (x) y = Squeeze (d)", "int64 y"), 1),
    "gathered from a gathered one": (
        graph(
            f"{READ} i = {I64([0, 2])} j = {INT(1)} e = Gather (d, i) y = Gather (e, j)", "int64 y"
        ),
        1,
    ),
    "unsqueezed": (
        graph(
            f"{READ} i = {INT(1)} a = {I64([0])} e = Gather (d, i) y = Unsqueeze (e, a)",
            "int64[1] y",
        ),
        1,
    ),
}


@pytest.mark.parametrize("name", STATIC)
def test_known_sizes_become_constants(name: str) -> None:
    build, applications = STATIC[name]
    CONFORMANCE.check(RuleCase(name, build, applications, dims=DIMS, complete=True))


def reshape(body: str, shape: str = "s") -> Callable[[], ir.Model]:
    return graph(f"{body} [r] y = Reshape (x, {shape})", "float[P, Q, R, U] y")


BATCH_SIZE = f"z = {I64([0])} b = Gather (d, z)"
COPIED: dict[str, Callable[[], ir.Model]] = {
    "one size": reshape(f"{READ} {BATCH_SIZE} c = {I64([8, 4, 16])} s = Concat <axis = 0> (b, c)"),
    "in its place, with -1": reshape(
        f"{READ} {BATCH_SIZE} c = {I64([4, -1, 16])} s = Concat <axis = 0> (b, c)"
    ),
    "a scalar, unsqueezed": reshape(
        f"{READ} i = {INT(0)} e = Gather (d, i) a = {I64([0])} b = Unsqueeze (e, a) "
        f"c = {I64([4, 2, 64])} s = Concat <axis = 0> (b, c)"
    ),
    "two sizes, one known": reshape(
        f"{READ} i = {I64([0])} j = {I64([2])} k = {I64([0])} b = Slice (d, i, j, k) "
        f"c = {I64([4, 16])} s = Concat <axis = 0> (b, c)"
    ),
}


@pytest.mark.parametrize("name", COPIED)
def test_a_reshape_copies_its_own_sizes(name: str) -> None:
    model = COPIED[name]()
    before = model.graph.num_nodes()
    assert CONFORMANCE.apply(model) >= 1
    assert model.graph.num_nodes() < before
    case = RuleCase(name, COPIED[name], 1, (BATCH,), {"Shape": 0, "Concat": 0, "Reshape": 1}, DIMS)
    CONFORMANCE.check(case)


def test_an_empty_batch_stays_one() -> None:
    name = "one size"
    case = RuleCase(name, COPIED[name], 1, (BATCH,), dims={"B": 0})
    CONFORMANCE.check_numbers(case)


STAYS: dict[str, tuple[Callable[[], ir.Model], tuple[str, ...], Mapping[str, int]]] = {
    "an unknown size": (graph("[shape] y = Shape (x)"), (BATCH,), {"Shape": 1}),
    "unknown sizes without a name": (
        graph("[shape] y = Shape (x)", x="float[?, 8, ?] x"),
        (
            "Shape (node 'shape') reads the dimensions 0 (unnamed), 2 (unnamed) of the graph "
            f"input 'x'; {NEEDED}",
        ),
        {"Shape": 1},
    ),
    "an unknown rank": (
        graph("[shape] y = Shape (x)", x="float[] x"),
        (
            "Shape (node 'shape') reads the graph input 'x', of which not even the rank is known; "
            f"{NEEDED}",
        ),
        {"Shape": 1},
    ),
    "gathered, of an unknown size": (
        graph(f"{READ} i = {INT(0)} y = Gather (d, i)", "int64 y"),
        (BATCH,),
        {"Shape": 1, "Gather": 1},
    ),
    "a size at another index": (
        reshape(f"{READ} {BATCH_SIZE} c = {I64([8, 4, 16])} s = Concat <axis = 0> (c, b)"),
        (
            BATCH,
            "Size 3 of the result of Reshape (node 'r') is dimension 0 of the graph input 'x'; "
            "the size of its own input, the graph input 'x', at index 3 is needed.",
        ),
        {"Shape": 1, "Reshape": 1},
    ),
    "allowzero": (
        graph(
            f"{READ} {BATCH_SIZE} c = {I64([8, 4, 16])} s = Concat <axis = 0> (b, c) "
            "[r] y = Reshape <allowzero = 1> (x, s)",
            "float[P, Q, R, U] y",
        ),
        (BATCH,),
        {"Shape": 1, "Reshape": 1},
    ),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_is_not_known_stays(name: str) -> None:
    build, reasons, after = STAYS[name]
    compare = name != "an unknown rank"
    dims = {**DIMS, "None": 3}
    case = RuleCase(name, build, 0, reasons, after, dims, compare=compare)
    CONFORMANCE.check(case)


def test_a_size_of_another_value_is_refused() -> None:
    body = f"""
            [shape] d = Shape <start = 0, end = 1> (other) c = {I64([8, 64])}
            s = Concat <axis = 0> (d, c) [r] y = Reshape (x, s)"""
    reasons = (
        f"Shape (node 'shape') reads the dimensions 0 ('C') of the graph input 'other'; {NEEDED}",
        "Size 0 of the result of Reshape (node 'r') is dimension 0 of the graph input 'other'; "
        "the size of its own input, the graph input 'x', at index 0 is needed.",
    )
    case = RuleCase(
        "other",
        graph(body, "float[P, Q, R] y", f"{X}, float[C, 2] other"),
        0,
        reasons,
        {"Shape": 1},
        {"B": 2, "C": 2},
    )
    CONFORMANCE.check(case)


def test_a_shape_is_not_refused_where_only_known_sizes_are_picked() -> None:
    """Its node goes with the last reader, although one of its sizes is not known."""
    build = graph(
        f"{READ} i = {INT(1)} j = {I64([2])} a = Gather (d, i) b = Gather (d, j) y = Mul (a, b)"
    )
    CONFORMANCE.check(RuleCase("picked", build, 2, (), {"Shape": 0, "Gather": 0}, DIMS))


def test_an_unused_shape_is_no_candidate() -> None:
    build = graph("d = Shape (x) y = Shape <start = 1> (x)", "int64[2] y")
    model = build()
    assert CONFORMANCE.apply(model) == 1
    assert op_counts(model) == {"Constant": 1}
