"""UnpackQKV: numbers against the packed operator on ONNX Runtime's CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnxscript.rewriter import rewrite

from mobius_ir_rules.fusion.group_query_attention import group_query_attention_rules
from mobius_ir_rules.fusion.pack_qkv import pack_qkv_rules
from mobius_ir_rules.lowering.unpack_qkv import unpack_qkv_rules
from mobius_ir_rules.testing import RuleCase, RuleConformance

GQA = "com.microsoft::GroupQueryAttention"
CONFORMANCE = RuleConformance(unpack_qkv_rules)


def packed(block: Any, *, joined: bool) -> Callable[[], ir.Model]:
    """Return the builder of the packed block, its weights joined at run time or one each."""

    def build() -> ir.Model:
        model = rewrite(block.build(), group_query_attention_rules())
        model = rewrite(model, pack_qkv_rules())
        for node in list(model.graph):
            if node.op_type != "Concat" or joined:
                continue
            parts = [value.const_value for value in node.inputs if value is not None]
            axis = node.attributes["axis"].as_int()
            array = np.concatenate([part.numpy() for part in parts if part is not None], axis)
            output = node.outputs[0]
            weight = ir.Value(name=f"packed_{output.name}", type=output.type, shape=output.shape)
            weight.const_value = ir.tensor(array, name=weight.name)
            model.graph.register_initializer(weight)
            output.replace_all_uses_with(weight)
            model.graph.remove(node, safe=True)
        return model

    return build


@pytest.mark.parametrize("joined", [True, False])
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("plain", {}),
        ("bias", {"bias": True}),
        ("two layers, no rotary, window", {"layers": 2, "rotary": 0, "window": 3}),
        ("multi-head", {"kv_heads": 4}),
    ],
)
def test_unpacked(decoder: Any, name: str, settings: dict[str, Any], joined: bool) -> None:
    """Three products again; a weight that joins three parts gives the parts back."""
    block = decoder(**settings)
    layers = block.layers
    splits = 0 if joined else (2 if block.bias else 1)
    after = {GQA: layers, "MatMul": 4 * layers, "Split": splits * layers}
    if joined:
        after["Concat"] = 0
    build = packed(block, joined=joined)
    CONFORMANCE.check(RuleCase(name, build, layers, after=after, inputs=block.prompt()))
    model = build()
    CONFORMANCE.apply(model)
    node = next(node for node in model.graph if node.op_type == "GroupQueryAttention")
    query, key, value = node.inputs[:3]
    assert query is not None
    assert key is not None
    assert value is not None
    found = [[str(dim) for dim in tensor.shape or ()] for tensor in (query, key, value)]
    kv_width = str(block.kv_heads * 16)
    assert found == [["B", "S", "64"], ["B", "S", kv_width], ["B", "S", kv_width]]
    assert [str(tensor.dtype) for tensor in (query, key, value)] == ["FLOAT"] * 3


@pytest.mark.parametrize("reader", ["product", "weight"])
def test_split_of_the_value(decoder: Any, reader: str) -> None:
    """Where product or weight has another reader, the value is split: nothing is there twice."""
    block = decoder()

    def build() -> ir.Model:
        model = packed(block, joined=False)()
        node = next(node for node in model.graph if node.op_type == "GroupQueryAttention")
        product = node.inputs[0]
        assert product is not None
        maker = product.producer()
        assert maker is not None
        other = ir.Node("", "Neg", [product if reader == "product" else maker.inputs[1]])
        output = other.outputs[0]
        output.name, output.type = "other", product.type
        output.shape = other.inputs[0].shape if other.inputs[0] is not None else None
        model.graph.append(other)
        model.graph.outputs.append(output)
        return model

    after = {GQA: 1, "MatMul": 2, "Split": 1}
    CONFORMANCE.check(RuleCase(reader, build, after=after, inputs=block.prompt()))


def test_computed_value(decoder: Any) -> None:
    """A packed value that no projection makes is split."""
    block = decoder()

    def build() -> ir.Model:
        model = packed(block, joined=False)()
        node = next(node for node in model.graph if node.op_type == "GroupQueryAttention")
        product = node.inputs[0]
        tanh = ir.Node("", "Tanh", [product])
        assert product is not None
        tanh.outputs[0].type, tanh.outputs[0].shape = product.type, product.shape
        model.graph.insert_before(node, tanh)
        node.replace_input_with(0, tanh.outputs[0])
        return model

    after = {GQA: 1, "MatMul": 2, "Split": 1, "Tanh": 1}
    CONFORMANCE.check(RuleCase("computed", build, after=after, inputs=block.prompt()))


def test_unknown_width_is_refused(decoder: Any) -> None:
    """Without the width nobody knows where query ends."""

    def build() -> ir.Model:
        model = packed(decoder(), joined=False)()
        node = next(node for node in model.graph if node.op_type == "GroupQueryAttention")
        product = node.inputs[0]
        assert product is not None
        maker = product.producer()
        assert maker is not None
        assert maker.inputs[1] is not None
        product.shape = maker.inputs[1].shape = None
        return model

    reason = (
        f"The packed query, key and value of {GQA} (node 'attention0') are of unknown width for "
        "4 and twice 2 heads; a known multiple of the number of heads is needed."
    )
    CONFORMANCE.check(RuleCase("width", build, 0, (reason,), {GQA: 1}, compare=False))


def test_unpacked_already(decoder: Any) -> None:
    """An operator with key and value of its own is no candidate."""
    block = decoder()
    CONFORMANCE.check(
        RuleCase(
            "unpacked",
            lambda: rewrite(block.build(), group_query_attention_rules()),
            0,
            after={GQA: 1},
            inputs=block.prompt(),
        )
    )
