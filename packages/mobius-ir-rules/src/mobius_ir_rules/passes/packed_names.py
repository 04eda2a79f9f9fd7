"""Names for a weight that packs others: their names -> what they share, or the first and a suffix.

`h.0.q_proj.weight`, `h.0.k_proj.weight`, `h.0.v_proj.weight` -> `h.0.qkv_proj.weight`
`mlp.gate_proj.weight`, `mlp.up_proj.weight` -> `mlp.gate_up_proj.weight`
`experts.0.w1.weight`, `experts.1.w1.weight` -> `experts.w1.weight`
`a.weight`, `b.c.bias` -> `a.weight.packed`
"""

from __future__ import annotations

from collections.abc import Sequence


def packed_name(names: Sequence[str]) -> str:
    """Return a name for the concatenation of the weights called `names`."""
    parts = [name.split(".") for name in names]
    if len({len(part) for part in parts}) == 1:
        columns = list(zip(*parts, strict=True))
        different = [index for index, column in enumerate(columns) if len(set(column)) > 1]
        if len(different) == 1:
            (index,) = different
            kept = [*parts[0][:index], *_joined(columns[index]), *parts[0][index + 1 :]]
            if kept:
                return ".".join(kept)
    return f"{names[0]}.packed"


def _joined(words: Sequence[str]) -> list[str]:
    """Join words that share a prefix or suffix: q_proj, k_proj -> qk_proj; numbers vanish."""
    if all(word.isdecimal() for word in words):
        return []
    pieces = [word.split("_") for word in words]
    prefix = _common_prefix(pieces)
    rest = [piece[len(prefix) :][::-1] for piece in pieces]
    suffix = _common_prefix(rest)[::-1]
    middles = ["_".join(piece[len(suffix) :][::-1]) for piece in rest]
    middles = [middle for middle in middles if middle]
    separator = "_" if any(len(middle) > 1 for middle in middles) else ""
    return ["_".join([*prefix, separator.join(middles), *suffix])]


def _common_prefix(pieces: Sequence[list[str]]) -> list[str]:
    prefix = []
    for words in zip(*pieces, strict=False):
        if len(set(words)) > 1:
            break
        prefix.append(words[0])
    return prefix
