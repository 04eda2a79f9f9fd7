"""`refusals(model, rules)`: the candidates that the rules leave alone, each with its reason."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir
from onnxscript.rewriter import (
    MatchingTracer,
    MatchResult,
    MatchStatus,
    RewriteRule,
    RewriteRuleSet,
)

from mobius_ir_rules.refusal import Refusal
from mobius_ir_rules.rewriting import ask_rules
from mobius_ir_rules.rule import Rule

__all__ = ["MatchLog", "Refusal", "refusals"]


class MatchLog(MatchingTracer):
    """Collects the refusals of a traced run of any onnxscript rules, in graph order."""

    def __init__(self) -> None:
        """Create an empty log."""
        super().__init__()
        self.refusals: list[Refusal] = []

    def log(
        self,
        rule: RewriteRule,
        container: ir.Graph | ir.Function,
        node: ir.Node,
        match_result: MatchResult,
        status: MatchStatus,
    ) -> None:
        """Keep the attempt if a candidate was found and refused."""
        del container
        if status not in (MatchStatus.CONDITION_FAILED, MatchStatus.REPLACEMENT_FAILED):
            return
        self.refusals.append(Refusal.of(rule, node, match_result.reason))


def refusals(model: ir.Model, rules: Iterable[RewriteRule]) -> list[Refusal]:
    """Return what the rules find and refuse in the model as it is now, changing nothing.

    Run it after the rules have been applied: whatever still refuses is what stayed. A node that
    several rules refuse is listed once for each rule, in graph order.
    """
    rules = list(rules)
    own = [rule for rule in rules if isinstance(rule, Rule)]
    if len(own) == len(rules):
        return list(ask_rules(model, own))
    log = MatchLog()
    RewriteRuleSet(rules).apply_to_model(model, tracer=log)
    return log.refusals
