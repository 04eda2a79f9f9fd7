"""The bodies of SelectiveScan and GatedRecurrence against float64, for one token and for many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import onnxruntime
import pytest

from mobius_ir_rules.functions.attach import AttachFunctions
from mobius_ir_rules.functions.gated_recurrence import GATED_RECURRENCE
from mobius_ir_rules.functions.selective_scan import SELECTIVE_SCAN
from mobius_ir_rules.passes import InlineFunctions

Array = npt.NDArray[Any]
BATCH, CHANNELS, SIZE = 2, 5, 4


def scan_inputs(length: int) -> list[Array]:
    random = np.random.default_rng(0)

    def noise(*shape: int) -> Array:
        return random.standard_normal(shape).astype(np.float32)

    return [
        noise(BATCH, length, CHANNELS),
        np.abs(noise(BATCH, length, CHANNELS)),
        -np.abs(noise(CHANNELS, SIZE)),
        noise(BATCH, length, SIZE),
        noise(BATCH, length, SIZE),
        noise(BATCH, CHANNELS, SIZE),
    ]


def scan(inputs: list[Array]) -> list[Array]:
    """Token by token, in float64."""
    x, step, decay, write, read, state = (array.astype(np.float64) for array in inputs)
    outputs = []
    for token in range(x.shape[1]):
        time = step[:, token, :, None]
        state = np.exp(time * decay) * state
        state = state + time * x[:, token, :, None] * write[:, token, None, :]
        outputs.append((state * read[:, token, None, :]).sum(axis=-1))
    return [np.stack(outputs, axis=1).astype(np.float32), state.astype(np.float32)]


def gated_inputs(length: int) -> list[Array]:
    x, step, *_, state = scan_inputs(length)
    return [x, -step, state[..., 0]]


def gated(inputs: list[Array]) -> list[Array]:
    """Token by token, in float64."""
    x, decay, state = (array.astype(np.float64) for array in inputs)
    outputs = []
    for token in range(x.shape[1]):
        state = np.exp(decay[:, token]) * state + x[:, token]
        outputs.append(state)
    return [np.stack(outputs, axis=1).astype(np.float32), state.astype(np.float32)]


Case = tuple[tuple[str, str], Callable[[int], list[Array]], Callable[[list[Array]], list[Array]]]
CASES: list[Case] = [
    (SELECTIVE_SCAN, scan_inputs, scan),
    (GATED_RECURRENCE, gated_inputs, gated),
]


@pytest.mark.parametrize("opset", [17, 24])
@pytest.mark.parametrize("length", [1, 6])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0][1])
def test_body(run_body: Any, case: Case, opset: int, length: int) -> None:
    identifier, make_inputs, compute = case
    inputs = make_inputs(length)
    expected = compute(inputs)
    for who, found in run_body(identifier, opset, inputs, expected, kernel=False).items():
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-6, atol=2e-6, err_msg=who)


def test_no_time_changes_nothing(run_body: Any) -> None:
    """A token of padding, whatever it holds, leaves the state as it is, bit for bit."""
    padded = scan_inputs(6)
    padded[1][:, 3:] = 0
    alone = [array[:, :3] if array.shape[1] == 6 else array for array in padded]
    states = [
        run_body(SELECTIVE_SCAN, 24, inputs, scan(inputs), kernel=False)["inlined"][1]
        for inputs in (padded, alone)
    ]
    np.testing.assert_array_equal(*states)


def test_one_session_serves_all_lengths() -> None:
    """C126: one token, then many, then one again, in one session with memory patterns on."""
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["": 24, "mobius.recurrence": 1]>
        g (float[B,S,5] x, float[B,S,5] step, float[5,4] decay, float[B,S,4] write,
           float[B,S,4] read, float[B,5,4] past) => (float[B,S,5] y, float[B,5,4] present) {
            y, present = mobius.recurrence.SelectiveScan (x, step, decay, write, read, past)
        }"""
    )
    assert not AttachFunctions()(model).refusals
    InlineFunctions()(model)
    session = onnxruntime.InferenceSession(
        ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = ["x", "step", "decay", "write", "read", "past"]
    for length in (1, 128, 1, 5):
        inputs = scan_inputs(length)
        found = session.run(None, dict(zip(names, inputs, strict=True)))
        for one, other in zip(found, scan(inputs), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
