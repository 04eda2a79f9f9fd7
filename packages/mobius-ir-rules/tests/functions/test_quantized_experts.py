"""The body of RoutedExperts with integers is the body with the floats that they stand for."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest

from mobius_ir_rules.block_quantization import BlockFormat, dequantize_rows, quantize_rows
from mobius_ir_rules.functions.routed_experts import (
    INPUTS,
    LAYERS,
    ROUTED_EXPERTS,
    ROUTED_EXPERTS_BODY,
)
from mobius_ir_rules.rule import RefusedError

Array = npt.NDArray[Any]
TOKENS, HIDDEN, INNER, EXPERTS, K = 7, 48, 32, 6, 2


def _case(
    dtype: Any, forms: dict[str, BlockFormat], *, bias: bool
) -> tuple[dict[str, Array], dict[str, Array], dict[str, int]]:
    """Return the inputs with integers, the same with floats, and attributes of the former."""
    random = np.random.default_rng(2)
    plain = {
        "tokens": random.standard_normal((TOKENS, HIDDEN)).astype(dtype),
        "chosen": np.argsort(random.standard_normal((TOKENS, EXPERTS)), axis=1)[:, :K],
        "share": random.uniform(0.1, 1.5, (TOKENS, K)).astype(np.float32),
    }
    if bias:
        plain["fc1_bias"] = random.standard_normal((EXPERTS, 2 * INNER)).astype(dtype)
        plain["fc2_bias"] = random.standard_normal((EXPERTS, HIDDEN)).astype(dtype)
    given, attributes = dict(plain), {}
    for layer, shape in (("fc1", (2 * INNER, HIDDEN)), ("fc2", (HIDDEN, INNER))):
        weight = (random.standard_normal((EXPERTS, *shape)) / shape[1] ** 0.5).astype(dtype)
        plain[layer] = given[layer] = weight
        if layer not in forms:
            continue
        form = forms[layer]
        rows = quantize_rows(weight.reshape(-1, shape[1]), form)
        plain[layer] = dequantize_rows(rows, form, shape[1]).reshape(weight.shape)
        stack = EXPERTS, shape[0], -1
        given[layer] = rows.packed.reshape(stack)
        given[f"{layer}_scales"] = rows.scales.reshape(stack)
        if rows.zero_points is not None:
            given[f"{layer}_zero_points"] = rows.zero_points.reshape(stack)
        attributes |= {f"{layer}_bits": form.bits, f"{layer}_block_size": form.block_size}
    return given, plain, attributes


FORMS = {
    "4 bits": dict.fromkeys(LAYERS, BlockFormat(4, 16, True)),
    "4 bits, zero points of an odd number of blocks": dict.fromkeys(
        LAYERS, BlockFormat(4, 16, False)
    ),
    "8 bits": dict.fromkeys(LAYERS, BlockFormat(8, 16, False)),
    "the first alone": {"fc1": BlockFormat(4, 16, True)},
    "each its own": {"fc1": BlockFormat(8, 16, True), "fc2": BlockFormat(4, 32, False)},
}


@pytest.mark.parametrize("forms", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize(
    ("opset", "dtype", "tolerance"),
    [(17, np.float32, 3e-6), (24, np.float32, 3e-6), (24, np.float16, 6e-3)],
)
def test_integers_are_the_floats_that_they_stand_for(
    run_body: Any, forms: dict[str, BlockFormat], opset: int, dtype: Any, tolerance: float
) -> None:
    given, plain, integers = _case(dtype, forms, bias=True)
    attributes = {"k": K, "activation_type": "swiglu", "swiglu_fusion": 2}
    shape = [np.empty((TOKENS, HIDDEN), dtype)]
    floats = [plain.get(name) for name in INPUTS]
    expected = run_body(ROUTED_EXPERTS, opset, floats, shape, kernel=False, **attributes)
    wanted = expected["inlined"][0].astype(np.float64)
    assert 1.0 < np.abs(wanted).max() < 50.0
    ours = [given.get(name) for name in INPUTS]
    results = run_body(ROUTED_EXPERTS, opset, ours, shape, kernel=False, **attributes, **integers)
    for who, (found,) in results.items():
        np.testing.assert_allclose(
            found.astype(np.float64), wanted, rtol=tolerance, atol=4 * tolerance, err_msg=who
        )


def _call(names: str, **attributes: Any) -> ir.Node:
    given = ["tokens", "chosen", "share", "fc1", "fc2", *names.split()]
    values = [ir.val(name) if name in given else None for name in INPUTS]
    return ir.node("RoutedExperts", values, {"k": K, **attributes}, domain="mobius.moe", name="n")


def test_all_experts_are_dequantized_nowhere() -> None:
    """Weights are picked as bytes; no other node reads the stacks."""
    node = _call("fc1_scales fc2_scales", fc1_bits=4, fc1_block_size=16, fc2_bits=8,
                 fc2_block_size=32)  # fmt: skip
    function = ROUTED_EXPERTS_BODY.for_call(node, 24)
    for name in ("fc1", "fc2", "fc1_scales", "fc2_scales"):
        (value,) = [value for value in function.inputs if value.name == name]
        readers = {user.op_type for user, _ in value.uses()}
        assert "Gather" in readers
        assert readers <= {"Gather", "Shape"}


def test_bfloat16() -> None:
    """The body names the type, so that no runtime need find out."""
    node = _call("fc1_scales", fc1_bits=4, fc1_block_size=16)
    tokens = node.inputs[0]
    assert tokens is not None
    tokens.type, tokens.shape = ir.TensorType(ir.DataType.BFLOAT16), ir.Shape([None, HIDDEN])
    function = ROUTED_EXPERTS_BODY.for_call(node, 24)
    assert "CastLike" not in {each.op_type for each in function.all_nodes()}
    assert ir.DataType.BFLOAT16.numpy() == ml_dtypes.bfloat16


@pytest.mark.parametrize(
    ("names", "attributes", "reason"),
    [
        (
            "fc1_scales",
            {"fc1_bits": 3, "fc1_block_size": 16},
            "has fc1_bits=3 and fc1_block_size=16; one of (2, 4, 8), and a power of two that is "
            "at least 16, are needed.",
        ),
        (
            "fc2_scales",
            {"fc2_bits": 4, "fc2_block_size": 24},
            "has fc2_bits=4 and fc2_block_size=24; one of (2, 4, 8), and a power of two that is "
            "at least 16, are needed.",
        ),
        (
            "fc2_zero_points",
            {"fc2_bits": 4, "fc2_block_size": 32},
            "has fc2_zero_points without fc2_scales; both or none are needed.",
        ),
    ],
)
def test_refusals(names: str, attributes: dict[str, Any], reason: str) -> None:
    with pytest.raises(RefusedError) as refused:
        ROUTED_EXPERTS_BODY.for_call(_call(names, **attributes), 24)
    assert refused.value.reason == f"mobius.moe::RoutedExperts (node 'n') {reason}"
