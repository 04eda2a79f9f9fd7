"""What must hold of a foreign graph: `check(model, ep, dtype, role)` -> an `Outcome`, or a failure.

Numbers are those of ONNX Runtime's CPU provider with its own optimisations off. Where that has no
kernel for the result, the result must be a valid model.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import warnings
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnxscript.rewriter import RewriteRule

import mobius
from mobius.dtypes import parse_dtype
from mobius.op_support import runs
from mobius.optimizer import run_stages, with_raised_opset
from mobius.pipeline import plan_for
from mobius.roles import parse_role
from mobius.stage import Phase, Stage, Target
from mobius.stage_pass import RuleGroup
from mobius_ir_rules.fusion.silu import quick_gelu_rules
from mobius_ir_rules.passes import (
    EliminateCommonSubexpressions,
    InferShapes,
    InvariantError,
    RemoveUnused,
    ShapeInferenceError,
    check_model_invariants,
)

EPS = ("default", "cpu", "cuda", "dml", "mlx", "onnx-standard", "trt-rtx", "webgpu")

REFUSALS = (InvariantError, ShapeInferenceError)
"""How a whole model is refused; the message says why."""

FROM_PRIMITIVES: Mapping[Callable[[], Sequence[RewriteRule]], Callable[[Target], bool]] = {
    quick_gelu_rules: lambda target: runs(target, "com.microsoft", "QuickGelu"),
}
"""Rules that the pipeline leaves to the runtimes, and the targets that they are for."""

TOLERANCES = {"f32": 1e-5, "f16": 1e-2}
"""Largest difference, relative to the largest number of the output (at least 1)."""

_NO_KERNEL = ("Could not find an implementation", "NOT_IMPLEMENTED")

Arrays = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What happened to a graph.

    Attributes:
        applied: Number of rewrites by stage or rule factory.
        refused: Number of candidates that stayed.
        error: Why the whole model was refused, "" where it was not.
        compared: Whether the numbers before and after were compared.
    """

    applied: collections.Counter[str]
    refused: int = 0
    error: str = ""
    compared: bool = False


class Reference:
    """A model as it came, inputs for it, and what it gives; results are compared once each.

    Attributes:
        data: The model's bytes.
        inputs: Values of the graph inputs.
        expected: The outputs; `None` where the model itself does not run, or gives other numbers
            each time.
    """

    def __init__(self, data: bytes, inputs: Arrays | None = None) -> None:
        """Run the model twice."""
        self.data = data
        self.inputs: Arrays = inputs if inputs is not None else random_inputs(data)
        self.expected = run(data, self.inputs)
        if self.expected is not None and _differences(self.expected, run(data, self.inputs), 0.0):
            self.expected = None
        self._verdicts: dict[bytes, bool] = {}

    def require_equal(self, data: bytes, tolerance: float, where: str) -> bool:
        """Compare the numbers of another model; return whether they could be."""
        if self.expected is None:
            return False
        key = hashlib.sha256(data).digest()
        if key not in self._verdicts:
            found = run(data, self.inputs)
            if found is not None:
                problems = _differences(self.expected, found, tolerance)
                assert not problems, f"{where}: {problems}"
            self._verdicts[key] = found is not None
        return self._verdicts[key]


def check(
    reference: Reference,
    ep: str,
    dtype: str,
    role: str,
    *,
    primitives: bool = True,
    again: bool = False,
    tolerance: float | None = None,
) -> Outcome:
    """Optimise the model and require that it computes the same, by the same interface.

    Args:
        reference: The model as it came.
        ep: Name of the execution provider.
        dtype: Type that the stages are chosen for.
        role: What the model is for.
        primitives: Whether to apply the rules that start from primitives first.
        again: Whether optimising the result must change no node.
        tolerance: Replaces the one of `TOLERANCES`.
    """
    model = ir.from_proto(onnx.load_from_string(reference.data))
    interface = _interface(model)
    try:
        outcome = optimise(model, ep, dtype, role, primitives=primitives)
    except REFUSALS as error:
        return Outcome(collections.Counter(), error=f"{type(error).__name__}: {error}")
    assert _interface(model) == interface
    data = _bytes(model)
    where = f"{ep} {dtype} {role}"
    compared = reference.require_equal(data, tolerance or TOLERANCES[dtype], where)
    if not compared and reference.expected is not None:
        onnx.checker.check_model(data)
    if again:
        nodes = _nodes(model)
        optimise(model, ep, dtype, role, primitives=primitives)
        assert _nodes(model) == nodes, f"{where}: optimising the result changed it"
    return dataclasses.replace(outcome, compared=compared)


def optimise(model: ir.Model, ep: str, dtype: str, role: str, *, primitives: bool) -> Outcome:
    """Run the pipeline; with `primitives`, the rules of `FROM_PRIMITIVES` after its cleanup."""
    with warnings.catch_warnings():
        # Attention that stays is reported by a warning; here it is no surprise.
        warnings.simplefilter("ignore", UserWarning)
        if primitives:
            report = _run_with_primitives(model, ep, dtype, role)
        else:
            report = mobius.optimize_model(model, ep=ep, dtype=dtype, role=role)
    applied: collections.Counter[str] = collections.Counter()
    refused = 0
    for stage in report.stages:
        applied[stage.name] += stage.applications or 0
        assert all(refusal.reason.endswith(".") for refusal in stage.refusals)
        refused += len(stage.refusals)
    return Outcome(applied, refused)


def _run_with_primitives(
    model: ir.Model, ep: str, dtype: str, role: str
) -> mobius.OptimizationReport:
    capabilities = mobius.get_ep(ep)
    target = Target(capabilities, parse_dtype(dtype), parse_role(role))
    if "" in model.opset_imports:
        target = dataclasses.replace(target, model_opset=model.opset_imports[""])
    target = with_raised_opset(target, model)
    stages = plan_for(target)
    first = next(index for index, stage in enumerate(stages) if stage.phase is Phase.FUSION)
    rows = [
        Stage(Phase.FUSION, factory.__name__, when, functools.partial(_rule_group, factory))
        for factory, when in FROM_PRIMITIVES.items()
        if when(target)
    ]
    report = run_stages(model, target, [*stages[:first], *rows, *stages[first:]])
    check_model_invariants(model, allowed_domains=capabilities.allowed_domains)
    return report


def _rule_group(factory: Callable[[], Sequence[RewriteRule]], target: Target) -> ir.passes.PassBase:
    del target
    return RuleGroup(factory(), [EliminateCommonSubexpressions(), RemoveUnused(), InferShapes()])


def run(data: bytes, inputs: Arrays) -> list[np.ndarray] | None:
    """Return the outputs, `None` where ONNX Runtime's CPU provider does not run the model."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        if any(words in str(error) for words in _NO_KERNEL):
            return None
        raise
    return [np.asarray(item) for item in session.run(None, dict(inputs))]


def random_inputs(data: bytes) -> dict[str, np.ndarray]:
    """Return small integers and normal numbers, seeded; every size that is not known is 3."""
    random = np.random.default_rng(0)
    values = {}
    graph = onnx.load_from_string(data).graph
    weights = {tensor.name for tensor in graph.initializer}
    for value in graph.input:
        if value.name in weights:
            continue
        tensor = value.type.tensor_type
        shape = [max(dim.dim_value, 0) or 3 for dim in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if dtype == np.dtype(object):
            values[value.name] = np.full(shape, "a", dtype)
        elif dtype.kind == "f":
            values[value.name] = random.standard_normal(shape).astype(dtype)
        else:
            values[value.name] = random.integers(0, 2, shape).astype(dtype)
    return values


def raised(data: bytes, version: int) -> bytes:
    """Return the model in a newer opset."""
    return onnx.version_converter.convert_version(
        onnx.load_from_string(data), version
    ).SerializeToString()


def _differences(
    expected: Sequence[np.ndarray], found: Sequence[np.ndarray] | None, tolerance: float
) -> list[str]:
    if found is None:
        return ["does not run"]
    problems = []
    for index, (old, new) in enumerate(zip(expected, found, strict=True)):
        if old.shape != new.shape or old.dtype != new.dtype:
            problems.append(f"output {index} was {old.dtype}{old.shape}, is {new.dtype}{new.shape}")
        elif old.dtype.kind != "f":
            if not np.array_equal(old, new):
                problems.append(f"output {index} differs")
        elif old.size:
            wide, other = old.astype(np.float64), new.astype(np.float64)
            same = (wide == other) | (np.isnan(wide) & np.isnan(other))
            finite = np.abs(wide[np.isfinite(wide)])
            scale = max(1.0, float(finite.max(initial=0.0)))
            gap = float(np.where(same, 0.0, np.abs(np.where(same, 0.0, wide - other))).max())
            if not gap <= tolerance * scale:
                problems.append(f"output {index} differs by {gap:.3g} of {scale:.3g}")
    return problems


def _interface(model: ir.Model) -> list[tuple[str | None, str, str]]:
    return [
        (value.name, str(value.type), str(value.shape))
        for value in (*model.graph.inputs, *model.graph.outputs)
    ]


def _nodes(model: ir.Model) -> list[str]:
    """Return the graph's nodes as text; types that a second run learns are no difference."""
    found = []
    for node in model.graph.all_nodes():
        proto = ir.serde.serialize_node(node)
        del proto.metadata_props[:]
        found.append(onnx.printer.to_text(proto))
    return found


def _bytes(model: ir.Model) -> bytes:
    return bytes(ir.to_proto(model).SerializeToString(deterministic=True))
