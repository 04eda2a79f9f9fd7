"""`Rule`: one operator on the graph goes in, a proved plan and new nodes come out.

How rules are written here
==========================

Every rule is rooted on **one node**, found by its (domain, operator) and bound as it is: with
fewer inputs or outputs than its schema, with omitted middle inputs, in a subgraph or in a function
body. Whatever else the rewrite needs (producers, consumers, constants) `plan` reads from the graph
itself. A pattern of several nodes cannot say why it did not match; a `plan` can.

A subclass has three parts:

* class attributes `roots` (operators that it looks at) and `emits` (operators that it makes);
* `plan(node)`: pure; returns a frozen `Plan`, or `None` where the node is no candidate at all
  (an `Add` that no norm reads), or raises `RefusedError` (use `refuse`) where it is a candidate and
  a precondition is not proved. The reason is a full sentence: what was found, what is needed;
* `emit(op, plan)`: makes the new nodes on `op` and returns one value for each of `plan.replaced`.

```python
@dataclasses.dataclass(frozen=True, kw_only=True)
class _DoubleNegPlan(Plan):
    x: ir.Value


class DoubleNeg(Rule):
    roots = (("", "Neg"),)
    emits = (("", "Identity"),)

    def plan(self, node: ir.Node) -> _DoubleNegPlan | None:
        inner = producer_of(node.inputs[0], "", "Neg")
        if inner is None:
            return None
        x = inner.inputs[0]
        return _DoubleNegPlan(root=node, replaced=(node.outputs[0],), absorbed=(inner,), x=x)

    def emit(self, op, plan):
        return [make(op, "Identity", [plan.x], like(plan.replaced[0]))]
```

A `Rule` is an ordinary `onnxscript.rewriter.RewriteRule`:
`onnxscript.rewriter.rewrite(model, [DoubleNeg()])` works. It keeps no state: instances are frozen
once constructed, so one instance serves any number of models and threads.

Where several values are replaced, the root must be the node that comes *first* in the graph: new
nodes are inserted at the root, and everything that the new nodes read must exist there (see
`values.available_at`).

The rewriter looks at new nodes too: a rule that makes its own candidates never ends.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, NoReturn

import onnx_ir as ir
from onnxscript.rewriter import (
    MatchingTracer,
    MatchResult,
    MatchStatus,
    RewriterContext,
    RewriteRule,
)
from onnxscript.rewriter.pattern import PatternMatcher

OpId = tuple[str, str]
"""(domain, operator)."""


def standard(*op_types: str) -> tuple[OpId, ...]:
    """Return operators of ONNX's own domain, for `Rule.roots` and `Rule.emits`."""
    return tuple(("", op_type) for op_type in op_types)


# onnxscript wants the number of replaced values when the rule is constructed. Rules here know it
# only once they have planned, so every rewrite is padded with detached values to this number.
_SLOTS = 8


class RefusedError(Exception):
    """A candidate was found and a precondition is not proved.

    Attributes:
        reason: A full sentence: what was found, what is needed.
        sources: The nodes and values that the reason is about.
        inherent: What the model computes is in the way, or what the target can do, so that the
            candidate was never to be expected. False where another graph of the same model might
            be taken.
    """

    def __init__(self, reason: str, *sources: ir.Node | ir.Value, inherent: bool = False) -> None:
        """Create the error; `sources` are the nodes and values that `reason` is about."""
        super().__init__(reason)
        self.reason = reason
        self.sources = sources
        self.inherent = inherent


def refuse(reason: str, *sources: ir.Node | ir.Value, inherent: bool = False) -> NoReturn:
    """Raise `RefusedError`: the candidate stays as it is and `reason` is reported."""
    raise RefusedError(reason, *sources, inherent=inherent)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What a rewrite will do, proved. Subclasses add what `emit` needs.

    Attributes:
        root: The node that was matched. It is removed, so each of its outputs that is used must
            be in `replaced`.
        replaced: Values that the results of `emit` replace, in the same order; at most 8. They
            pass on name, type and shape.
        absorbed: Further nodes that the new ones make needless. Each is removed if nothing else
            uses it, and kept otherwise.
    """

    root: ir.Node
    replaced: tuple[ir.Value, ...]
    absorbed: tuple[ir.Node, ...] = ()


class Rule(RewriteRule, abc.ABC):
    """A rewrite rooted on one node; see the module's docstring.

    Attributes:
        roots: The operators that may be the root.
        emits: The operators that the rewrite makes. The rule leaves model-local functions of
            these names alone: it would put a call of the function into the function's own body.
    """

    roots: ClassVar[tuple[OpId, ...]] = ()
    emits: ClassVar[tuple[OpId, ...]] = ()

    def __init__(self, name: str | None = None) -> None:
        """Create the rule; `name` is what logs and traces print, by default the class's name."""
        super().__init__(
            _placeholder_pattern,
            self._rewrite,
            matcher=lambda pattern: _RootMatcher(pattern, self),
            name=name or type(self).__name__,
        )
        object.__setattr__(self, "_frozen", True)

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute during construction only.

        Raises:
            AttributeError: When the rule is constructed already.
        """
        if getattr(self, "_frozen", False):
            raise AttributeError(
                f"Cannot set {name!r} on the rule {self.name!r}: rules keep no state, so that one "
                "instance serves every model and thread. Pass it as an argument of __init__, or "
                "carry it in the plan."
            )
        object.__setattr__(self, name, value)

    @abc.abstractmethod
    def plan(self, node: ir.Node) -> Plan | None:
        """Return what to do at `node`, changing nothing; `None` where it is no candidate.

        Raises:
            RefusedError: When `node` is a candidate and a precondition is not proved.
        """

    @abc.abstractmethod
    def emit(self, op: RewriterContext, plan: Any) -> Sequence[ir.Value]:
        """Make the new nodes; return one value for each of `plan.replaced`.

        Args:
            op: Where nodes are made, best with `values.make`.
            plan: What `plan` returned.
        """

    def propose(self, node: ir.Node, container: ir.Graph | ir.Function) -> Plan | None:
        """Return `plan(node)`, checked; `None` for other operators than the rule's roots, too.

        Args:
            node: Any node.
            container: The graph or function that it is in, or whose subgraph it is in.

        Raises:
            RefusedError: When `node` is a candidate and a precondition is not proved.
            ValueError: When the plan would leave the graph broken: a fault of the rule.
        """
        if (node.domain, node.op_type) not in self.roots:
            return None
        if isinstance(container, ir.Function) and (container.domain, container.name) in self.emits:
            return None  # the body of what the rule makes
        plan = self.plan(node)
        if plan is not None:
            _verify(self, plan, node)
        return plan

    def commute(self) -> Sequence[RewriteRule]:
        """Return the rule itself: commutation, where there is one, is the plan's business."""
        return [self]

    def match(
        self,
        model: ir.Model,
        graph_or_function: ir.Graph | ir.Function,
        node: ir.Node,
        *,
        verbose: int | None = None,
        check_nodes_are_removable: bool = True,
        tracer: MatchingTracer | None = None,
    ) -> MatchResult | None:
        """Return the match at `node`, false where it is no candidate.

        Raises:
            RefusedError: When the node is a candidate and a precondition is not proved. A tracer
                is told instead, and the result is `None`.
        """
        try:
            return super().match(
                model,
                graph_or_function,
                node,
                verbose=verbose,
                check_nodes_are_removable=check_nodes_are_removable,
                tracer=tracer,
            )
        except RefusedError as error:
            if tracer is None:
                raise
            result = MatchResult().fail(error.reason, list(error.sources))
            tracer.log(self, graph_or_function, node, result, MatchStatus.CONDITION_FAILED)
            return None

    def rewrite_at(
        self, model: ir.Model, graph_or_function: ir.Graph | ir.Function, node: ir.Node
    ) -> Any:
        """Return what takes the place of `node`, `None` where it is no candidate.

        Raises:
            RefusedError: When it is one and a precondition is not proved.
        """
        return super().try_rewrite(model, graph_or_function, node)

    def try_rewrite(
        self,
        model: ir.Model,
        graph_or_function: ir.Graph | ir.Function,
        node: ir.Node,
        *,
        verbose: int | None = None,
        tracer: MatchingTracer | None = None,
    ) -> Any:
        """Rewrite at `node` if the plan is proved; with a tracer, only report to it.

        The stock implementation makes the new nodes in a traced run too; they would stay behind
        as users of the graph's values.
        """
        if tracer is not None:
            self.match(model, graph_or_function, node, verbose=verbose, tracer=tracer)
            return None
        try:
            return self.rewrite_at(model, graph_or_function, node)
        except RefusedError:
            return None

    def _rewrite(self, op: RewriterContext, plan: Plan) -> Sequence[ir.Value]:
        new_values = list(self.emit(op, plan))
        if len(new_values) != len(plan.replaced):
            raise ValueError(
                f"Rule {self.name!r} plans to replace {len(plan.replaced)} values and emitted "
                f"{len(new_values)}."
            )
        for old, new in zip(plan.replaced, new_values, strict=True):
            # A value that already has a role must not take over the name of the old one.
            if new.producer() is None or new.producer().graph is not None:  # type: ignore[union-attr]
                raise ValueError(
                    f"Rule {self.name!r} replaces {old.name!r} by the existing value "
                    f"{new.name!r}; emit an Identity of it instead."
                )
        return [*new_values, *_padding(len(new_values))]


class _RootMatcher(PatternMatcher):
    """Matches one node by (domain, operator) and binds what the rule plans for it."""

    def __init__(self, pattern: Any, rule: Rule) -> None:
        super().__init__(pattern)
        self.rule = rule

    def match(
        self,
        model: ir.Model,
        graph_or_function: ir.Graph | ir.Function,
        node: ir.Node,
        *,
        verbose: int | None = 0,
        remove_nodes: bool = True,
        tracer: MatchingTracer | None = None,
    ) -> MatchResult:
        del model, verbose, remove_nodes, tracer
        result = MatchResult()
        plan = self.rule.propose(node, graph_or_function)
        if plan is None:
            return result.fail("The node is no candidate.", node)
        result.bind("plan", plan)
        for matched in _removable(plan):
            result.add_node(matched)
        result.outputs.extend([*plan.replaced, *_padding(len(plan.replaced))])
        return result

    def __str__(self) -> str:
        return f"one of {self.rule.roots}"


def _placeholder_pattern(op: Any) -> Any:
    """Tell onnxscript the number of replaced values; `_RootMatcher` does the matching."""
    return op.Placeholder(_domain="mobius.rule", _outputs=_SLOTS)


def _padding(used: int) -> list[ir.Value]:
    return [ir.Value() for _ in range(_SLOTS - used)]


def _verify(rule: Rule, plan: Plan, node: ir.Node) -> None:
    """Raise `ValueError` on a plan that would leave the graph broken: a fault of the rule."""
    if plan.root is not node or len(plan.replaced) > _SLOTS:
        raise ValueError(f"Rule {rule.name!r} made a plan for another node, or too large a one.")
    for output in node.outputs:
        if output not in plan.replaced and (output.uses() or output.is_graph_output()):
            raise ValueError(
                f"Rule {rule.name!r} removes the node {node.name!r} and does not replace its "
                f"output {output.name!r}, which is used."
            )


def _removable(plan: Plan) -> list[ir.Node]:
    """Return the root and those absorbed nodes that nothing will use, in the plan's order."""
    dead = [plan.root]
    waiting = [node for node in plan.absorbed if node is not plan.root]
    while True:
        found = [node for node in waiting if _is_dead(node, plan, dead)]
        if not found:
            return dead
        dead.extend(found)
        waiting = [node for node in waiting if node not in found]


def _is_dead(node: ir.Node, plan: Plan, dead: Sequence[ir.Node]) -> bool:
    return node.graph is plan.root.graph and all(
        output in plan.replaced
        or (not output.is_graph_output() and all(use.node in dead for use in output.uses()))
        for output in node.outputs
    )
