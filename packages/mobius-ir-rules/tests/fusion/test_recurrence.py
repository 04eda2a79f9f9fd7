"""RecurrenceFusion: both recurrences, in f32, with and without their outputs; and refusals."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest

from mobius_ir_rules.functions.attach import AttachFunctions
from mobius_ir_rules.fusion.recurrence import recurrence_rules
from mobius_ir_rules.testing import RuleCase, RuleConformance

ATTENTION = "com.microsoft::LinearAttention"
SCAN = "mobius.recurrence::SelectiveScan"
RECURRENCE = "mobius.recurrence::GatedRecurrence"
DIMS = {"B": 2, "S": 5}
SCAN_TYPES = (
    "float[B,S,6] x, float[B,S,6] step, float[6,4] decay, float[B,S,4] write, float[B,S,4] read, "
    "float[B,6,4] past"
)
SCAN_CALL = "y, present = mobius.recurrence.SelectiveScan (x, step, decay, write, read, past)"
GATED_TYPES = "float[B,S,6] x, float[B,S,6] decay, float[B,6] past"
GATED_CALL = "y, present = mobius.recurrence.GatedRecurrence (x, decay, past)"
BOTH_OF_SCAN = "float[B,S,6] y, float[B,6,4] present"
BOTH = "float[B,S,6] y, float[B,6] present"


def graph(types: str, call: str, outputs: str) -> Callable[[], ir.Model]:
    def build() -> ir.Model:
        model = ir.from_onnx_text(
            '<ir_version: 10, opset_import: ["": 24, "com.microsoft": 1, "mobius.recurrence": 1]>'
            f"g ({types}) => ({outputs}) {{ {call} }}"
        )
        model.graph[-1].name = "scan"
        # The result has no schema that would tell its type.
        for value in model.graph[-1].outputs:
            value.type = ir.TensorType(ir.DataType.FLOAT)
        AttachFunctions()(model)
        return model

    return build


def inputs(**shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    arrays = {name: random.standard_normal(shape) for name, shape in shapes.items()}
    # Time steps are positive and decays are not.
    arrays["decay"] = -np.abs(arrays["decay"])
    if "step" in arrays:
        arrays["step"] = np.abs(arrays["step"])
    return {name: array.astype(np.float32) for name, array in arrays.items()}


SCAN_INPUTS = inputs(
    x=(2, 5, 6), step=(2, 5, 6), decay=(6, 4), write=(2, 5, 4), read=(2, 5, 4), past=(2, 6, 4)
)
GATED_INPUTS = inputs(x=(2, 5, 6), decay=(2, 5, 6), past=(2, 6))
CASES = [
    RuleCase(
        "scan",
        graph(SCAN_TYPES, SCAN_CALL, BOTH_OF_SCAN),
        inputs=SCAN_INPUTS,
        after={ATTENTION: 1, SCAN: 0, "Mul": 2, "Reshape": 2, "Unsqueeze": 3, "Squeeze": 1},
        complete=True,
    ),
    RuleCase(
        "scan without its state",
        graph(SCAN_TYPES, SCAN_CALL.replace("y, present", 'y, ""'), "float[B,S,6] y"),
        inputs=SCAN_INPUTS,
        after={ATTENTION: 1, SCAN: 0, "Squeeze": 0},
        compare=False,
    ),
    RuleCase(
        "recurrence",
        graph(GATED_TYPES, GATED_CALL, BOTH),
        inputs=GATED_INPUTS,
        after={
            **{ATTENTION: 1, RECURRENCE: 0, "Slice": 1, "Clip": 1},
            **{"Unsqueeze": 1, "Squeeze": 1},
        },
        complete=True,
    ),
    RuleCase(
        "half precision",
        graph(GATED_TYPES.replace("float[", "float16["), GATED_CALL, BOTH),
        applications=0,
        reasons=(
            f"The inputs of {RECURRENCE} (node 'scan') have the types FLOAT16; FLOAT is needed.",
        ),
        compare=False,
    ),
    RuleCase(
        "unknown number of channels",
        graph(GATED_TYPES.replace("S,6] x", "S,D] x"), GATED_CALL, BOTH),
        applications=0,
        reasons=(
            f"The number of channels of {RECURRENCE} (node 'scan'), the last axis of 'x', is not "
            "known; a static one is needed.",
        ),
        compare=False,
    ),
    RuleCase(
        "unknown size of the state",
        graph(SCAN_TYPES.replace("float[6,4]", "float[6,N]"), SCAN_CALL, BOTH_OF_SCAN),
        applications=0,
        reasons=(
            f"The size of a channel's state of {SCAN} (node 'scan'), the last axis of 'decay', is "
            "not known; a static one is needed.",
        ),
        compare=False,
    ),
    RuleCase(
        "missing input",
        graph(GATED_TYPES, GATED_CALL.replace(", past)", ")"), BOTH),
        applications=0,
        reasons=(f"{RECURRENCE} (node 'scan') has 2 inputs; 3 are needed.",),
        compare=False,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_conformance(case: RuleCase) -> None:
    RuleConformance(recurrence_rules).check(case)
