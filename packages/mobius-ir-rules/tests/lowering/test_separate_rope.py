"""SeparateRoPE: numbers against GroupQueryAttention's own rotation on ONNX Runtime's CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnxscript.rewriter import rewrite

from mobius_ir_rules.fusion.group_query_attention import group_query_attention_rules
from mobius_ir_rules.fusion.pack_qkv import pack_qkv_rules
from mobius_ir_rules.lowering.separate_rope import separate_rope_rules
from mobius_ir_rules.lowering.unpack_qkv import unpack_qkv_rules
from mobius_ir_rules.passes import EliminateCommonSubexpressions
from mobius_ir_rules.testing import RuleCase, RuleConformance, op_counts, run_model

GQA = "com.microsoft::GroupQueryAttention"
ROPE = {"com.microsoft": "com.microsoft::RotaryEmbedding", "": "RotaryEmbedding"}
NODE = f"{GQA} (node 'attention0')"
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "partial": {"head_size": 32},
    "interleaved": {"interleaved": 1},
    "partial interleaved, two layers": {"head_size": 32, "interleaved": 1, "layers": 2},
    "window, softcap, scale": {
        "window": 3,
        "attributes": ", softcap: float = 3.0, scale: float = 0.4",
    },
}


def rotating(block: Any, *, packed: bool = False) -> Callable[[], ir.Model]:
    """Return the builder of the block with rotary inside GroupQueryAttention."""

    def build() -> ir.Model:
        model = rewrite(block.build(), group_query_attention_rules())
        return rewrite(model, pack_qkv_rules()) if packed else model

    return build


def conformance(domain: str) -> RuleConformance:
    """Return the checker of the rule that makes the domain's RotaryEmbedding."""
    return RuleConformance(lambda: separate_rope_rules(domain=domain))


@pytest.mark.parametrize("domain", ["com.microsoft", ""])
@pytest.mark.parametrize("name", SETTINGS)
def test_prompt(decoder: Any, name: str, domain: str) -> None:
    """C005, C081, C102: the same numbers, cache included."""
    block = decoder(**SETTINGS[name])
    after = {GQA: block.layers, ROPE[domain]: 2 * block.layers}
    build = rotating(block)
    case = RuleCase(name, build, block.layers, after=after, inputs=block.prompt(3))
    conformance(domain).check(case)
    model = build()
    conformance(domain).apply(model)
    for node in model.graph:
        if node.op_type == "GroupQueryAttention":
            assert not {"do_rotary", "rotary_interleaved"} & set(node.attributes)
            assert all(value is None for value in node.inputs[7:])


@pytest.mark.parametrize("domain", ["com.microsoft", ""])
@pytest.mark.parametrize("name", SETTINGS)
def test_padded_batch(
    decoder: Any, padded_batch: Any, rows_alone: Any, name: str, domain: str
) -> None:
    """C002, C082: prompt and 3 steps of a batch padded on the right, against rotary inside.

    The rows run alone, unfused, are the second reference.
    """
    block = decoder(**SETTINGS[name])
    x = block.noise(2, 9 + 3)
    inside = padded_batch(block, rotating(block)(), x, [9, 5], 3)
    alone = rows_alone(block, block.build(), x, [9, 5], 3)
    model = rotating(block)()
    assert conformance(domain).apply(model) == block.layers
    outside = padded_batch(block, model, x, [9, 5], 3)
    for found, expected, lone in zip(outside, inside, alone, strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)
        np.testing.assert_allclose(found, lone, rtol=2e-5, atol=2e-5)


def test_continuation(decoder: Any) -> None:
    """A second chunk of a prompt starts at the position total - S, as inside the operator."""
    block = decoder(layers=2)
    x = block.noise(1, 11)
    results = []
    for rules in ([], separate_rope_rules()):
        model = rewrite(rotating(block)(), rules)
        first = run_model(model, block.inputs(np.ones((1, 6)), None, x[:, :6]))
        second = run_model(model, block.inputs(np.ones((1, 11)), first, x[:, 6:]))
        results.append(np.concatenate([first["y"], second["y"]], 1))
    np.testing.assert_allclose(results[1], results[0], rtol=2e-5, atol=2e-5)
    whole = run_model(block.build(), block.inputs(np.ones((1, 11)), None, x))["y"]
    np.testing.assert_allclose(results[1], whole, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("first", ["SeparateRoPE", "UnpackQKV"])
@pytest.mark.parametrize("bias", [False, True])
def test_packed(decoder: Any, first: str, bias: bool) -> None:
    """A packed operator is unpacked on the way; the order of the two rules does not matter."""
    block = decoder(bias=bias, layers=2)
    build = rotating(block, packed=True)
    stages = [separate_rope_rules(), unpack_qkv_rules()]
    if first == "UnpackQKV":
        stages.reverse()

    def rules_once() -> ir.Model:
        return rewrite(build(), stages[0])

    model = rewrite(rules_once(), stages[1])
    counts = op_counts(model)
    found = (counts[GQA], counts[ROPE["com.microsoft"]], counts["MatMul"], counts["Concat"])
    assert found == (2, 4, 2 * 4, 0)
    expected = run_model(build(), block.prompt())
    for name, value in run_model(model, block.prompt()).items():
        np.testing.assert_allclose(value, expected[name], rtol=2e-5, atol=2e-5)


def test_packed_conformance(decoder: Any) -> None:
    """All of the contract for a packed operator too."""
    block = decoder()
    after = {GQA: 1, "MatMul": 4, ROPE["com.microsoft"]: 2, "Concat": 0, "Split": 0}
    build = rotating(block, packed=True)
    conformance("com.microsoft").check(
        RuleCase("packed", build, after=after, inputs=block.prompt())
    )


def test_positions_are_made_once(decoder: Any) -> None:
    """The positions of all layers are one expression, which elimination makes one."""
    block = decoder(layers=3)
    model = rewrite(rotating(block)(), separate_rope_rules())
    assert op_counts(model)["Range"] == 3
    EliminateCommonSubexpressions()(model)
    counts = op_counts(model)
    assert (counts["Range"], counts["Max"], counts[ROPE["com.microsoft"]]) == (1, 1, 6)
    expected = run_model(block.build(), block.prompt())["y"]
    np.testing.assert_allclose(run_model(model, block.prompt())["y"], expected, atol=2e-5)


def test_unnamed_sequence_length(decoder: Any) -> None:
    """Where no input has the dimension, the query itself is measured."""
    block = decoder(layers=2)

    def build() -> ir.Model:
        model = rotating(block)()
        for node in model.graph:
            value = node.outputs[0]
            if node.op_type == "MatMul" and value.shape is not None:
                value.shape = ir.Shape([None, None, value.shape[2]])
        return model

    after = {GQA: 2, ROPE["com.microsoft"]: 4, "Range": 2}
    case = RuleCase("unnamed", build, 2, after=after, inputs=block.prompt())
    conformance("com.microsoft").check(case)


def test_position_ids_are_used(decoder: Any) -> None:
    """Positions in slot 9 are what rotates, and slot 9 is blank afterwards."""
    block = decoder()

    def build() -> ir.Model:
        model = rotating(block)()
        old = next(node for node in model.graph if node.op_type == "GroupQueryAttention")
        positions = next(value for value in model.graph.inputs if value.name == "position_ids")
        new = ir.Node(
            old.domain,
            old.op_type,
            [*old.inputs, positions],
            list(old.attributes.values()),
            num_outputs=3,
            name=old.name,
        )
        model.graph.insert_after(old, new)
        for before, after in zip(old.outputs, new.outputs, strict=True):
            after.name, after.type, after.shape = before.name, before.type, before.shape
            before.replace_all_uses_with(after, replace_graph_outputs=True)
        model.graph.remove(old, safe=True)
        return model

    after = {GQA: 1, ROPE["com.microsoft"]: 2, "Range": 0}
    conformance("com.microsoft").check(
        RuleCase("position_ids", build, after=after, inputs=block.prompt())
    )


def test_rotary_outside_is_no_candidate(decoder: Any) -> None:
    """Without do_rotary there is nothing to do and nothing to report."""
    block = decoder(rotary=8)
    case = RuleCase("outside", rotating(block), 0, after={GQA: 1}, inputs=block.prompt())
    conformance("com.microsoft").check(case)


def _extended(block: Any, slot: int) -> Callable[[], ir.Model]:
    """Return a builder that puts a weight or the sequence lengths into a later slot."""

    def build() -> ir.Model:
        model = rotating(block)()
        old = next(node for node in model.graph if node.op_type == "GroupQueryAttention")
        extra = old.inputs[5] if slot == 16 else model.graph.initializers["w_o0"]
        inputs = [*old.inputs, *[None] * (slot - len(old.inputs)), extra]
        attributes = list(old.attributes.values())
        new = ir.Node(old.domain, old.op_type, inputs, attributes, num_outputs=3, name=old.name)
        model.graph.insert_after(old, new)
        for before, after in zip(old.outputs, new.outputs, strict=True):
            after.name, after.type, after.shape = before.name, before.type, before.shape
            before.replace_all_uses_with(after, replace_graph_outputs=True)
        model.graph.remove(old, safe=True)
        return model

    return build


@pytest.mark.parametrize(
    ("slot", "role"), [(14, "q_norm_weight"), (15, "k_norm_weight"), (16, "query_seqlens")]
)
def test_refused_for_what_the_operator_does_before_rotating(
    decoder: Any, slot: int, role: str
) -> None:
    """A norm inside the operator comes before rotation; lengths of chunks move positions."""
    reason = (
        f"{NODE} has the input {role}; none is needed, because it changes what is rotated or where."
    )
    build = _extended(decoder(), slot)
    conformance("").check(RuleCase(role, build, 0, (reason,), {GQA: 1}, compare=False))


def test_refused_for_tables_of_unknown_width(decoder: Any) -> None:
    """The width of rotation is that of the tables: unknown, it is no proof."""

    def build() -> ir.Model:
        model = rotating(decoder())()
        model.graph.initializers["w_cos"].shape = None
        return model

    reason = (
        f"The tables of {NODE} are the initializer 'w_cos' and the initializer 'w_sin', of "
        "unknown or unequal width; 2-D tables of one known width are needed."
    )
    conformance("").check(RuleCase("width", build, 0, (reason,), compare=False, nested=False))


def test_refused_for_an_unknown_head_size(decoder: Any) -> None:
    """Full or partial rotation is a question of the head size."""

    def build() -> ir.Model:
        model = rotating(decoder())()
        for node in model.graph:
            if node.op_type == "MatMul":
                node.outputs[0].shape = None
        return model

    reason = f"The head size of {NODE} is unknown; query or key of known width is needed."
    conformance("").check(RuleCase("head size", build, 0, (reason,), compare=False))


def test_unknown_domain() -> None:
    """Only two domains have the operator."""
    with pytest.raises(ValueError, match=r"domain is 'x'; '' or 'com\.microsoft' is needed\."):
        separate_rope_rules(domain="x")
