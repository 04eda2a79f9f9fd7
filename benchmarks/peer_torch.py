"""The checkpoint in FOLDER as `torch.onnx.export` makes it, for `peers.py` to compare with.

Usage: python benchmarks/peer_torch.py FOLDER OUT [--no-weights]

It needs torch, transformers and onnxscript. With `--no-weights` FOLDER has a config.json alone, and
the graph is made and not written: there is nothing to fold (`optimize` reads the weights).
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import transformers


class WithFlatCache(torch.nn.Module):
    """A decoder whose cache goes in and out as tensors."""

    def __init__(self, model: transformers.PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, position_ids, *past):
        """Return logits, and the grown cache as keys and values of each layer."""
        pairs = list(zip(past[::2], past[1::2], strict=True))
        output = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=transformers.DynamicCache(pairs),
            use_cache=True,
        )
        layers = output.past_key_values.layers
        return (output.logits, *(part for layer in layers for part in (layer.keys, layer.values)))


def export(folder: Path, out: Path) -> None:
    """Write `model.onnx` into `out`."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    program = program_of(model, optimize=True)
    out.mkdir(parents=True)
    program.save(out / "model.onnx", external_data=True)


def export_graph(folder: Path) -> None:
    """Make the graph of a configuration."""
    config = transformers.AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        program_of(model, optimize=False)


def program_of(model: transformers.PreTrainedModel, *, optimize: bool) -> torch.onnx.ONNXProgram:
    """Export the model with its cache, all sizes open."""
    config = model.config
    layers, heads = config.num_hidden_layers, config.num_key_value_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    batch, tokens, before = 2, 3, 5
    past = [torch.zeros(batch, heads, before, size) for _ in range(2 * layers)]
    arguments = (
        torch.ones(batch, tokens, dtype=torch.int64),
        torch.ones(batch, before + tokens, dtype=torch.int64),
        torch.arange(before, before + tokens).repeat(batch, 1),
        *past,
    )
    names = [f"{layer}.{part}" for layer in range(layers) for part in ("key", "value")]
    row = {0: "batch", 1: "sequence_length"}
    shapes = (row, {0: "batch", 1: "total_sequence_length"}, row)
    grown = tuple({0: "batch", 2: "past_sequence_length"} for _ in past)
    return torch.onnx.export(
        WithFlatCache(model.eval()),
        arguments,
        dynamo=True,
        dynamic_shapes=(*shapes, grown),
        input_names=[
            *("input_ids", "attention_mask", "position_ids"),
            *(f"past_key_values.{name}" for name in names),
        ],
        output_names=["logits", *(f"present.{name}" for name in names)],
        optimize=optimize,
    )


if __name__ == "__main__":
    with torch.no_grad():
        if "--no-weights" in sys.argv:
            export_graph(Path(sys.argv[1]))
        else:
            export(Path(sys.argv[1]), Path(sys.argv[2]))
