"""What is to be expected of a model and a target, and a sentence where it does not hold."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

import onnx_ir as ir

from mobius.dtypes import DTYPE_NAMES
from mobius.op_support import dtype_of, lacks_of, uses_of
from mobius.pipeline import GQA_FUSION
from mobius.report import StageRecord, refusal_lines
from mobius.stage import Target
from mobius_ir_rules.values import node_name

_PAST_KEY = 4


def other_dtype(model: ir.Model, target: Target) -> str | None:
    """Return a sentence if no float weight or input of the model has the target's dtype.

    The stages are then chosen for a dtype that the model is not in.
    """
    values = [*model.graph.inputs, *model.graph.initializers.values()]
    dtypes = {value.dtype for value in values if value.dtype and value.dtype in DTYPE_NAMES}
    if not dtypes or target.dtype in dtypes:
        return None
    found = ", ".join(sorted(dtype.name for dtype in dtypes))
    return (
        f"The stages are chosen for {target.dtype.name}, but the model's float inputs and weights "
        f"are {found}. Pass the model's own dtype to optimize_model; it casts nothing."
    )


def missed_gqa(model: ir.Model, target: Target, records: Sequence[StageRecord]) -> str | None:
    """Return the warning if `GroupQueryAttention` was expected and `Attention` stayed.

    That is: GQAFusion ran, and an `Attention` with a cache stayed (one missed layer of 28 slows
    each token down), or nothing was fused at all and any `Attention` stayed. One that was to stay,
    because of what the model computes or the target gets wrong, is not counted: the report has
    the reason.

    Args:
        model: The model after the fusion phase.
        target: What it is built for.
        records: The stages that have run.
    """
    fusion = next((record for record in records if record.name == GQA_FUSION), None)
    if fusion is None:
        return None
    missed = [refusal for refusal in fusion.refusals if not refusal.inherent]
    names = {refusal.node for refusal in missed}
    fused = kept = with_cache = 0
    for node in model.graph.all_nodes():
        if (node.domain, node.op_type) == ("com.microsoft", "GroupQueryAttention"):
            fused += 1
        elif (node.domain, node.op_type) == ("", "Attention") and node_name(node) in names:
            kept += 1
            with_cache += len(node.inputs) > _PAST_KEY and node.inputs[_PAST_KEY] is not None
    if not with_cache and not (kept and not fused):
        return None
    message = (
        f"GQA fusion expected for ep={target.capabilities.name!r}/dtype={target.dtype.name} but "
        f"found {fused} GroupQueryAttention and {kept} Attention nodes. The model may run slower "
        "than expected on this EP. Check that the attention pattern matches the GQA rewrite rule."
    )
    return "\n  ".join([message, *refusal_lines(missed)])


def still_lacking(model: ir.Model, target: Target) -> list[str]:
    """Return a warning for each operator that stayed in the model although the target lacks it.

    The runtime then runs it elsewhere, with copies around it, or not at all.

    Args:
        model: The model after the last phase.
        target: What it is built for.
    """
    found: dict[tuple[str, str], list[ir.Node]] = collections.defaultdict(list)
    reasons: dict[tuple[str, str], set[str]] = collections.defaultdict(set)
    concerned = {(lack.domain, lack.op_type) for lack in target.capabilities.lacks}
    for node in model.graph.all_nodes():
        if (node.domain, node.op_type) not in concerned:
            continue
        in_its_dtype = dataclasses.replace(target, dtype=dtype_of(node) or target.dtype)
        lacks = lacks_of(in_its_dtype, node.domain, node.op_type, uses_of(node))
        if lacks:
            operator = (f"{node.domain}::{node.op_type}".lstrip(":"), lacks[0].attribute or "")
            found[operator].append(node)
            reasons[operator].update(lack.reason for lack in lacks if lack.reason)
    return [
        f"{len(nodes)} {name} nodes{f' with {attribute}' if attribute else ''} stay that "
        f"ep={target.capabilities.name!r} lacks in {target.dtype.name}: "
        f"{'; '.join(sorted(reasons[name, attribute])) or 'no reason is registered'} "
        f"(first: {nodes[0].name})."
        for (name, attribute), nodes in found.items()
    ]
