"""`SelectEarly`: what moves behind the choice of a row, and what does not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest

from mobius_ir_rules.passes import SelectEarly

Apply = Callable[..., ir.Model]
X = np.random.default_rng(0).integers(-4, 5, (2, 3, 4)).astype(np.float32)
H = np.random.default_rng(1).integers(-4, 5, (2, 3, 4)).astype(np.float32)
INDEX = np.array([[[2]], [[0]]], np.int64)
INPUTS = {"x": X, "h": H, "index": INDEX}


def graph(body: str, more: str = "") -> str:
    """Return a model with the text of its nodes, which ends in `y`, and a choice from that."""
    return f"""<ir_version: 10, opset_import: ["" : 24]>
    g (float[B, S, 4] x, float[B, S, 4] h, int64[B, 1, 1] index) => (float[B, 1, 4] z{more})
    <float[4, 4] w = {{1, 2, 0, 0, 0, 1, 0, 3, 1, 0, 1, 0, 2, 0, 0, 1}},
     float[4] b = {{1, 2, 3, 4}}, float[1, 4] row = {{2, 1, 2, 1}},
     float[1, 3, 4] table = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 8, 7, 6}}> {{
        {body}
        z = GatherND <batch_dims = 1> (y, index)
    }}"""


def inferred(text: str) -> ir.Model:
    """Return the model with the shapes that its builder would have inferred."""
    model = ir.from_onnx_text(text)
    for node in model.graph:
        for output in node.outputs:
            if output.shape is None:
                output.shape = ir.Shape(["B", "S", 4])
                output.type = ir.TensorType(ir.DataType.FLOAT)
    return model


def shapes(model: ir.Model) -> dict[str, list[str]]:
    return {
        f"{node.op_type} {node.outputs[0].name}": [str(dim) for dim in node.outputs[0].shape]
        for node in model.graph
    }


def test_everything_up_to_what_has_to_stay(apply: Apply) -> None:
    """A value that two of the nodes read is chosen from once."""
    model = apply(
        SelectEarly(),
        inferred(
            graph("""
                s = Softmax <axis = 1> (h)
                t = MatMul (s, w)
                a = Add (x, t)
                n = RMSNormalization <axis = -1> (a, b)
                m = MatMul (n, w)
                g = Sigmoid (m)
                u = Mul (m, g)
                k = Mul (u, row)
                y = Add (a, k)
            """)
        ),
    )
    chosen = shapes(model)
    assert chosen.pop("Softmax s") == ["B", "S", "4"]
    assert set(map(tuple, chosen.values())) == {("B", "1", "4")}
    assert [node.op_type for node in model.graph].count("GatherND") == 2
    assert {"GatherND s_selected", "GatherND x_selected"} <= chosen.keys()


def test_numbers_are_the_same(apply: Apply) -> None:
    body = "t = MatMul (h, w) a = Add (t, b) c = Clip (a) y = Sub (x, c)"
    apply(SelectEarly(), inferred(graph(body)), INPUTS)
    apply(SelectEarly(), inferred(graph("n = Neg (h) m = Mul (n, row) y = Add (m, b)")), INPUTS)


@pytest.mark.parametrize(
    ("body", "more"),
    [
        ("y = Softmax <axis = 1> (x)", ""),
        # Also read by what stays, and by who has the graph.
        ("y = Neg (x) r = ReduceSum (y)", ", float r"),
        ("y = Neg (x)", ", float[B, S, 4] y"),
        # Another number for each row.
        ("y = Add (x, table)", ""),
        ("y = LayerNormalization <axis = 1> (x, b)", ""),
        ("y = MatMul (x, square)", ""),
        ("y, mean = LayerNormalization (x, b)", ", float[B, S, 1] mean"),
        ("y = Expand (x, b)", ""),
    ],
)
def test_what_stays(apply: Apply, body: str, more: str) -> None:
    text = graph(body, more).replace(
        "int64[B, 1, 1] index", "int64[B, 1, 1] index, float[B, 4, 4] square"
    )
    model = inferred(text)
    apply(SelectEarly(), model, modified=False, valid=False)


@pytest.mark.parametrize(
    "choice",
    [
        "z = GatherND (y, index)",
        "z = GatherND <batch_dims = 1> (y, pairs)",
        "z = Gather <axis = 1> (y, index)",
    ],
)
def test_other_choices_stay(apply: Apply, choice: str) -> None:
    text = graph("y = Neg (x)").replace("z = GatherND <batch_dims = 1> (y, index)", choice)
    text = text.replace("index)", "index, int64[B, 1, 2] pairs)", 1)
    apply(SelectEarly(), inferred(text), modified=False, valid=False)


def test_a_batch_of_one_for_all_is_no_row(apply: Apply) -> None:
    """What is broadcast over the batch cannot be chosen from by batch."""
    text = graph("y = Add (x, h)").replace("float[B, S, 4] h", "float[1, S, 4] h")
    apply(SelectEarly(), inferred(text), modified=False)


def test_a_subgraph_that_reads_it_keeps_it(apply: Apply) -> None:
    text = graph(
        "y = Neg (x) r = If (c) <then_branch = t () => (float q) { q = ReduceSum (y) }, "
        "else_branch = e () => (float p) { p = ReduceMax (y) }>",
        ", float r",
    ).replace("index)", "index, bool c)", 1)
    apply(SelectEarly(), inferred(text), modified=False, valid=False)


def test_shapes_have_to_be_known(apply: Apply) -> None:
    apply(SelectEarly(), ir.from_onnx_text(graph("y = Neg (x)")), modified=False)
