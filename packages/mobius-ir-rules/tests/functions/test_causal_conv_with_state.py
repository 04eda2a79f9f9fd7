"""The body of CausalConvWithState is ONNX Runtime's kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest

from mobius_ir_rules.functions.causal_conv_with_state import (
    CAUSAL_CONV_WITH_STATE,
    CAUSAL_CONV_WITH_STATE_BODY,
)
from mobius_ir_rules.rule import RefusedError

Array = npt.NDArray[Any]
BATCH, CHANNELS, TAPS = 2, 6, 4


def _conv(x: Array, weight: Array, bias: Array | None, past: Array, dilation: int) -> Array:
    history = np.concatenate([past, x], axis=2)
    length = x.shape[2]
    result = np.zeros_like(x)
    for tap in range(weight.shape[2]):
        start = tap * dilation
        result += weight[:, 0, tap, None] * history[:, :, start : start + length]
    return result if bias is None else result + bias[:, None]


@pytest.mark.parametrize("opset", [17, 24])
@pytest.mark.parametrize("length", [1, 5])
@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("channels_last", [0, 1])
@pytest.mark.parametrize(
    "attributes", [{}, {"activation": "silu"}, {"activation": "swish", "dilation": 3}]
)
def test_body_equals_kernel(
    run_body: Any,
    opset: int,
    length: int,
    past: bool,
    bias: bool,
    channels_last: int,
    attributes: dict[str, Any],
) -> None:
    """One token and several, with and without what came before, both layouts, dilated taps."""
    random = np.random.default_rng(0)
    dilation = attributes.get("dilation", 1)
    states = (TAPS - 1) * dilation
    x = random.standard_normal((BATCH, CHANNELS, length)).astype(np.float32)
    weight = random.standard_normal((CHANNELS, 1, TAPS)).astype(np.float32)
    added = random.standard_normal(CHANNELS).astype(np.float32) if bias else None
    before = random.standard_normal((BATCH, CHANNELS, states)).astype(np.float32)
    if not past:
        before = np.zeros_like(before)
    expected = _conv(x, weight, added, before, dilation)
    if attributes.get("activation"):
        expected = expected / (1.0 + np.exp(-expected))
    state = np.concatenate([before, x], axis=2)[:, :, -states:]

    def layout(value: Array) -> Array:
        return np.ascontiguousarray(value.transpose(0, 2, 1)) if channels_last else value

    results = run_body(
        CAUSAL_CONV_WITH_STATE,
        opset,
        [layout(x), weight, added, layout(before) if past else None],
        [layout(expected), layout(state)],
        channels_last=channels_last,
        **attributes,
    )
    for who, (output, present) in results.items():
        np.testing.assert_allclose(output, layout(expected), rtol=2e-6, atol=2e-6, err_msg=who)
        np.testing.assert_array_equal(present, layout(state), err_msg=who)


def _node(shape: tuple[int | None, ...], **attributes: Any) -> ir.Node:
    values = [ir.val("x"), ir.val("w")]
    values[1].shape = ir.Shape(shape)
    return ir.node(
        "CausalConvWithState",
        values,
        attributes,
        domain="com.microsoft",
        name="n",
        num_outputs=2,
    )


@pytest.mark.parametrize(
    ("shape", "attributes", "reason"),
    [
        (
            (None, 1, 4),
            {},
            "The weight of com.microsoft::CausalConvWithState (node 'n') has the shape "
            "[None,1,4]; [channels, 1, taps] of known sizes is needed.",
        ),
        (
            (6, 1, 4),
            {"ndim": 2},
            "com.microsoft::CausalConvWithState (node 'n') has ndim=2; the body computes the "
            "operator with 1 only.",
        ),
        (
            (6, 1, 4),
            {"state_window": 2},
            "com.microsoft::CausalConvWithState (node 'n') has state_window=2; the body computes "
            "the operator with 0 only.",
        ),
        (
            (6, 1, 4),
            {"activation": "relu"},
            "com.microsoft::CausalConvWithState (node 'n') has activation='relu'; one of none, "
            "silu and swish is needed.",
        ),
        (
            (6, 1, 4),
            {"channels_last": 1},
            "The input of com.microsoft::CausalConvWithState (node 'n') has rank None with "
            "channels_last=1; rank 3 is needed.",
        ),
    ],
)
def test_refusals(shape: tuple[int | None, ...], attributes: dict[str, Any], reason: str) -> None:
    """What the body would not compute has no body."""
    with pytest.raises(RefusedError) as refused:
        CAUSAL_CONV_WITH_STATE_BODY.for_call(_node(shape, **attributes), 24)
    assert refused.value.reason == reason
