"""Random decoder graphs: what a configuration allows, cut open in places that rules care about."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import onnxruntime as ort
from hypothesis import strategies as st

import mobius

HEADS = ((2, 1), (4, 2), (4, 4), (3, 1))
LENGTHS = (7, 4)  # real tokens of each row: longer than the windows, and padded on the right
VOCAB = 40


@dataclasses.dataclass(frozen=True)
class Cut:
    """A place where the graph is opened: the n-th activation gets another reader or leaves."""

    index: int
    leaves: bool


@st.composite
def configs(draw: st.DrawFn) -> mobius.ArchitectureConfig:
    """Return a decoder of one or two layers with any mix of features."""
    heads, kv_heads = draw(st.sampled_from(HEADS))
    head_dim = draw(st.sampled_from((8, 16, 20, 32)))
    layers = draw(st.integers(1, 2))
    window = draw(st.sampled_from((None, None, 2, 5)))
    kinds = st.sampled_from(("full_attention", "sliding_attention"))
    mixed = window is not None and draw(st.booleans())
    positions = draw(st.sampled_from(("rotary", "rotary", "rotary", "learned", "alibi", "none")))
    rotary = positions == "rotary"
    return mobius.ArchitectureConfig(
        vocab_size=VOCAB,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=32,
        position_embedding=positions,
        partial_rotary_factor=draw(st.sampled_from((1.0, 0.5))) if rotary else 1.0,
        rope_interleaved=draw(st.booleans()),
        rope_layers=(True, False)[:layers] if rotary and draw(st.booleans()) else None,
        attention_bias=draw(st.booleans()),
        attention_output_bias=draw(st.booleans()),
        mlp_bias=draw(st.booleans()),
        mlp_gated=draw(st.booleans()),
        hidden_act=draw(st.sampled_from(("silu", "gelu", "gelu_new", "relu2"))),
        qk_norm=draw(st.sampled_from((None, None, "head", "full"))),
        qk_norm_after_rotary=draw(st.booleans()),
        sliding_window=window,
        layer_types=tuple(draw(kinds) for _ in range(layers)) if mixed else None,
        attn_logit_softcapping=draw(st.sampled_from((None, None, 2.0))),
        final_logit_softcapping=draw(st.sampled_from((None, 3.0))),
        attention_scale=draw(st.sampled_from((None, None, 0.2))),
        norm_type=draw(st.sampled_from(("rms", "rms", "layer", "layer_no_bias", "layer_plain"))),
        layer_layout=draw(
            st.sampled_from(
                ("pre_norm", "pre_norm", "post_norm", "sandwich", "parallel", "parallel_two_norms")
            )
        ),
        embedding_multiplier=draw(st.sampled_from((None, 3.0))),
        residual_multiplier=draw(st.sampled_from((None, 0.5))),
        tie_word_embeddings=draw(st.booleans()),
    )


cuts = st.lists(st.builds(Cut, st.integers(0, 200), st.booleans()), max_size=3)


def build(config: mobius.ArchitectureConfig, seed: int, opened: list[Cut]) -> ir.Model:
    """Return the graph as components emit it, with random weights, opened at `opened`."""
    task = mobius.tasks.CausalLMTask()
    model = task.build(mobius.models.CausalLMModel(config), config)["model"]
    random = np.random.default_rng(seed)
    for name, value in model.graph.initializers.items():
        if value.const_value is None:
            shape = [int(dim) for dim in value.shape]
            noise = random.standard_normal(shape) * 1.2 / shape[-1] ** 0.5
            if len(shape) == 1:
                noise = noise if name.endswith("bias") else 1.0 + 0.3 * noise * shape[-1] ** 0.5
            value.const_value = ir.tensor(noise.astype(np.float32), name=name)
    _open(model, opened)
    return model


def _open(model: ir.Model, opened: list[Cut]) -> None:
    activations = [
        output
        for node in model.graph
        for output in node.outputs
        if output.dtype == ir.DataType.FLOAT
        and output.shape is not None
        and len(output.shape) == 3
        and output.shape[1] == "sequence_length"
        and not output.is_graph_output()
    ]
    for number, cut in enumerate(opened):
        value = activations[cut.index % len(activations)]
        if cut.leaves and not value.is_graph_output():
            model.graph.outputs.append(value)
            continue
        copy = ir.val(f"opened_{number}", ir.DataType.FLOAT, value.shape)
        model.graph.append(ir.node("Neg", [value], outputs=[copy], name=f"opened_{number}"))
        model.graph.outputs.append(copy)


def run(model: ir.Model, config: mobius.ArchitectureConfig) -> dict[str, npt.NDArray[Any]]:
    """Return every output at real tokens: a padded prefill, then one decode step."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(
        ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [each.name for each in session.get_outputs()]
    random = np.random.default_rng(1)
    length, batch = max(LENGTHS), len(LENGTHS)
    mask = (np.arange(length)[None] < np.array(LENGTHS)[:, None]).astype(np.int64)
    feed: dict[str, npt.NDArray[Any]] = {
        "input_ids": random.integers(0, VOCAB, (batch, length)),
        "attention_mask": mask,
        "position_ids": np.clip(np.cumsum(mask, 1) - 1, 0, None),
    }
    empty = np.zeros((batch, config.kv_heads, 0, config.head_size), np.float32)
    for layer in range(config.num_hidden_layers):
        feed |= {f"past_key_values.{layer}.{part}": empty for part in ("key", "value")}
    prefill = dict(zip(names, session.run(names, feed), strict=True))
    grown = np.concatenate([mask, np.ones((batch, 1), np.int64)], axis=1)
    feed |= {
        "input_ids": random.integers(0, VOCAB, (batch, 1)),
        "attention_mask": grown,
        "position_ids": mask.sum(1, keepdims=True),
        **{
            name.replace("present", "past_key_values"): value
            for name, value in prefill.items()
            if name.startswith("present.")
        },
    }
    step = dict(zip(names, session.run(names, feed), strict=True))
    real = mask.astype(bool)
    results = {f"prefill {n}": v[real] for n, v in prefill.items() if v.shape[1] == length}
    # The cache's rows may lie elsewhere where a kernel packs them; its contents show in the step.
    results |= {f"step {n}": v for n, v in step.items() if not n.startswith("present.")}
    return results
