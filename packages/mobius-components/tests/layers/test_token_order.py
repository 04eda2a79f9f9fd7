"""`TokenOrder` against plain loops: padding on either side, in holes, and rows of nothing else."""

import numpy as np
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator
from onnxscript import GraphBuilder

from mobius_components.layers.token_order import TokenOrder

TAPS = 3
MASK = np.array(
    [
        [1, 1, 1, 1, 1, 1, 1, 1],
        [0, 0, 0, 1, 1, 1, 1, 1],
        [1, 1, 1, 1, 1, 0, 0, 0],
        [1, 1, 0, 0, 1, 0, 1, 0],
        [0, 0, 0, 0, 0, 0, 0, 1],
        [1, 1, 1, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 0, 0],
    ]
)


def order_of(mask, queries):
    """Return what `TokenOrder` makes of random tokens and states, and these."""
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 24}, name="test")
    builder = GraphBuilder(graph)
    op = builder.op
    given = builder.input("attention_mask", ir.DataType.INT64, ["batch", "total"])
    positions = builder.input("position_ids", ir.DataType.INT64, ["batch", "queries"])
    x = builder.input("x", ir.DataType.FLOAT, ["batch", "queries", 2])
    past = builder.input("past", ir.DataType.FLOAT, ["batch", 2, TAPS])
    order = TokenOrder(op, given, positions)
    front = order.to_front(op, x)
    front.shape = x.shape
    history = op.Concat(past, op.Transpose(front, perm=[0, 2, 1]), axis=2)
    graph.outputs.extend(
        [
            front,
            order.restore(op, front),
            order.positions_to_front(op, positions),
            order.weight(op),
            order.last(op, history, 2, TAPS),
        ]
    )
    model = ir.to_proto(ir.Model(graph, ir_version=10))
    random = np.random.default_rng(5)
    feed = {
        "attention_mask": mask,
        "position_ids": random.integers(0, 99, (len(mask), queries)),
        "x": random.standard_normal((len(mask), queries, 2)).astype(np.float32),
        "past": random.standard_normal((len(mask), 2, TAPS)).astype(np.float32),
    }
    return feed, ReferenceEvaluator(model).run(None, feed)


@pytest.mark.parametrize("queries", [8, 5, 2, 1])
def test_real_tokens_come_first_and_the_state_ends_with_them(queries):
    feed, (front, restored, positions, weight, last) = order_of(MASK, queries)
    np.testing.assert_array_equal(restored, feed["x"])
    for row, mask in enumerate(MASK[:, -queries:]):
        real, padding = np.flatnonzero(mask == 1), np.flatnonzero(mask == 0)
        order = [*real, *padding]
        np.testing.assert_array_equal(front[row], feed["x"][row, order])
        np.testing.assert_array_equal(positions[row], feed["position_ids"][row, order])
        np.testing.assert_array_equal(weight[row, :, 0], [1] * len(real) + [0] * len(padding))
        # A row of padding alone keeps its state.
        seen = np.concatenate([feed["past"][row], feed["x"][row, real].T], axis=1)
        np.testing.assert_array_equal(last[row], seen[:, -TAPS:])
