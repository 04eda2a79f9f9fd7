"""The passes that stages are made of, and `StageResult`, which says more than "modified"."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Sequence

import onnx_ir as ir
from onnxscript.rewriter import RewriteRule

from mobius_ir_rules.functions.attach import AttachResult
from mobius_ir_rules.match_log import Refusal, refusals
from mobius_ir_rules.passes import make_names_unique
from mobius_ir_rules.rewriting import apply_rules


@dataclasses.dataclass
class StageResult(ir.passes.PassResult):
    """Result of a pass that counts its rewrites or refuses candidates.

    Attributes:
        applications: Number of rewrites; `None` where the pass is not made of rewrite rules.
        refusals: Candidates that were left alone.
    """

    applications: int | None = None
    refusals: tuple[Refusal, ...] = ()


class RuleGroup(ir.passes.InPlacePass):
    """Applies rules once over the model and tidies up what they leave.

    Attributes:
        rules: The rules, in order of preference at one node.
        then: Passes that run only if a rule was applied.
    """

    def __init__(
        self, rules: Sequence[RewriteRule], then: Sequence[ir.passes.PassBase] = ()
    ) -> None:
        """Create the pass.

        Raises:
            ValueError: if there are no rules.
        """
        super().__init__()
        if not rules:
            raise ValueError("A RuleGroup needs at least one rule.")
        self.rules = tuple(rules)
        self.then = tuple(then)

    def call(self, model: ir.Model) -> StageResult:
        """Rewrite `model`, and say what the rules leave alone in the result."""
        result = apply_rules(model, self.rules)
        if not result.applications:
            return StageResult(model, False, 0, result.refusals)
        for tidy in self.then:
            tidy(model)
        left = tuple(refusals(model, self.rules))
        return StageResult(model, True, result.applications, left)


class Steps(ir.passes.Sequential):
    """Runs in-place passes one after the other and keeps what they refuse.

    Unlike `ir.passes.Sequential` it lets a pass's error through as it is.
    """

    def call(self, model: ir.Model) -> StageResult:
        """Run the passes."""
        modified = False
        refused: list[Refusal] = []
        for step in self.passes:
            result = step(model)
            modified |= result.modified
            if isinstance(result, AttachResult):
                refused.extend(result.refusals)
        return StageResult(model, modified, refusals=tuple(refused))


class UniqueNames(ir.passes.InPlacePass):
    """Renames values and nodes whose names occur twice, sibling branches of an If included."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rename; inputs, outputs and initializers keep their names."""
        return ir.passes.PassResult(model, make_names_unique(model))


class DropFunctions(ir.passes.InPlacePass):
    """Takes the bodies of operators that the target runs itself out of a model."""

    def __init__(self, operators: Container[tuple[str, str]]) -> None:
        """Create the pass; `operators` are (domain, name) of what needs no body."""
        super().__init__()
        self._operators = operators

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Drop them."""
        dropped = [key for key in model.functions if key[:2] in self._operators]
        for key in dropped:
            del model.functions[key]
        return ir.passes.PassResult(model, bool(dropped))
