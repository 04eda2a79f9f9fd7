"""`LowerOpset(version)`: a model written for a newer opset -> the same one, for an older opset.

ONNX's own converters do not do this. `onnx.version_converter` has no way down from Attention,
RMSNormalization, RotaryEmbedding, Gelu and Swish, nor from Split 18, reads the axes of a reduction
only from a `Constant` with the attribute `value`, leaves subgraphs and functions as they are, and
writes all weights into one protobuf. `onnxscript.version_converter` converts upwards only, and
hands the way down to ONNX's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import onnx_ir as ir

from mobius_ir_rules.functions import FUNCTIONS
from mobius_ir_rules.functions.body import OLDEST_OPSET
from mobius_ir_rules.functions.calls import CallBody
from mobius_ir_rules.lowering.attention import attention_to_primitives_rules
from mobius_ir_rules.lowering.gelu import gelu_to_primitives_rules
from mobius_ir_rules.lowering.opset_adapters import adapt
from mobius_ir_rules.lowering.opset_changes import NEWEST_SOURCE, misfit, schema_at
from mobius_ir_rules.lowering.rms_normalization import rms_normalization_to_primitives_rules
from mobius_ir_rules.lowering.rotary_embedding import rotary_embedding_to_primitives_rules
from mobius_ir_rules.lowering.swish import swish_to_primitives_rules
from mobius_ir_rules.match_log import Refusal
from mobius_ir_rules.passes.graphs import GraphLike, roots, subgraphs, value_names, values_of
from mobius_ir_rules.passes.infer_shapes import InferShapes
from mobius_ir_rules.passes.inline import InlineFunctions
from mobius_ir_rules.passes.unique_names import make_names_unique
from mobius_ir_rules.passes.unused import RemoveUnused
from mobius_ir_rules.rewriting import apply_rules
from mobius_ir_rules.rule import RefusedError, Rule
from mobius_ir_rules.values import describe_node, node_name

_LOWERINGS: Mapping[str, Callable[[], Sequence[Rule]]] = MappingProxyType(
    {
        "Attention": attention_to_primitives_rules,
        "Gelu": gelu_to_primitives_rules,
        "RMSNormalization": rms_normalization_to_primitives_rules,
        "RotaryEmbedding": rotary_embedding_to_primitives_rules,
        "Swish": swish_to_primitives_rules,
    }
)
"""Operators that an older opset lacks, and the rules that write them in others."""


class OpsetError(ValueError):
    """A model holds what an older opset has not, or what a newer one may read otherwise.

    Attributes:
        refusals: Each node that stands in the way, with the reason.
    """

    def __init__(self, source: int, target: int, found: Sequence[Refusal]) -> None:
        """Create the error from what was found on the way from `source` to `target`."""
        lines = "".join(f"\n  {refusal}" for refusal in found)
        way = "lower" if target < source else "raise"
        super().__init__(f"Cannot {way} the model from opset {source} to {target}:{lines}")
        self.refusals = tuple(found)


class LowerOpset(ir.passes.InPlacePass):
    """Take a model, its subgraphs and functions to an older opset of ONNX.

    Each node must mean the same there: same operator with these inputs, attributes, values of them
    and types (as far as they are known). What only has another form is rewritten, operators that
    the opset lacks are decomposed. Functions of this package's table are made anew for the opset;
    others are converted as they are, or inlined where that takes types that their values do not
    have. A model of that opset or an older one is left alone.

    Nodes of other domains are not looked at.

    Raises:
        OpsetError: If a node cannot be converted; it names each such node. Nothing but missing
            types was changed, unless it is a node of a function: then functions were inlined.
        ValueError: If the version of the model is newer than those that this pass knows.
    """

    def __init__(self, version: int) -> None:
        """Configure the pass.

        Raises:
            ValueError: If `version` is not one that the pass can lower to.
        """
        super().__init__()
        if not OLDEST_OPSET <= version <= NEWEST_SOURCE:
            raise ValueError(
                f"version is {version}; one from {OLDEST_OPSET} to {NEWEST_SOURCE} is needed."
            )
        self._version = version

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass."""
        source = max((root.opset_imports.get("", 0) for root in roots(model)), default=0)
        if source <= self._version:
            return ir.passes.PassResult(model, False)
        if source > NEWEST_SOURCE:
            raise ValueError(
                f"The model is written for opset {source}; at most {NEWEST_SOURCE} is needed."
            )
        InferShapes()(model)
        self._require_none(source, self._obstacles(model.graph))
        self._rebuild_bodies(model)
        blocked = {
            identifier
            for identifier, function in model.functions.items()
            if self._obstacles(function)
        }
        InlineFunctions(lambda function: function.identifier() in blocked)(model)
        self._require_none(source, self._obstacles(*roots(model)))
        rules = [rule for op_type in self._lacking() for rule in _LOWERINGS[op_type]()]
        if rules:
            apply_rules(model, rules)
        self._require_none(source, self._obstacles(*roots(model)))
        self._adapt(model)
        RemoveUnused()(model)
        make_names_unique(model)
        return ir.passes.PassResult(model, True)

    def _lacking(self) -> list[str]:
        """Return the operators with a lowering that do not exist at the version."""
        return [op_type for op_type in _LOWERINGS if schema_at(op_type, self._version) is None]

    def _require_none(self, source: int, found: Sequence[Refusal]) -> None:
        if found:
            raise OpsetError(source, self._version, found)

    def _obstacles(self, *graphs: GraphLike) -> list[Refusal]:
        """Return what stands in the way in these graphs and their subgraphs."""
        lacking = set(self._lacking())
        return [
            refusal
            for root in graphs
            for node in root.all_nodes()
            if node.domain == "" and root.opset_imports.get("", 0) > self._version
            for refusal in (
                self._refused_lowering(node)
                if node.op_type in lacking
                else self._misfit(node, root.opset_imports[""])
            )
        ]

    def _misfit(self, node: ir.Node, source: int) -> Iterable[Refusal]:
        reason = misfit(node, source, self._version)
        return () if reason is None else (self._refusal(node, reason),)

    def _refused_lowering(self, node: ir.Node) -> Iterator[Refusal]:
        """Yield why the rules do not decompose the node."""
        for rule in _LOWERINGS[node.op_type]():
            try:
                if rule.plan(node) is None:
                    yield self._refusal(node, f"{describe_node(node)} lacks an input.")
            except RefusedError as error:
                yield self._refusal(node, error.reason)

    def _refusal(self, node: ir.Node, reason: str) -> Refusal:
        return Refusal(type(self).__name__, node_name(node), node.op_type, reason)

    def _rebuild_bodies(self, model: ir.Model) -> None:
        """Make the functions of this package anew that are as the package makes them."""
        for identifier, function in list(model.functions.items()):
            source = function.opset_imports.get("", 0)
            if source <= self._version:
                continue
            made = _body_of_this_package(model, identifier, source)
            if made is None or _canonical(made) != _canonical(function):
                continue
            body = _body_of_this_package(model, identifier, self._version)
            assert body is not None  # Whether there is one depends on the operator and the call.
            model.functions[identifier] = body

    def _adapt(self, model: ir.Model) -> None:
        for root in roots(model):
            if root.opset_imports.get("", 0) <= self._version:
                continue
            taken = value_names(root)
            for node in list(root.all_nodes()):
                if node.domain == "":
                    adapt(node, self._version, taken)
            for graph in (root, *subgraphs(root)):
                if "" in graph.opset_imports:
                    graph.opset_imports[""] = self._version


def _body_of_this_package(
    model: ir.Model, identifier: ir.OperatorIdentifier, version: int
) -> ir.Function | None:
    """Return the body that this package makes of the operator, `None` where it makes none."""
    builder = FUNCTIONS.get(identifier[:2])
    if not isinstance(builder, CallBody):
        return None if builder is None or identifier[2] else builder(version)
    calls = (node for root in roots(model) for node in root.all_nodes())
    call = next((node for node in calls if node.op_identifier() == identifier), None)
    if call is None:
        return None
    try:
        body = builder.for_call(call, version)
    except RefusedError:
        return None
    body.overload = identifier[2]
    return body


def _canonical(function: ir.Function) -> bytes:
    """Return the function's computation as bytes, whatever its values and nodes are called."""
    copy = function.clone()
    for index, value in enumerate(values_of(copy)):
        value.name, value.type, value.shape = f"v{index}", None, None
    for node in copy.all_nodes():
        node.name = None
        node.metadata_props.clear()
    copy.metadata_props.clear()
    return bytes(ir.serde.serialize_function(copy).SerializeToString(deterministic=True))
