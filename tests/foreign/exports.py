"""Tiny random transformers models as `torch.onnx.export` writes them: `export(kind, opset)`.

Weights are random with the scale of trained ones; norms are not all ones, biases not zero.
"""

from __future__ import annotations

import io
import logging
import warnings
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn

VOCABULARY = 64
BATCH, LENGTH, PAST = 2, 9, 4

_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
_GROUPED = {**_SIZES, "num_key_value_heads": 2}


def _config(kind: str) -> Any:
    """Return the config of a kind; `llama-past` is a llama with a cache."""
    match kind:
        case "llama" | "llama-past":
            return transformers.LlamaConfig(**_GROUPED)
        case "qwen2":
            return transformers.Qwen2Config(**_GROUPED)
        case "mistral":
            return transformers.MistralConfig(**_GROUPED, sliding_window=4)
        case "gemma2":
            return transformers.Gemma2Config(
                **_GROUPED, head_dim=16, sliding_window=4, attn_implementation="eager"
            )
        case "gpt2":
            return transformers.GPT2Config(
                vocab_size=VOCABULARY, n_embd=64, n_layer=2, n_head=4, n_positions=64
            )
        case "bert":
            return transformers.BertConfig(**_SIZES)
        case "vit":
            sizes = {key: _SIZES[key] for key in _SIZES if not key.startswith(("vocab", "max"))}
            return transformers.ViTConfig(**sizes, image_size=32, patch_size=8)
    raise ValueError(kind)


class _Tokens(nn.Module):
    """The first result for ids and a padding mask."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        options = {} if "Bert" in type(self.model).__name__ else {"use_cache": False}
        return self.model(
            input_ids=input_ids, attention_mask=attention_mask, return_dict=False, **options
        )[0]


class _WithPast(nn.Module):
    """Logits and present keys and values of a decoder with a cache, one layer after the other."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Any, attention_mask: Any, past: Any) -> Any:
        cache = transformers.DynamicCache(config=self.model.config)
        for layer, (key, value) in enumerate(past):
            cache.update(key, value, layer)
        logits = self.model(
            input_ids=input_ids, attention_mask=attention_mask, past_key_values=cache
        ).logits
        return logits, [(layer.keys, layer.values) for layer in cache.layers]


class _Pixels(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: Any) -> Any:
        return self.model(pixel_values, return_dict=False)[0]


def export(kind: str, opset: int) -> bytes:
    """Return the model of a kind, exported at an opset."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = _config(kind)
    name = {"bert": "BertModel", "vit": "ViTModel"}.get(kind)
    if name is None:
        model = transformers.AutoModelForCausalLM.from_config(config)
    else:
        model = getattr(transformers, name)(config)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.2 * torch.randn_like(parameter)
    batch, length = torch.export.Dim("B"), torch.export.Dim("S", min=2, max=60)
    row = {0: batch, 1: length}
    ids = torch.zeros(BATCH, LENGTH, dtype=torch.int64)
    wrapped: nn.Module
    arguments: tuple[Any, ...]
    shapes: tuple[Any, ...]
    if kind == "vit":
        wrapped, arguments = _Pixels(model), (torch.zeros(2, 3, 32, 32),)
        shapes = ({0: batch},)
    elif kind == "llama-past":
        past = torch.export.Dim("P", min=2, max=60)
        cache = [tuple(torch.zeros(BATCH, 2, PAST, 16) for _ in range(2)) for _ in range(2)]
        wrapped = _WithPast(model)
        arguments = (ids, torch.ones(BATCH, LENGTH + PAST, dtype=torch.int64), cache)
        total = {0: batch, 1: torch.export.Dim.AUTO}
        shapes = (row, total, [({0: batch, 2: past},) * 2] * 2)
    else:
        wrapped, arguments, shapes = _Tokens(model), (ids, torch.ones_like(ids)), (row, row)
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                wrapped.eval(),
                arguments,
                dynamo=True,
                opset_version=opset,
                dynamic_shapes=shapes,
                verbose=False,
            )
    finally:
        logger.setLevel(level)
    buffer = io.BytesIO()
    program.save(buffer)
    return buffer.getvalue()


def inputs(names: list[str], batch: int = BATCH) -> dict[str, np.ndarray]:
    """Return inputs of an export: the second row is padded on the left or, without one, whole."""
    random = np.random.default_rng(0)
    past = any(name not in ("input_ids", "attention_mask", "pixel_values") for name in names)
    mask = np.ones((batch, LENGTH + (PAST if past else 0)), np.int64)
    mask[1:, :3] = 0
    values: dict[str, np.ndarray] = {}
    for name in names:
        if name == "input_ids":
            values[name] = random.integers(0, VOCABULARY, (batch, LENGTH))
        elif name == "attention_mask":
            values[name] = mask
        elif name == "pixel_values":
            values[name] = random.standard_normal((batch, 3, 32, 32)).astype(np.float32)
        else:
            values[name] = random.standard_normal((batch, 2, PAST, 16)).astype(np.float32)
    return values
