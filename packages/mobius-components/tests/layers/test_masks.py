"""ALiBi against its published forms, on positions far beyond what bfloat16 can count."""

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator
from onnxscript import GraphBuilder

from mobius_components.layers.masks import alibi_bias, alibi_slopes


def bias_of(mask, heads, **options):
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 24}, name="test")
    builder = GraphBuilder(graph)
    value = builder.input("mask", ir.DataType.INT64, ["batch", "total"])
    output = alibi_bias(builder.op, value, heads, ir.DataType.FLOAT, **options)
    graph.outputs.append(output)
    model = ir.to_proto(ir.Model(graph, ir_version=10))
    return ReferenceEvaluator(model).run(None, {"mask": mask})[0]


@pytest.mark.parametrize("heads", [4, 6, 8, 12, 71])
@pytest.mark.parametrize("bias_max", [8.0, 16.0])
def test_slopes_are_every_second_of_the_next_power_first(heads, bias_max):
    """Source: `build_mpt_alibi_tensor` of `transformers`."""
    power = 2 ** int(np.ceil(np.log2(heads)))
    slopes = 2.0 ** -(np.arange(1, power + 1) * bias_max / power)
    if power != heads:
        slopes = np.concatenate([slopes[1::2], slopes[::2]])[:heads]
    np.testing.assert_allclose(alibi_slopes(heads, bias_max), slopes, rtol=1e-12)


def test_padding_is_not_counted():
    bias = bias_of(np.array([[0, 0, 1, 1, 1]]), 4)
    np.testing.assert_array_equal(bias[0, 0, 0, 2:] / bias[0, 0, 0, 3], [0, 1, 2])


def test_rounded_to_bfloat16_as_falcon_is():
    """Source: `build_alibi_tensor` of `modeling_falcon` in `transformers`."""
    heads, length, scale = 12, 3000, 0.125
    ours = bias_of(np.ones((1, length), np.int64), heads, bfloat16=True, scale=scale)
    slopes = np.asarray(alibi_slopes(heads), np.float32).astype(ml_dtypes.bfloat16)
    positions = np.arange(length).astype(np.float32).astype(ml_dtypes.bfloat16)
    product = slopes.astype(np.float32)[:, None] * positions.astype(np.float32)
    expected = product.astype(ml_dtypes.bfloat16).astype(np.float32) * np.float32(scale)
    np.testing.assert_array_equal(ours[0, :, 0], expected)
    assert not np.array_equal(ours, bias_of(np.ones((1, length), np.int64), heads, scale=scale))
