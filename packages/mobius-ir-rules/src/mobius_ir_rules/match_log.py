"""`refusals(model, rules)`: the candidates that the rules leave alone, each with its reason."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import onnx_ir as ir
from onnxscript.rewriter import (
    MatchingTracer,
    MatchResult,
    MatchStatus,
    RewriteRule,
    RewriteRuleSet,
)

from mobius_ir_rules.values import node_name


@dataclasses.dataclass(frozen=True)
class Refusal:
    """A candidate that a rule did not rewrite.

    Attributes:
        rule: Name of the rule.
        node: Name of the node that the rule looked at (of its first output where it has none).
        op_type: Operator of that node, with its domain unless that is ONNX's own.
        reason: A full sentence: what was found, what is needed.
    """

    rule: str
    node: str
    op_type: str
    reason: str

    def __str__(self) -> str:
        """Return one line for a log."""
        return f"{self.node} ({self.op_type}): {self.reason}"


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
        op_type = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        self.refusals.append(
            Refusal(rule.name or "", node_name(node), op_type, match_result.reason)
        )


def refusals(model: ir.Model, rules: Iterable[RewriteRule]) -> list[Refusal]:
    """Return what the rules find and refuse in the model as it is now, changing nothing.

    Run it after the rules have been applied: whatever still refuses is what stayed. A node that
    several rules refuse is listed once for each rule, in graph order.
    """
    log = MatchLog()
    RewriteRuleSet(list(rules)).apply_to_model(model, tracer=log)
    return log.refusals
