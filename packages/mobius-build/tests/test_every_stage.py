"""What holds of a graph after every stage, and of what is built: names, whole norms."""

from __future__ import annotations

import collections
from collections.abc import Sequence

import onnx_ir as ir
import pytest

from mobius import build_context, build_from_module, tasks
from mobius.models import CausalLMModel
from mobius.optimizer import observed, optimize_model
from mobius.report import StageRecord
from mobius.stage import Phase, Target
from mobius_components import ArchitectureConfig
from mobius_eps import get_ep
from mobius_eps.builtin import BUILTIN_EPS
from mobius_ir_rules.passes.graphs import all_nodes, roots, values_of
from mobius_ir_rules.testing import op_counts

CONFIG = ArchitectureConfig(
    vocab_size=64,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=64,
    attention_bias=True,
    qk_norm="head",
    sliding_window=4,
    layer_types=("sliding_attention", "full_attention", "sliding_attention"),
    hidden_act="gelu_new",
    tie_word_embeddings=True,
)
TARGETS = [(caps.name, dtype) for caps in BUILTIN_EPS for dtype in sorted(caps.dtypes)]


class Names:
    """Requires after each stage that no name is there twice."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.stages: list[str] = []

    def started(self, target: Target) -> None:
        """Nothing is to be seen yet."""

    def phase_started(
        self, phase: Phase, target: Target, passes: Sequence[ir.passes.PassBase]
    ) -> None:
        """Nothing has changed."""

    def stage_finished(self, record: StageRecord) -> None:
        """Look at the names."""
        self.stages.append(record.name)
        for root in roots(self.model):
            values = [value.name for value in values_of(root) if value.name]
            nodes = [node.name for node in all_nodes(root) if node.name]
            for names in (values, nodes):
                counts = collections.Counter(names)
                assert [name for name in counts if counts[name] > 1] == [], record.name

    def finished(self, records: Sequence[StageRecord]) -> None:
        """All stages were seen."""
        assert [record.name for record in records] == self.stages


@pytest.mark.parametrize(("ep", "dtype"), TARGETS, ids=str)
def test_names_are_unique_after_every_stage(ep: str, dtype: ir.DataType) -> None:
    """C077: values and nodes, in the graph, its subgraphs and each function."""
    capabilities = get_ep(ep)
    with build_context(capabilities, dtype):
        model = tasks.TASKS["text-generation"].build(CausalLMModel(CONFIG), CONFIG)["model"]
    names = Names(model)
    with observed(names):
        optimize_model(model, capabilities, dtype)
    assert {"Cleanup", "InlinePass", "Fold"} <= set(names.stages)


@pytest.mark.parametrize(("ep", "dtype"), TARGETS, ids=str)
def test_norms_are_whole_where_the_target_has_them(ep: str, dtype: ir.DataType) -> None:
    """C121: a norm written out overflows in float16 on some runtimes."""
    package = build_from_module(CausalLMModel(CONFIG), CONFIG, execution_provider=ep, dtype=dtype)
    counts = op_counts(package["model"])
    lacking = any(lack.op_type == "RMSNormalization" for lack in get_ep(ep).lacks)
    assert counts["Pow"] == 0
    assert (counts["ReduceMean"] > 0) == lacking
    # Where it must be, the square is taken in float32.
    assert not lacking or dtype == ir.DataType.FLOAT or counts["Cast"] >= counts["ReduceMean"]
