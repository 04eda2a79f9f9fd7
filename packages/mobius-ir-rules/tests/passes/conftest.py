"""`apply`: a pass on a model, with everything that must hold for every pass checked around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from mobius_ir_rules.passes import check_model_invariants
from mobius_ir_rules.testing import run_model

Arrays = Mapping[str, np.ndarray]
Apply = Callable[..., ir.Model]


def _interface(model: ir.Model) -> list[tuple[Any, ...]]:
    return [
        (value.name, str(value.type), str(value.shape))
        for value in (*model.graph.inputs, *model.graph.outputs)
    ]


def _text(model: ir.Model) -> bytes:
    return bytes(ir.to_proto(model).SerializeToString(deterministic=True))


@pytest.fixture
def apply() -> Apply:
    """Run a pass on ONNX text or a model and return the model.

    Checks: inputs and outputs keep names, types and shapes; numbers on ONNX Runtime are bit-equal
    (if `inputs` are given); `modified` is true, and tells whether the model changed; a second run
    changes nothing; the invariants hold.
    """

    def run(
        step: ir.passes.PassBase,
        source: str | ir.Model,
        inputs: Arrays | None = None,
        *,
        modified: bool = True,
        valid: bool = True,
    ) -> ir.Model:
        model = ir.from_onnx_text(source) if isinstance(source, str) else source
        interface, before = _interface(model), _text(model)
        numbers = None if inputs is None else run_model(model, inputs)
        assert step(model).modified is modified
        assert (_text(model) != before) is modified
        assert _interface(model) == interface
        after = _text(model)
        assert step(model).modified is False
        assert _text(model) == after
        if valid:
            check_model_invariants(model)
        if numbers is not None and inputs is not None:
            for name, value in run_model(model, inputs).items():
                np.testing.assert_array_equal(value, numbers[name], strict=True)
        return model

    return run
