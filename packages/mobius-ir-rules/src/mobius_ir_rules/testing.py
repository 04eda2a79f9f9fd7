"""`RuleConformance`: rules and small models in, an `AssertionError` out where a rule is unsound.

For authors of rules, in this package or elsewhere. Needs `onnxruntime` for the numbers (the extra
`testing`), and imports it only when they are asked for.

```python
CASES = [
    RuleCase("erf", build_gelu, applications=1, dims={"N": 3}, after={"Gelu": 1, "Erf": 0}),
    RuleCase("other constant", build_other, applications=0, reasons=("...",)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_conformance(case: RuleCase) -> None:
    RuleConformance(gelu_rules).check(case)
```
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import onnx_ir.passes.common as common_passes
from onnxscript.rewriter import RewriteRule, RewriteRuleSet

from mobius_ir_rules import _nesting
from mobius_ir_rules.match_log import refusals
from mobius_ir_rules.passes.graphs import all_nodes, qualified_name, roots
from mobius_ir_rules.passes.graphs import op_counts as op_counts
from mobius_ir_rules.rewriting import apply_rules
from mobius_ir_rules.rule import Rule

Arrays = Mapping[str, npt.NDArray[Any]]

TOLERANCES: Mapping[ir.DataType, float] = {
    ir.DataType.FLOAT: 2e-5,
    ir.DataType.FLOAT16: 1e-2,
    ir.DataType.BFLOAT16: 5e-2,
    ir.DataType.DOUBLE: 1e-12,
}
"""Absolute and relative tolerance of an output, by its element type; other types are exact.

f32 and f64 leave room for a sum of a few hundred products taken in another order; f16 and bf16 for
a few roundings of values near 1.
"""


@dataclasses.dataclass(frozen=True)
class RuleCase:
    """One model and what the rules must do with it.

    Attributes:
        name: Identifies the case in a test report.
        build: Makes the model, a new one at each call and always the same.
        applications: Number of rewrites.
        reasons: Reasons of the refusals in the model as built, all of them, in graph order.
        after: Number of nodes of some operators afterwards, as `op_counts` names them. None of an
            operator says something only if the model has it or the rules make it.
        dims: Sizes of the symbolic dimensions, for inputs that are not in `inputs`.
        inputs: Input values where random ones will not do (integers, masks).
        tolerance: Replaces `TOLERANCES` for floating-point outputs.
        compare: Whether to run the model before and after on ONNX Runtime's CPU provider.
        nested: Whether to check the model as a branch of an `If` and as a function body too.
        complete: Whether `after` names every operator that is there afterwards, `Constant` apart.
    """

    name: str
    build: Callable[[], ir.Model]
    applications: int = 1
    reasons: tuple[str, ...] = ()
    after: Mapping[str, int] = dataclasses.field(default_factory=dict)
    dims: Mapping[str, int] = dataclasses.field(default_factory=dict)
    inputs: Arrays = dataclasses.field(default_factory=dict)
    tolerance: float | None = None
    compare: bool = True
    nested: bool = True
    complete: bool = False

    def __str__(self) -> str:
        """Return the name, so that `ids=str` works."""
        return self.name


class RuleConformance:
    """Checks that rules do what a case says, soundly."""

    def __init__(self, factory: Callable[[], Sequence[RewriteRule]]) -> None:
        """Create a checker of the rules that `factory` returns."""
        self._factory = factory

    def check(self, case: RuleCase) -> None:
        """Run every check below.

        Raises:
            AssertionError: Naming the case and what does not hold.
        """
        self.check_refusals(case)
        self.check_result(case)
        self.check_numbers(case)
        self.check_reuse(case)
        self.check_walk(case)
        if case.nested:
            self.check_nested(case)

    def apply(self, model: ir.Model) -> int:
        """Apply the rules once, drop what is unused, return the number of rewrites."""
        return _apply(self._factory(), model)

    def check_refusals(self, case: RuleCase) -> None:
        """The refusals are exactly those of the case, and reporting them changes nothing."""
        model = case.build()
        before = _serialized(model)
        found = tuple(refusal.reason for refusal in refusals(model, self._factory()))
        _require(case, found == case.reasons, f"refusals are {found}, expected {case.reasons}")
        _require(case, _serialized(model) == before, "reporting refusals changed the model")

    def check_result(self, case: RuleCase) -> None:
        """Applications, operators and interface are right, and a second run finds nothing."""
        model = case.build()
        before, interface = _serialized(model), _interface(model)
        self._require_known_operators(case, model)
        applied = self.apply(model)
        _require(
            case,
            applied == case.applications,
            f"{applied} applications, expected {case.applications}",
        )
        if case.applications == 0:
            RewriteRuleSet(list(self._factory())).apply_to_model(untouched := case.build())
            _require(case, _serialized(untouched) == before, "a refused model was changed")
        _require(
            case,
            _interface(model) == interface,
            f"inputs or outputs changed from {interface} to {_interface(model)}",
        )
        counts = op_counts(model)
        expected = dict(case.after)
        others = counts.keys() - {"Constant"} if case.complete else ()
        found = {key: counts[key] for key in sorted({*expected, *others})}
        _require(case, found == expected, f"operators are {found}, expected {expected}")
        _require_valid_names(case, model)
        once = _serialized(model)
        _require(case, self.apply(model) == 0, "a second run applied the rules again")
        _require(case, _serialized(model) == once, "a second run changed the model")

    def _require_known_operators(self, case: RuleCase, model: ir.Model) -> None:
        """Require that each operator of which none is to stay is there, or is made by a rule."""
        made = {
            qualified_name(*operator)
            for rule in self._factory()
            if isinstance(rule, Rule)
            for operator in rule.emits
        }
        known = made | op_counts(model).keys()
        unknown = sorted(
            name for name, count in case.after.items() if not count and name not in known
        )
        _require(
            case,
            not unknown,
            f"none of {unknown} is expected afterwards; the model has none and no rule makes one",
        )

    def check_numbers(self, case: RuleCase) -> None:
        """The outputs before and after are equal on ONNX Runtime's CPU provider."""
        if case.compare:
            self._compare(case, case.build())

    def check_reuse(self, case: RuleCase) -> None:
        """The same instances serve two models in turn and two threads at a time alike."""
        rules = list(self._factory())
        alone = case.build()
        _apply(self._factory(), alone)
        expected = _serialized(alone)
        models = [case.build() for _ in range(4)]
        for model in models[:2]:
            _apply(rules, model)
        with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
            list(pool.map(lambda model: _apply(rules, model), models[2:]))
        for index, model in enumerate(models):
            _require(
                case,
                _serialized(model) == expected,
                f"run {index} of the same rule instances gave another model",
            )

    def check_walk(self, case: RuleCase) -> None:
        """`apply_rules`, which shows a rule its roots only, does what onnxscript's driver does."""
        rules = list(self._factory())
        if not all(isinstance(rule, Rule) for rule in rules):
            return
        model = case.build()
        result = apply_rules(model, rules)
        _require(
            case,
            result.applications == case.applications,
            f"apply_rules counts {result.applications} applications, expected {case.applications}",
        )
        if not case.applications:
            reasons = tuple(refusal.reason for refusal in result.refusals)
            _require(case, reasons == case.reasons, f"apply_rules refuses for {reasons}")
        RewriteRuleSet(rules).apply_to_model(stock := case.build())
        _require(
            case, _wiring(model) == _wiring(stock), "apply_rules and RewriteRuleSet do not agree"
        )

    def check_nested(self, case: RuleCase) -> None:
        """In a branch of an `If` candidates are rewritten or refused; in a function, soundly."""
        branch = _nesting.in_branch(case.build())
        refused = len(refusals(branch, self._factory()))
        applied = self._compare(case, branch, "in a branch of an If")
        candidates = case.applications + len(case.reasons)
        _require(
            case,
            applied + refused == candidates,
            f"in a branch of an If {applied} candidates were rewritten and {refused} refused; "
            f"{candidates} are there",
        )
        self._compare(case, _nesting.in_function(case.build()), "in a function body")

    def _compare(self, case: RuleCase, model: ir.Model, where: str = "in the graph") -> int:
        inputs = random_inputs(model, case.dims, case.inputs) if case.compare else {}
        before = run_model(model, inputs) if case.compare else {}
        applied = self.apply(model)
        if case.compare:
            _require_equal(case, model, before, run_model(model, inputs), where)
        return applied


def random_inputs(
    model: ir.Model, dims: Mapping[str, int] | None = None, given: Arrays | None = None
) -> dict[str, npt.NDArray[Any]]:
    """Return an input value for each graph input: the given one, else normal noise, seeded.

    Raises:
        ValueError: When a dimension has no size in `dims`, or a value that is not floating-point
            is not given.
    """
    random = np.random.default_rng(0)
    values: dict[str, npt.NDArray[Any]] = {}
    for value in model.graph.inputs:
        name = value.name or ""
        if given is not None and name in given:
            values[name] = np.asarray(given[name])
            continue
        if value.dtype is None or value.shape is None or not value.dtype.is_floating_point():
            raise ValueError(f"The input {name!r} is not a floating-point tensor: give a value.")
        shape = []
        for dim in value.shape:
            size = dim if isinstance(dim, int) else (dims or {}).get(str(dim.value))
            if size is None:
                raise ValueError(f"The input {name!r} has the dimension {dim}: give its size.")
            shape.append(size)
        values[name] = random.standard_normal(shape).astype(value.dtype.numpy())
    return values


def run_model(model: ir.Model, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
    """Run the model on ONNX Runtime's CPU provider, its own optimisations off.

    Raises:
        ImportError: When onnxruntime is not installed.
    """
    try:
        import onnxruntime  # type: ignore[import-untyped]  # optional: the extra `testing`
    except ImportError as error:
        raise ImportError(
            "Comparing numbers needs ONNX Runtime: pip install mobius-ir-rules[testing]"
        ) from error
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        _serialized(model), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def _apply(rules: Sequence[RewriteRule], model: ir.Model) -> int:
    applied = RewriteRuleSet(list(rules)).apply_to_model(model)
    if applied:
        common_passes.RemoveUnusedNodesPass()(model)
    return int(applied)


def _serialized(model: ir.Model) -> bytes:
    return bytes(ir.to_proto(model).SerializeToString(deterministic=True))


def _wiring(model: ir.Model) -> bytes:
    """Return the model with names of its nodes and inner values by position, serialised."""
    for root in roots(model):
        fixed = {*root.inputs, *root.outputs}
        for index, node in enumerate(all_nodes(root)):
            node.name = f"node{index}"
            node.metadata_props.clear()
            for position, value in enumerate(node.outputs):
                if value not in fixed and value.name:
                    value.name = f"value{index}.{position}"
            # onnxscript names the tensor of a constant after its value.
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
                    attribute.as_tensor().name = None
    return _serialized(model)


def _interface(model: ir.Model) -> list[tuple[str | None, str, str]]:
    return [
        (value.name, str(value.type), str(value.shape))
        for value in (*model.graph.inputs, *model.graph.outputs)
    ]


def _require(case: RuleCase, holds: bool, message: str) -> None:
    if not holds:
        raise AssertionError(f"Case {case.name!r}: {message}.")


def _require_valid_names(case: RuleCase, model: ir.Model) -> None:
    values = [value.name for node in model.graph.all_nodes() for value in node.outputs]
    named = [name for name in values if name]
    _require(case, len(set(named)) == len(named), "a value name is used twice")
    nodes = [node.name for node in model.graph if node.name]
    _require(case, len(set(nodes)) == len(nodes), "a node name is used twice")


def _require_equal(
    case: RuleCase, model: ir.Model, before: Arrays, after: Arrays, where: str
) -> None:
    for output in model.graph.outputs:
        name = output.name or ""
        old, new = before[name], after[name]
        dtype = ir.DataType.from_numpy(old.dtype)
        _require(
            case,
            old.shape == new.shape and old.dtype == new.dtype,
            f"{name!r} {where} was {old.dtype}{old.shape} and is {new.dtype}{new.shape}",
        )
        if not dtype.is_floating_point():
            _require(case, bool(np.array_equal(old, new)), f"{name!r} {where} differs")
            continue
        tolerance = TOLERANCES[dtype] if case.tolerance is None else case.tolerance
        wide_old, wide_new = old.astype(np.float64), new.astype(np.float64)
        _require(
            case,
            bool(np.allclose(wide_new, wide_old, rtol=tolerance, atol=tolerance)),
            f"{name!r} {where} differs by {np.max(np.abs(wide_new - wide_old), initial=0.0):.3g}, "
            f"tolerance {tolerance:.1g}",
        )
