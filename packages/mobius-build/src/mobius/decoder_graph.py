"""`read_decoder`: what a text decoder's graph says about how it must be fed."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import onnx_ir as ir

__all__ = ["Cache", "DecoderGraph", "read_decoder"]

TOKENS = "input_ids"
LOGITS = "logits"
POSITIONS = "position_ids"
KEY, VALUE = "key", "value"

_PAST = re.compile(r"past_key_values\.(\d+)\.(\w+)")
_GQA = ("com.microsoft", "GroupQueryAttention")
_GQA_PAST = {KEY: 3, VALUE: 4}
_GQA_PRESENT = {KEY: 1, VALUE: 2}
# Inputs that are a rotary table, one row for each position.
_TABLES: Mapping[tuple[str, str], tuple[int, ...]] = MappingProxyType(
    {
        _GQA: (7, 8),
        ("", "RotaryEmbedding"): (1, 2),
        ("com.microsoft", "RotaryEmbedding"): (2, 3),
    }
)


@dataclasses.dataclass(frozen=True)
class Cache:
    """A tensor that one call gives and the next one takes.

    Attributes:
        layer: Index of its layer.
        part: What it is of the layer, such as `"key"`.
        shape: A number or a name for each dimension; `None` where neither is known.
    """

    layer: int
    part: str
    shape: tuple[int | str | None, ...]

    @property
    def past(self) -> str:
        """Name of the graph's input."""
        return f"past_key_values.{self.layer}.{self.part}"

    @property
    def present(self) -> str:
        """Name of the graph's output."""
        return f"present.{self.layer}.{self.part}"


@dataclasses.dataclass(frozen=True)
class DecoderGraph:
    """A graph from tokens to logits.

    Attributes:
        inputs: Names of the inputs that are no caches, in order.
        caches: In the order of the inputs.
        vocab_size: Width of the logits.
        shared_cache: Past and present keys may be one buffer, as long as the longest text, and so
            may the values: GroupQueryAttention alone reads and writes them.
        positions: Fewest rows of a table that is read at the position of a token; `None` if there
            is no such table, and texts may have any length.
        loops: The graph or one of its functions has a Loop or a Scan.
    """

    inputs: tuple[str, ...]
    caches: tuple[Cache, ...]
    vocab_size: int
    shared_cache: bool
    positions: int | None
    loops: bool


def read_decoder(model: ir.Model) -> DecoderGraph | None:
    """Return what `model` says, or `None` if it is no decoder from `input_ids` to `logits`."""
    inputs = {str(value.name): value for value in model.graph.inputs}
    outputs = {str(value.name): value for value in model.graph.outputs}
    shape = outputs[LOGITS].shape if LOGITS in outputs else None
    if TOKENS not in inputs or shape is None or not isinstance(shape[-1], int):
        return None
    matches = {name: _PAST.fullmatch(name) for name in inputs}
    caches = tuple(
        Cache(int(match[1]), match[2], _shape(inputs[name]))
        for name, match in matches.items()
        if match is not None
    )
    return DecoderGraph(
        inputs=tuple(name for name, match in matches.items() if match is None),
        caches=caches,
        vocab_size=shape[-1],
        shared_cache=bool(caches)
        and all(_is_shareable(inputs[each.past], outputs.get(each.present)) for each in caches),
        positions=min(_table_rows(model.graph), default=None),
        loops=any(node.op_type in ("Loop", "Scan") for node in _all_nodes(model)),
    )


def _shape(value: ir.Value) -> tuple[int | str | None, ...]:
    assert value.shape is not None  # an input's type is declared
    return tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)


def _is_shareable(past: ir.Value, present: ir.Value | None) -> bool:
    """Return whether one GroupQueryAttention, and nothing else, takes `past` and gives `present`.

    Anything else would read a shared buffer to its end, beyond the tokens that there are.
    """
    uses = list(past.uses())
    if len(uses) != 1 or present is None or present.uses():
        return False
    (node, index) = uses[0]
    part = str(past.name).rpartition(".")[2]
    return (
        (node.domain, node.op_type) == _GQA
        and index == _GQA_PAST.get(part)
        and node.outputs[_GQA_PRESENT[part]] is present
        and "sliding_window_cache" not in node.attributes
    )


def _all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        yield from function.all_nodes()


def _table_rows(graph: ir.Graph) -> Iterator[int]:
    """Yield the number of rows of each table that is read at a token's position."""
    for node in graph.all_nodes():
        for index in _TABLES.get((node.domain, node.op_type), ()):
            if index < len(node.inputs):
                yield from _rows(node.inputs[index])
    # Where rotary embeddings are taken apart, and for learned ones, positions are what is gathered.
    waiting = [value for value in graph.inputs if value.name == POSITIONS]
    seen = set(waiting)
    while waiting:
        for node, index in waiting.pop().uses():
            if node.op_type == "Gather" and index == 1:
                yield from _rows(node.inputs[0])
                continue
            for output in node.outputs:
                if output.dtype is not None and output.dtype.is_integer() and output not in seen:
                    seen.add(output)
                    waiting.append(output)


def _rows(table: ir.Value | None) -> Iterator[int]:
    if table is not None and table.is_initializer() and table.shape is not None:
        rows = table.shape[0]
        if isinstance(rows, int):
            yield rows
