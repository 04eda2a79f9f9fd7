"""`Refusal`: a candidate that a rule left alone, and why."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir
from onnxscript.rewriter import RewriteRule

from mobius_ir_rules.values import node_name


@dataclasses.dataclass(frozen=True)
class Refusal:
    """A candidate that a rule did not rewrite.

    Attributes:
        rule: Name of the rule.
        node: Name of the node that the rule looked at (of its first output where it has none).
        op_type: Operator of that node, with its domain unless that is ONNX's own.
        reason: A full sentence: what was found, what is needed.
        inherent: Nothing else was to be expected, see `mobius_ir_rules.rule.RefusedError`.
    """

    rule: str
    node: str
    op_type: str
    reason: str
    inherent: bool = False

    @classmethod
    def of(
        cls, rule: RewriteRule, node: ir.Node, reason: str, *, inherent: bool = False
    ) -> Refusal:
        """Return the refusal of `node` by `rule`."""
        op_type = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        return cls(rule.name or "", node_name(node), op_type, reason, inherent)

    def __str__(self) -> str:
        """Return one line for a log."""
        return f"{self.node} ({self.op_type}): {self.reason}"
