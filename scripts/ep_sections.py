"""The generated parts of the pages about execution providers, from the registry and `mobius.plan`.

`overview()` and `lacks()` are tables of all built-in providers; `facts(name)` is what the page of
one has: what it is, what is fused and lowered, and what a layer of a Llama becomes.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
import warnings
from collections.abc import Iterable, Sequence

import onnx_ir as ir
import rule_pages

import mobius
from mobius import ArchitectureConfig
from mobius.dtypes import short_name
from mobius.models import CausalLMModel
from mobius.padding import PaddingSide
from mobius.pipeline import STAGES
from mobius.trace import LOGGER_NAME
from mobius_eps import EpCapabilities, Lack
from mobius_eps.builtin import BUILTIN_EPS
from mobius_eps.capabilities import NEWEST_OPSET
from mobius_ir_rules.passes.graphs import op_counts

# The stages without a page of a rule.
OTHER_STAGES = {
    "Cleanup": "identities, duplicates and constants go; shapes are inferred",
    "InlinePass": "operators that the EP lacks become their bodies",
    "LowerOpset": "the newest opset that the EP runs",
    "Fold": "what rewriting left to compute now is computed; dead nodes go",
}
_ATTENTION_BIAS = 10  # input of GroupQueryAttention
_LLAMA = ArchitectureConfig(
    vocab_size=128,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=64,
)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(each or " " for each in line) + " |" for line in lines)


def names(dtypes: Iterable[ir.DataType]) -> str:
    """Return the short names of dtypes."""
    return ", ".join(map(short_name, sorted(dtypes)))


def overview() -> str:
    """Return a row for each built-in provider."""
    header = ("EP", "dtypes", "GroupQueryAttention", "packed QKV", "opset", "ONNX Runtime's name")
    return table(
        header,
        (
            (
                f"[{each.name}](eps/{each.name}.md)",
                names(each.dtypes),
                names(each.gqa_dtypes) or "-",
                names(each.qkv_pack_dtypes) or "-",
                str(each.max_opset),
                each.runtime_names.ort or "-",
            )
            for each in BUILTIN_EPS
        ),
    )


def lacks() -> str:
    """Return a row for each operator that some built-in provider lacks."""
    found: dict[tuple[str, str, str, str], list[str]] = collections.defaultdict(list)
    for each in BUILTIN_EPS:
        for lack in each.lacks:
            found[_lack_row(lack)].append(each.name)
    rows = ((*row[:3], ", ".join(eps), row[3]) for row, eps in sorted(found.items()))
    return table(("operator", "in", "where", "EPs", "reason"), rows)


def _lack_row(lack: Lack) -> tuple[str, str, str, str]:
    operator = f"{lack.domain}::{lack.op_type}".removeprefix("::")
    where = "everywhere" if lack.attribute is None else f"with `{lack.attribute}`"
    return f"`{operator}`", names(lack.dtypes) or "every dtype", where, lack.reason


def trace() -> str:
    """Return what a traced build of a Llama of two layers logs for cuda in f16."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger(LOGGER_NAME)
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    config = dataclasses.replace(_LLAMA, num_hidden_layers=2, layer_types=None)
    mobius.build_from_module(
        CausalLMModel(config),
        config,
        execution_provider="cuda",
        dtype="f16",
        trace_optimization=True,
    )
    logger.removeHandler(handler)
    return "\n".join(["```text", *lines, "```"])


def facts(name: str) -> str:
    """Return the generated part of the page of one provider."""
    capabilities = next(each for each in BUILTIN_EPS if each.name == name)
    parts = [
        _facts(capabilities),
        "## Stages",
        "For a decoder. A stage that is not listed does not run for this EP.",
        _stages(capabilities),
        "## One layer",
        "What a layer of a Llama (grouped heads, RMS norm, SwiGLU) is made of once it is built.",
        _layers(capabilities),
        "## Padding",
        "What attends in that layer, and on which side the rows of a batch may be padded.",
        _padding(capabilities),
    ]
    if capabilities.lacks:
        header = ("operator", "in", "where", "reason")
        rows = map(_lack_row, capabilities.lacks)
        parts += ["## What it lacks", table(header, rows)]
    return "\n\n".join(parts)


def _facts(each: EpCapabilities) -> str:
    options = ", ".join(f"`{key}={value}`" for key, value in each.provider_options.items())
    domains = ", ".join(f"`{domain or 'ai.onnx'}`" for domain in sorted(each.allowed_domains))
    bodies = "kept, for a runtime that lacks an operator" if each.keeps_function_bodies else "none"
    return table(
        ("", ""),
        (
            ("dtypes", names(each.dtypes)),
            ("newest opset", f"{each.max_opset} (models are written in {NEWEST_OPSET})"),
            ("operator domains", domains),
            ("function bodies", bodies),
            ("ONNX Runtime's name", each.runtime_names.ort or "none"),
            ("name in `genai_config.json`", each.runtime_names.genai or "not known there"),
            ("provider options", options or "none"),
            ("graph capture", "on" if each.enable_graph_capture else "off"),
            ("accuracy level of INT4", str(each.default_int4_accuracy_level)),
        ),
    )


def _stages(each: EpCapabilities) -> str:
    dtypes = [dtype for dtype in rule_pages.DTYPES if dtype in each.dtypes]
    plans = {dtype: {stage.name for stage in mobius.plan(each, dtype)} for dtype in dtypes}
    pages = _pages_of_stages()
    rows = []
    for stage in STAGES:
        if not any(stage.name in plan for plan in plans.values()):
            continue
        page, what = pages.get(stage.name) or (None, OTHER_STAGES[stage.name])
        label = f"[{stage.name}](../rules/{page})" if page else stage.name
        marks = ("x" if stage.name in plans[dtype] else "" for dtype in dtypes)
        rows.append((stage.phase.value, label, what, *marks))
    return table(("phase", "stage", "makes", *(short_name(dtype) for dtype in dtypes)), rows)


def _pages_of_stages() -> dict[str, tuple[str, str]]:
    """Return, for the name of a stage, the page of its rule and what the rule does."""
    found: dict[str, tuple[str, str]] = {}
    for module in rule_pages.modules():
        _, _, what = (module.__doc__ or "").partition("\n")[0].partition(": ")
        use = rule_pages.uses().get(module.__name__, rule_pages.Use())
        for stage in use.stages:
            found.setdefault(stage, (rule_pages.file_name(module), what.rstrip(".")))
    return found


def _layers(each: EpCapabilities) -> str:
    rows = []
    for dtype in (dtype for dtype in rule_pages.DTYPES if dtype in each.dtypes):
        counts = collections.Counter(op_counts(_decoder(each, dtype, layers=4)))
        counts.subtract(op_counts(_decoder(each, dtype, layers=3)))
        listed = [
            f"{count} `{operator.rpartition('::')[2]}`"
            for operator, count in counts.most_common()
            if count
        ]
        rows.append((short_name(dtype), ", ".join(listed)))
    return table(("dtype", "operators"), rows)


def _padding(each: EpCapabilities) -> str:
    rows = []
    for dtype in (dtype for dtype in rule_pages.DTYPES if dtype in each.dtypes):
        forms = [_attention(_decoder(each, dtype, padding_side=str(side))) for side in PaddingSide]
        rows.append((short_name(dtype), *forms))
    header = ("dtype", *(f'`padding_side="{side}"`' for side in PaddingSide))
    return table(header, rows)


def _attention(model: ir.Model) -> str:
    """Return what attends in a graph, and where it takes padding."""
    for node in model.graph:
        if node.op_type == "GroupQueryAttention":
            by_length = not any(node.inputs[_ATTENTION_BIAS:])
            return f"`{node.op_type}`" + (": right" if by_length else " with the mask: either side")
        if node.op_type == "Attention":
            return "`Attention`: either side"
    return "`MatMul` and `Softmax`: either side"


def _decoder(
    each: EpCapabilities, dtype: ir.DataType, *, layers: int = 1, padding_side: str = "right"
) -> ir.Model:
    config = dataclasses.replace(_LLAMA, num_hidden_layers=layers, layer_types=None)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "GQA fusion expected")  # the table says it
        package = mobius.build_from_module(
            CausalLMModel(config),
            config,
            execution_provider=each,
            dtype=dtype,
            padding_side=padding_side,
        )
    return package["model"]
