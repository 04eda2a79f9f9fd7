"""PackQKV: numbers against the unpacked operator on ONNX Runtime's CPU, and every refusal."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnxscript.rewriter import rewrite

from mobius_ir_rules.fusion.group_query_attention import group_query_attention_rules
from mobius_ir_rules.fusion.pack_qkv import pack_qkv_rules
from mobius_ir_rules.testing import RuleCase, RuleConformance, op_counts, run_model

GQA = "com.microsoft::GroupQueryAttention"
CONFORMANCE = RuleConformance(pack_qkv_rules)


def fused(block: Any) -> Callable[[], ir.Model]:
    """Return the builder of the block with GroupQueryAttention in it."""
    return lambda: rewrite(block.build(), group_query_attention_rules())


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("plain", {}),
        ("bias", {"bias": True}),
        ("window, interleaved", {"window": 3, "interleaved": 1}),
        ("no rotary", {"rotary": 0}),
        ("three layers", {"layers": 3}),
        ("multi-head", {"kv_heads": 4}),
    ],
)
def test_packed(decoder: Any, name: str, settings: dict[str, Any]) -> None:
    """One product a layer is left of three, with the same numbers."""
    block = decoder(**settings)
    layers = block.layers
    joined = 2 if block.bias else 1
    after = {GQA: layers, "MatMul": 2 * layers, "Concat": joined * layers}
    case = RuleCase(name, fused(block), layers, after=after, inputs=block.prompt())
    CONFORMANCE.check(case)


@pytest.mark.parametrize("dtype", ["float", "float16", "bfloat16"])
def test_types_are_declared(decoder: Any, dtype: str) -> None:
    """C017: every value that packing makes declares the type of the weights and its shape."""
    block = decoder(bias=True, dtype=dtype)
    model = fused(block)()
    assert CONFORMANCE.apply(model) == 1
    made = [node for node in model.graph if node.op_type in ("Concat", "MatMul", "Add")]
    joined = [node for node in made if node.op_type == "Concat"]
    assert [list(node.outputs[0].shape or ()) for node in joined] == [[64, 128], [128]]
    expected = {"float": "FLOAT", "float16": "FLOAT16", "bfloat16": "BFLOAT16"}[dtype]
    for node in made:
        assert str(node.outputs[0].dtype) == expected, node
        assert node.outputs[0].shape is not None
    packed = next(node for node in model.graph if node.op_type == "GroupQueryAttention").inputs
    assert packed[0] is not None
    assert packed[0].shape is not None
    assert [str(dim) for dim in packed[0].shape] == ["B", "S", "128"]
    assert packed[1] is None
    assert packed[2] is None


def with_linear(block: Any, *, fused_matmul: bool) -> Callable[[], ir.Model]:
    """Return a builder whose weights are `[out, in]`, read through Transpose or FusedMatMul."""

    def build() -> ir.Model:
        model = fused(block)()
        for node in list(model.graph):
            weight = node.inputs[1] if node.op_type == "MatMul" else None
            if weight is None or weight.const_value is None or node.inputs[0] is None:
                continue
            flat = np.ascontiguousarray(weight.const_value.numpy().T)
            weight.const_value = ir.tensor(flat, name=weight.name)
            weight.shape = ir.Shape(flat.shape)
            if fused_matmul:
                new = ir.Node(
                    "com.microsoft",
                    "FusedMatMul",
                    node.inputs,
                    [ir.AttrInt64("transB", 1)],
                    name=node.name,
                )
                new.outputs[0].type, new.outputs[0].shape = (
                    ir.TensorType(ir.DataType.FLOAT),
                    (node.outputs[0].shape),
                )
                model.graph.insert_after(node, new)
                node.outputs[0].replace_all_uses_with(new.outputs[0])
                model.graph.remove(node, safe=True)
            else:
                transpose = ir.Node("", "Transpose", [weight], [ir.AttrInt64s("perm", [1, 0])])
                transpose.outputs[0].type = weight.type
                transpose.outputs[0].shape = ir.Shape(flat.T.shape)
                model.graph.insert_before(node, transpose)
                node.replace_input_with(1, transpose.outputs[0])
        return model

    return build


def test_transposed_weights(decoder: Any) -> None:
    """A linear layer as components write it: MatMul(x, Transpose(weight))."""
    block = decoder(bias=True)
    build = with_linear(block, fused_matmul=False)
    after = {"Transpose": 4, "MatMul": 2, "Concat": 2}
    CONFORMANCE.check(RuleCase("transpose", build, after=after, inputs=block.prompt()))


def test_fused_matmul(decoder: Any) -> None:
    """Weights of FusedMatMul <transB = 1> join along their rows."""
    block = decoder(bias=True)
    build = with_linear(block, fused_matmul=True)
    after = {"com.microsoft::FusedMatMul": 2, "Concat": 2}
    CONFORMANCE.check(RuleCase("FusedMatMul", build, after=after, inputs=block.prompt()))


def test_weights_without_data(decoder: Any) -> None:
    """A model whose weights are not loaded yet is packed all the same."""
    model = fused(decoder())()
    for value in model.graph.initializers.values():
        value.const_value = None
    assert CONFORMANCE.apply(model) == 1
    assert op_counts(model)["MatMul"] == 2


def test_a_padded_batch(decoder: Any, rows_alone: Any, padded_batch: Any) -> None:
    """C002: packed, each row of a padded batch is what it is alone."""
    block = decoder(bias=True, window=3, layers=2)
    model = fused(block)()
    x = block.noise(2, 9 + 3)
    alone = rows_alone(block, block.build(), x, [9, 5], 3)
    assert CONFORMANCE.apply(model) == 2
    for found, expected in zip(padded_batch(block, model, x, [9, 5], 3), alone, strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


NEED = "a MatMul with a weight, with or without a 1-D bias added, is needed, because packed values"
NEED += " go into GroupQueryAttention as they are."
ATTENTION = "com.microsoft::GroupQueryAttention (node 'attention0')"


def _norm(text: str) -> str:
    scale = ", float[1] w_norm) =>"
    return text.replace(") =>", scale, 1).replace(
        "q0 = MatMul(x, w_q0)", "p0 = MatMul(x, w_q0)\n[norm] q0 = Mul(p0, w_norm)"
    )


def _another_reader(text: str) -> str:
    return text.replace("Add(x, o0)", "Sum(x, o0, q0)")


def _tied(text: str) -> str:
    return text.replace("v0 = MatMul(x, w_v0)", "[mm_v] v0 = MatMul(x, w_k0)").replace(
        "k0 = MatMul", "[mm_k] k0 = MatMul"
    )


def _other_value(text: str) -> str:
    return text.replace("v0 = MatMul(x, w_v0)", "[neg] z = Neg(x)\n[mm_v] v0 = MatMul(z, w_v0)")


def _one_bias(text: str) -> str:
    return text.replace(") =>", ", float[32] w_bv) =>", 1).replace(
        "v0 = MatMul(x, w_v0)", "p0 = MatMul(x, w_v0)\nv0 = Add(p0, w_bv)"
    )


def _short_bias(text: str) -> str:
    return text.replace("float[32] w_bv0", "float[1] w_bv0").replace("v0 = Add", "[add] v0 = Add")


def _computed(text: str) -> str:
    return text.replace("v0 = MatMul(x, w_v0)", "[neg] nw = Neg(w_v0)\n[mm_v] v0 = MatMul(x, nw)")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "norm": (
        {"edit": _norm},
        f"The query of {ATTENTION} is produced by Mul (node 'norm'); {NEED}",
    ),
    "rotary in front": (
        {"rotary": 8},
        f"The query of {ATTENTION} is produced by RotaryEmbedding (node 'rotary_q0'); {NEED}",
    ),
    "another reader": (
        {"edit": lambda text: _another_reader(text).replace("q0 = MatMul", "[mm] q0 = MatMul", 1)},
        f"The query projection of {ATTENTION}, MatMul (node 'mm'), has another reader, or is an "
        "output, or is in another graph; one that only the attention reads is needed, because "
        "the packed product takes its place.",
    ),
    "tied": (
        {"edit": _tied},
        "The weight of the key projection, MatMul (node 'mm_k'), has another reader: it is the "
        "initializer 'w_k0'; a weight of its own is needed, because packing would store the "
        "shared one twice.",
    ),
    "another value": (
        {"edit": _other_value},
        f"The query projection of {ATTENTION} multiplies a value that is the graph input 'x' and "
        "the value projection one that is produced by Neg (node 'neg'); the same value is needed.",
    ),
    "one bias": (
        {"edit": _one_bias},
        f"The query projection of {ATTENTION} has no bias and the value projection has one; a "
        "bias on all or none is needed.",
    ),
    "bias that broadcasts": (
        {"bias": True, "edit": _short_bias},
        "The bias of the value projection, Add (node 'add'), has the shape [1]; [32] is needed.",
    ),
    "computed weight": (
        {"edit": _computed},
        "The value projection, MatMul (node 'mm_v'), multiplies by a value that is produced by "
        "Neg (node 'neg'); a 2-D initializer, or the transpose of one, is needed.",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(decoder: Any, name: str) -> None:
    """C041 and others: the reason is exact and the graph is untouched."""
    settings, reason = REFUSED[name]
    block = decoder(**settings)
    case = RuleCase(name, fused(block), 0, (reason,), after={GQA: 1}, inputs=block.prompt())
    CONFORMANCE.check(case)


def test_packed_already(decoder: Any) -> None:
    """A packed operator is no candidate: nothing is reported."""
    model = fused(decoder())()
    CONFORMANCE.apply(model)
    packed = ir.to_proto(model)
    CONFORMANCE.check(
        RuleCase("packed", lambda: ir.from_proto(packed), 0, (), inputs=decoder().prompt())
    )


def test_without_the_trailing_inputs(decoder: Any) -> None:
    """C101: an operator that omits key alone is refused, not crashed on."""
    model = fused(decoder(rotary=0))()
    node = next(node for node in model.graph if node.op_type == "GroupQueryAttention")
    node.replace_input_with(1, None)
    proto = ir.to_proto(model)
    reason = f"The key of {ATTENTION} is absent; {NEED}"
    CONFORMANCE.check(RuleCase("no key", lambda: ir.from_proto(proto), 0, (reason,), compare=False))


def test_interface_keeps_its_names(decoder: Any) -> None:
    """C058: the names of inputs and outputs survive, and the model still runs."""
    block = dataclasses.replace(decoder(), layers=2)
    model = fused(block)()
    names = [value.name for value in (*model.graph.inputs, *model.graph.outputs)]
    CONFORMANCE.apply(model)
    assert [value.name for value in (*model.graph.inputs, *model.graph.outputs)] == names
    assert set(run_model(model, block.prompt())) == {value.name for value in model.graph.outputs}
