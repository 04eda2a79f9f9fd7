"""4-D attention operands in -> what they are made of: repeated heads, exchanged last axes."""

from __future__ import annotations

import onnx_ir as ir

from mobius_ir_rules.fusion._shape_vectors import Entry, dims, entries, reshape_target
from mobius_ir_rules.passes.constants import constant_ints
from mobius_ir_rules.values import input_at, producer_of, rank

Source = tuple[ir.Value, tuple[ir.Node, ...]]


def repeated_heads(value: ir.Value) -> tuple[ir.Value, int, tuple[ir.Node, ...]]:
    """Return (x, n, nodes) where the value is `x` with each head `n` times in a row.

    That is `[B, H, T, D]` -> Unsqueeze -> `[B, H, 1, T, D]` -> Expand -> `[B, H, n, T, D]` ->
    Reshape -> `[B, H * n, T, D]`, every size proved. Otherwise (value, 1, ()).
    """
    nothing: tuple[ir.Value, int, tuple[ir.Node, ...]] = (value, 1, ())
    merge = producer_of(value, "", "Reshape")
    expand = producer_of(input_at(merge, 0), "", "Expand") if merge is not None else None
    insert = producer_of(input_at(expand, 0), "", "Unsqueeze") if expand is not None else None
    if merge is None or expand is None or insert is None:
        return nothing
    x = input_at(insert, 0)
    sizes = dims(x)
    if x is None or sizes is None or len(sizes) != 4:
        return nothing
    if constant_ints(input_at(insert, 1)) not in ([2], [-3]):
        return nothing
    batch, heads, length, size = sizes
    wide = entries(input_at(expand, 1))
    if wide is None or len(wide) != 5 or not isinstance(heads, int):
        return nothing
    copies = wide[2]
    if not isinstance(copies, int) or copies < 1:
        return nothing
    around = zip((batch, heads, length, size), (wide[0], wide[1], wide[3], wide[4]), strict=True)
    if any(wanted not in (1, own) for own, wanted in around):
        return nothing
    target = reshape_target(merge, [batch, heads, copies, length, size])
    if target is None or not _is_shape(target, [batch, heads * copies, length, size]):
        return nothing
    return x, copies, (merge, expand, insert)


def exchanged_last_axes(value: ir.Value) -> Source | None:
    """Return (x, nodes) where the value is the 4-D `x` with its last two axes exchanged.

    Either `Transpose <perm = [0, 1, 3, 2]> (x)`, or the same with the first two axes merged
    meanwhile, as torch.onnx writes it.
    """
    turn = producer_of(value, "", "Transpose")
    if turn is not None and rank(input_at(turn, 0)) == 4:
        x = turn.inputs[0]
        return (x, (turn,)) if x is not None and _perm(turn) == (0, 1, 3, 2) else None
    split = producer_of(value, "", "Reshape")
    turn = producer_of(input_at(split, 0), "", "Transpose") if split is not None else None
    merge = producer_of(input_at(turn, 0), "", "Reshape") if turn is not None else None
    if split is None or turn is None or merge is None or _perm(turn) != (0, 2, 1):
        return None
    x = input_at(merge, 0)
    sizes = dims(x)
    if x is None or sizes is None or len(sizes) != 4:
        return None
    batch, heads, rows, columns = sizes
    merged = reshape_target(merge, sizes)
    # With the last two sizes as they are, the first is what is left: the product of the others.
    if merged is None or len(merged) != 3 or merged[0] != -1 or merged[1:] != [rows, columns]:
        return None
    target = reshape_target(split, [-1, columns, rows])
    if target is None or not _is_shape(target, [batch, heads, columns, rows]):
        return None
    return x, (split, turn, merge)


def _is_shape(target: list[Entry], wanted: list[Entry]) -> bool:
    """Return whether a reshape to `target` gives `wanted`, of which one size may be left open."""
    if len(target) != len(wanted) or target.count(-1) > 1:
        return False
    return all(found in (-1, size) for found, size in zip(target, wanted, strict=True))


def _perm(transpose: ir.Node) -> tuple[int, ...] | None:
    attribute = transpose.attributes.get("perm")
    return None if attribute is None or attribute.is_ref() else tuple(attribute.as_ints())
