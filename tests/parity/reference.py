"""Tiny random transformers models, and the logits that a row has when it runs alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers

TINY: dict[str, Any] = {
    "vocab_size": 211,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}

# What the families of the slice have beyond llama's plain form, each past its own defaults.
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {
        "attention_bias": True,
        "mlp_bias": True,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    },
    "qwen2": {
        "use_sliding_window": True,
        "sliding_window": 5,
        "max_window_layers": 1,
        "tie_word_embeddings": True,
    },
    "qwen3": {"head_dim": 32, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    "mistral": {"sliding_window": 4},
}


def make_model(model_type: str, seed: int = 0, **overrides: Any) -> transformers.PreTrainedModel:
    """Return a model of `model_type` whose every weight matters: eager attention, float32."""
    settings = {**TINY, **CONFIGS.get(model_type, {}), **overrides}
    config = transformers.AutoConfig.for_model(model_type, **settings)
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", dtype=torch.float32
    ).eval()
    randomize(model, seed)
    return model


@torch.no_grad()
def randomize(model: torch.nn.Module, seed: int) -> None:
    """Give weights the scale of trained ones: no norm of ones, no bias of zeros, no flat scores."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim >= 2:
            scale = 1.2 / parameter.shape[-1] ** 0.5
            # Doubled queries and keys make attention choose, so that a wrong mask shows.
            scale *= 2.0 if any(part in name for part in ("q_proj", "k_proj")) else 1.0
            parameter.copy_(noise * scale)
        elif name.endswith("bias"):
            parameter.copy_(noise * 0.5)
        else:
            parameter.copy_(1.0 + 0.3 * noise)


@torch.no_grad()
def logits_alone(
    model: transformers.PreTrainedModel, tokens: npt.NDArray[np.int64]
) -> npt.NDArray[np.float32]:
    """Return the logits `[S, vocab]` of one row that runs by itself, all tokens in one pass."""
    result: npt.NDArray[np.float32] = model(torch.from_numpy(tokens)[None]).logits[0].numpy()
    return result
