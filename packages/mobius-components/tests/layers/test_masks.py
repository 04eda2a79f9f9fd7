"""Chunks; ALiBi against its published forms, beyond what bfloat16 can count."""

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator
from onnxscript import GraphBuilder

from mobius_components.layers.masks import alibi_bias, alibi_slopes, decoder_mask


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


def mask_of(attention_mask, queries, **limits):
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 24, "mobius.mask": 1}, name="test")
    builder = GraphBuilder(graph)
    given = builder.input("attention_mask", ir.DataType.INT64, ["batch", "total"])
    positions = builder.input("position_ids", ir.DataType.INT64, ["batch", "queries"])
    graph.outputs.append(decoder_mask(builder.op, given, positions, **limits))
    functions = list(builder.functions.values())
    model = ir.to_proto(ir.Model(graph, ir_version=10, functions=functions))
    feed = {
        "attention_mask": attention_mask,
        "position_ids": np.zeros((len(attention_mask), queries), np.int64),
    }
    return ReferenceEvaluator(model).run(None, feed)[0]


MASK = np.array([[1] * 9, [0, 0, 1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 1, 1, 1]])


@pytest.mark.parametrize("queries", [9, 3])
def test_chunks_are_those_of_the_row_alone(queries):
    """Tokens see those of their own chunk, counted from the first real token of the row."""
    chunk = 4
    found = mask_of(MASK, queries, chunk=chunk)
    assert found.shape == (3, 1, queries, 9)
    for row, mask in enumerate(MASK):
        real = np.flatnonzero(mask)
        alone = np.arange(len(real))
        same = alone[:, None] // chunk == alone // chunk
        expected = same & (alone[:, None] >= alone)
        asked = real >= 9 - queries
        seen = found[row, 0][real[asked] - (9 - queries)]
        np.testing.assert_array_equal(seen[:, real], expected[asked])
        assert not seen[:, mask == 0].any()
    # No row is empty, whatever a padding token would see.
    assert found.any(axis=-1).all()


def test_windows_and_chunks_differ():
    window, chunk = mask_of(MASK, 9, window=4), mask_of(MASK, 9, chunk=4)
    assert window.sum() > chunk.sum()
    assert (window | chunk <= mask_of(MASK, 9)).all()
