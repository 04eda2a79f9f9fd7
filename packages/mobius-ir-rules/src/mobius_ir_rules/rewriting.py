"""`apply_rules(model, rules)`: a model rewritten in place, and what the rules left alone.

What onnxscript's `RewriteRuleSet` does, for rules that say which operators are their roots: a node
is shown only to the rules that it may be the root of, so that the cost is that of the candidates
and not of nodes times rules, and one walk both rewrites and collects the refusals.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir
from onnxscript.rewriter import RULE_NAME_TAG, RewriteRule
from onnxscript.utils.metadata_merger import MetadataMerger, comma_separator_merger

from mobius_ir_rules.passes.graphs import GraphLike, detach, graph_attributes, roots
from mobius_ir_rules.passes.unique_names import make_names_unique
from mobius_ir_rules.refusal import Refusal
from mobius_ir_rules.rule import OpId, RefusedError, Rule

_METADATA = MetadataMerger({RULE_NAME_TAG: comma_separator_merger})

ByRoot = Mapping[OpId, Sequence[Rule]]


@dataclasses.dataclass(frozen=True)
class RewriteResult:
    """What a walk over a model did.

    Attributes:
        applications: Number of rewrites.
        refusals: Candidates that were left alone, in graph order. Where something was rewritten,
            that may have changed them: `refusals(model, rules)` asks again.
    """

    applications: int
    refusals: tuple[Refusal, ...]


def apply_rules(model: ir.Model, rules: Iterable[RewriteRule]) -> RewriteResult:
    """Apply rules once to each node of the graph, its subgraphs, and the functions.

    At a node the first rule that fits is applied; nodes that it makes are looked at next. New
    nodes take the metadata of those that they replace, and names are unique afterwards.

    Args:
        model: The model, rewritten in place.
        rules: The rules, in order of preference.

    Returns:
        The number of rewrites and the refusals.

    Raises:
        TypeError: When one of the rules is no `Rule`.
    """
    walk = _Walk(model, _by_root(rules))
    for root in roots(model):
        walk.visit(root, root)
    if walk.applications:
        make_names_unique(model)
    return RewriteResult(walk.applications, tuple(walk.refusals))


def ask_rules(model: ir.Model, rules: Iterable[RewriteRule]) -> Iterator[Refusal]:
    """Yield what the rules find and refuse in the model as it is, changing nothing."""
    by_root = _by_root(rules)
    for root in roots(model):
        yield from _ask(root, root, by_root)


def _by_root(rules: Iterable[RewriteRule]) -> ByRoot:
    by_root: dict[OpId, list[Rule]] = collections.defaultdict(list)
    for rule in rules:
        if not isinstance(rule, Rule):
            raise TypeError(
                f"{rule} is a {type(rule).__name__}, which does not say its roots; a "
                "mobius_ir_rules.Rule is needed. onnxscript.rewriter.RewriteRuleSet takes any."
            )
        for root in rule.roots:
            by_root[root].append(rule)
    return by_root


def _ask(graph: GraphLike, root: GraphLike, by_root: ByRoot) -> Iterator[Refusal]:
    for node in graph:
        for rule in by_root.get((node.domain, node.op_type), ()):
            try:
                rule.propose(node, root)
            except RefusedError as error:
                yield Refusal.of(rule, node, error.reason, inherent=error.inherent)
        if node.attributes:
            for subgraph in graph_attributes(node):
                yield from _ask(subgraph, root, by_root)


class _Walk:
    """One walk of rules over one model."""

    def __init__(self, model: ir.Model, by_root: ByRoot) -> None:
        self._model = model
        self._by_root = by_root
        self.applications = 0
        self.refusals: list[Refusal] = []

    def visit(self, graph: GraphLike, root: GraphLike) -> None:
        """Visit the nodes of `graph`, which is `root` or one of its subgraphs."""
        # Taken out at the end, all at once: each time costs the number of the graph's outputs.
        replaced: dict[ir.Node, None] = {}
        for node in graph:
            if node in replaced:
                continue
            rules = self._by_root.get((node.domain, node.op_type), ())
            for rule in rules:
                found = self._rewrite(rule, node, graph, root)
                if found is not None:
                    replaced.update(dict.fromkeys(found))
                    break
            else:
                for subgraph in graph_attributes(node):
                    self.visit(subgraph, root)
        if replaced:
            graph.remove(replaced)

    def _rewrite(
        self, rule: Rule, node: ir.Node, graph: GraphLike, root: GraphLike
    ) -> Sequence[ir.Node] | None:
        """Return the nodes that others have taken the place of, if the rule fits."""
        try:
            found = rule.rewrite_at(self._model, root, node)
        except RefusedError as error:
            self.refusals.append(Refusal.of(rule, node, error.reason, inherent=error.inherent))
            return None
        if found is None:
            return None
        for value in found.new_initializers:
            if not isinstance(graph, ir.Graph):
                raise ValueError(
                    f"Rule {rule.name!r} makes the initializer {value.name!r} in the function "
                    f"{graph.name!r}; functions have none, make a Constant node."
                )
            graph.initializers.add(value)
        old_nodes: Sequence[ir.Node] = found.match.nodes
        for new in found.new_nodes:
            new.metadata_props[RULE_NAME_TAG] = rule.name or ""
        _METADATA.copy_merged_metadata(old_nodes, found.new_nodes)
        for old_value, new_value in zip(found.match.outputs, found.new_outputs, strict=True):
            if old_value.producer() is not None:  # others fill the number up
                _replace(old_value, new_value)
        graph.insert_after(node, found.new_nodes)
        for old in old_nodes:
            detach(old)
        self.applications += 1
        return old_nodes


def _replace(old: ir.Value, new: ir.Value) -> None:
    """Let `new` have the name, type, shape and uses of `old`, as output of a graph too."""
    new.type = old.type if old.type is not None else new.type
    new.shape = old.shape if old.shape is not None else new.shape
    new.name = old.name if old.name is not None else new.name
    graph = old.graph
    while graph is not None and old.is_graph_output():
        graph.outputs[graph.outputs.index(old)] = new
    old.replace_all_uses_with(new)
