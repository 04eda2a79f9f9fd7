"""`run_body`: one call of a custom operator, computed in four independent ways."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.inliner
import onnx.reference
import onnx.shape_inference
import onnx_ir as ir
import onnx_ir.passes.common as common_passes
import onnxruntime
import pytest

from mobius_ir_rules.functions import FUNCTIONS
from mobius_ir_rules.functions.attach import AttachFunctions
from mobius_ir_rules.functions.calls import CallBody

Array = npt.NDArray[Any]
Results = dict[str, list[Array]]
RunBody = Callable[..., Results]


def _run_ort(model: ir.Model, inputs: Sequence[Array | None]) -> list[Array]:
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, _feeds(inputs)))


def _feeds(inputs: Sequence[Array | None]) -> dict[str, Array]:
    return {f"in{index}": array for index, array in enumerate(inputs) if array is not None}


def _body(model: ir.Model, identifier: tuple[str, str], opset: int) -> ir.Function:
    """Return the body in the table for the one call in the model."""
    row = FUNCTIONS[identifier]
    return row.for_call(model.graph[0], opset) if isinstance(row, CallBody) else row(opset)


def _model(
    domain: str,
    name: str,
    opset: int,
    inputs: Sequence[Array | None],
    outputs: Sequence[Array],
    attributes: Mapping[str, Any],
) -> ir.Model:
    arguments = [
        None
        if array is None
        else ir.val(f"in{index}", ir.DataType.from_numpy(array.dtype), array.shape)
        for index, array in enumerate(inputs)
    ]
    graph_inputs = [value for value in arguments if value is not None]
    node = ir.node(name, arguments, attributes, domain=domain, num_outputs=len(outputs))
    for index, (value, array) in enumerate(zip(node.outputs, outputs, strict=True)):
        value.name = f"out{index}"
        value.type = ir.TensorType(ir.DataType.from_numpy(array.dtype))
        value.shape = ir.Shape(array.shape)
    graph = ir.Graph(
        graph_inputs,
        node.outputs,
        nodes=[node],
        opset_imports={"": opset, domain: 1},
        name="call",
    )
    return ir.Model(graph, ir_version=10)


def _with_body(model: ir.Model, function: ir.Function) -> ir.Model:
    model.functions[function.identifier()] = function
    return model


def run_body(
    identifier: tuple[str, str],
    opset: int,
    inputs: Sequence[Array | None],
    expected: Sequence[Array],
    kernel: bool = True,
    inline_for_reference: bool = False,
    ops: Sequence[type[Any]] = (),
    **attributes: Any,
) -> Results:
    """Return the outputs by who computed them.

    `kernel`: ONNX Runtime's own kernel. `body`: its function expansion, the operator renamed so
    that it has no kernel. `inlined`: the body expanded by onnx-ir, then ONNX Runtime.
    `reference`: ONNX's reference evaluator, which expands the body that `AttachFunctions` gave;
    `inline_for_reference` has ONNX's own inliner do it, for operators that the evaluator knows
    only with types. `ops` replaces operators that the evaluator gets wrong.
    """
    domain, name = identifier
    inputs = list(inputs)
    while inputs[-1] is None:
        inputs.pop()

    def call(domain: str, name: str) -> ir.Model:
        return _model(domain, name, opset, inputs, expected, attributes)

    results: Results = {}
    if kernel:
        results["kernel"] = _run_ort(call(domain, name), inputs)
    function = _body(call(domain, name), identifier, opset)
    renamed = ir.Function(
        "unknown.domain", name, graph=function.graph.clone(), attributes=function.attributes
    )
    results["body"] = _run_ort(_with_body(call("unknown.domain", name), renamed), inputs)

    inlined = call(domain, name)
    _with_body(inlined, _body(inlined, identifier, opset))
    common_passes.InlinePass()(inlined)
    common_passes.RemoveUnusedOpsetsPass()(inlined)
    assert {node.domain for node in inlined.graph.all_nodes()} == {""}
    assert set(inlined.opset_imports) == {""}
    results["inlined"] = _run_ort(inlined, inputs)

    complete = call(domain, name)
    assert not AttachFunctions()(complete).refusals
    proto = ir.to_proto(complete)
    if inline_for_reference:
        proto = onnx.shape_inference.infer_shapes(onnx.inliner.inline_local_functions(proto))
    evaluator = onnx.reference.ReferenceEvaluator(proto, new_ops=list(ops))
    with np.errstate(all="ignore"):
        results["reference"] = list(evaluator.run(None, _feeds(inputs)))
    return results


@pytest.fixture(name="run_body")
def _run_body() -> RunBody:
    return run_body
