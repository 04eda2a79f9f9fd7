"""Body of `com.microsoft::CausalConvWithState`: a depthwise convolution over what came before.

    output, present_state = CausalConvWithState(input, weight, bias, past_state;
                                                activation, dilation, channels_last)

`input` is `[batch, channels, length]` (`[batch, length, channels]` with `channels_last`), `weight`
`[channels, 1, taps]`, `bias` `[channels]`. The states hold the `(taps - 1) * dilation` positions
before the input, in its layout; without `past_state` they are zeros. One spatial dimension, no
window of states, none of the extensions that only CUDA has.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder

from mobius_ir_rules.functions.calls import (
    CallBody,
    given_inputs,
    make_call_body,
    refuse_attributes,
    refuse_outputs,
    require_inputs,
)
from mobius_ir_rules.rule import refuse
from mobius_ir_rules.values import (
    MICROSOFT,
    describe_node,
    input_at,
    int_attribute,
    rank,
    static_dim,
    string_attribute,
)

CAUSAL_CONV_WITH_STATE = (MICROSOFT, "CausalConvWithState")

_INPUTS = ("input", "weight", "bias", "past_state")
_OUTPUTS = ("output", "present_state", "state_update")
_BFLOAT16_CONV = 22
"""First opset whose Conv takes bfloat16; before, the body's convolution is float32."""
_NEUTRAL = {
    "ndim": 1,
    "state_window": 0,
    "state_update_capacity": 0,
    "state_channels_last": -1,
    "state_length": 0,
    "input_channel_offset": 0,
    "input_channels": 0,
}


@dataclasses.dataclass(frozen=True)
class ConvForm:
    """What decides the nodes of the body. `outputs` is the number of those that are listed."""

    given: tuple[str, ...]
    outputs: int
    channels: int
    taps: int
    dilation: int
    activation: str
    channels_last: bool

    @property
    def state_length(self) -> int:
        """Number of positions in a state."""
        return (self.taps - 1) * self.dilation


def read_causal_conv_with_state(node: ir.Node) -> ConvForm:
    """Return the form of the call.

    Raises:
        RefusedError: If the body does not compute the call.
    """
    given = given_inputs(node, _INPUTS)
    require_inputs(node, given, ("input", "weight"))
    refuse_outputs(node, _OUTPUTS, ("state_update",))
    refuse_attributes(node, _NEUTRAL)
    weight = input_at(node, 1)
    channels, taps = static_dim(weight, 0), static_dim(weight, 2)
    if channels is None or taps is None:
        refuse(
            f"The weight of {describe_node(node)} has the shape "
            f"{None if weight is None else weight.shape}; [channels, 1, taps] of known sizes is "
            "needed.",
            node,
        )
    channels_last = bool(int_attribute(node, "channels_last", 0))
    if channels_last and rank(input_at(node, 0)) != 3:
        refuse(
            f"The input of {describe_node(node)} has rank {rank(input_at(node, 0))} with "
            "channels_last=1; rank 3 is needed.",
            node,
        )
    activation = string_attribute(node, "activation", "none")
    if activation not in ("none", "silu", "swish"):
        refuse(
            f"{describe_node(node)} has activation={activation!r}; one of none, silu and swish "
            "is needed.",
            node,
        )
    return ConvForm(
        given=given,
        outputs=min(len(node.outputs), 2),
        channels=channels,
        taps=taps,
        dilation=int_attribute(node, "dilation", 1),
        activation=activation,
        channels_last=channels_last,
    )


def build_causal_conv_with_state(form: ConvForm, opset_version: int) -> ir.Function:
    """Return the body of CausalConvWithState for the form and `opset_version`."""

    def body(op: OpBuilder, inputs: Mapping[str, ir.Value]) -> Any:
        def turn(value: Any) -> Any:
            """Exchange the two layouts, where the call has the other one."""
            return op.Transpose(value, perm=[0, 2, 1]) if form.channels_last else value

        x = turn(inputs["input"])
        if "past_state" in form.given:
            past = turn(inputs["past_state"])
        else:
            zero = op.CastLike(op.Constant(value_float=0.0), x)
            size = op.Constant(value_ints=[form.state_length])
            past = op.Expand(zero, op.Concat(op.Shape(x, end=2), size, axis=0))
        history = op.Concat(past, x, axis=2)
        parts = [history, *(inputs[name] for name in ("weight", "bias") if name in form.given)]
        if opset_version < _BFLOAT16_CONV:
            parts = [op.Cast(part, to=ir.DataType.FLOAT) for part in parts]
        output = op.Conv(
            *parts,
            group=form.channels,
            kernel_shape=[form.taps],
            dilations=[form.dilation],
        )
        if opset_version < _BFLOAT16_CONV:
            output = op.CastLike(output, x)
        if form.activation != "none":
            output = op.Mul(output, op.Sigmoid(output))
        if form.outputs == 1:
            return turn(output)
        length = op.Shape(history, start=2, end=3)
        start = op.Sub(length, op.Constant(value_ints=[form.state_length]))
        state = op.Slice(history, start, length, op.Constant(value_ints=[2]))
        return turn(output), turn(state)

    attributes = [
        ir.AttrString("activation", form.activation),
        ir.AttrInt64("dilation", form.dilation),
        ir.AttrInt64("channels_last", int(form.channels_last)),
        *(ir.AttrInt64(name, value) for name, value in _NEUTRAL.items()),
    ]
    return make_call_body(
        CAUSAL_CONV_WITH_STATE,
        _INPUTS,
        form.given,
        _OUTPUTS[: form.outputs],
        attributes,
        body,
        opset_version,
    )


CAUSAL_CONV_WITH_STATE_BODY = CallBody(read_causal_conv_with_state, build_causal_conv_with_state)
"""Row of the table of bodies."""
