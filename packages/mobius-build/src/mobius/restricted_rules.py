"""`restricted(rules, where)`: rules that look only at the nodes for which `where` is true."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import RewriterContext, RewriteRule

from mobius_ir_rules import Plan, Rule


def restricted(rules: Iterable[RewriteRule], where: Callable[[ir.Node], bool]) -> list[RewriteRule]:
    """Return the rules, each of which leaves the nodes alone for which `where` is false.

    A node that is left alone is no candidate: it is not refused, either.

    Raises:
        TypeError: if one of them is no `mobius_ir_rules.Rule`, which alone has one root.
    """
    found: list[RewriteRule] = []
    for rule in rules:
        if not isinstance(rule, Rule):
            raise TypeError(f"{rule} is no mobius_ir_rules.Rule; it cannot be restricted.")
        found.append(_Restricted(rule, where))
    return found


class _Restricted(Rule):
    """Another rule, asked only about some of its roots."""

    def __init__(self, rule: Rule, where: Callable[[ir.Node], bool]) -> None:
        self._rule = rule
        self._where = where
        # Class attributes of other rules; this one has those of the rule that it stands for.
        self.__dict__.update(roots=rule.roots, emits=rule.emits)
        super().__init__(rule.name)

    def plan(self, node: ir.Node) -> Plan | None:
        """Return the plan of the rule, `None` where it is not asked."""
        return self._rule.plan(node) if self._where(node) else None

    def emit(self, op: RewriterContext, plan: Any) -> Sequence[ir.Value]:
        """Make the nodes of the rule."""
        return self._rule.emit(op, plan)
