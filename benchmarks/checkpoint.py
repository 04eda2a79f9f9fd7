"""A checkpoint of Qwen2.5-0.5B's shape with random bf16 weights and a tokenizer, for benchmarks.

Usage: python benchmarks/checkpoint.py FOLDER [--layers 24]

Norms are near one, biases near zero but not zero. config.json has the fields that transformers 4
reads and those that transformers 5 reads, so that every peer builds the same model.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import ml_dtypes
import numpy as np
import tokenizers
from safetensors.numpy import save_file

HIDDEN, INNER, HEADS, KV_HEADS, VOCABULARY, LAYERS = 896, 4864, 14, 2, 151936, 24


def shapes(layers: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor."""
    keys = HIDDEN // HEADS * KV_HEADS
    of_layer = {
        "input_layernorm.weight": (HIDDEN,),
        "post_attention_layernorm.weight": (HIDDEN,),
        "self_attn.q_proj.weight": (HIDDEN, HIDDEN),
        "self_attn.q_proj.bias": (HIDDEN,),
        "self_attn.k_proj.weight": (keys, HIDDEN),
        "self_attn.k_proj.bias": (keys,),
        "self_attn.v_proj.weight": (keys, HIDDEN),
        "self_attn.v_proj.bias": (keys,),
        "self_attn.o_proj.weight": (HIDDEN, HIDDEN),
        "mlp.gate_proj.weight": (INNER, HIDDEN),
        "mlp.up_proj.weight": (INNER, HIDDEN),
        "mlp.down_proj.weight": (HIDDEN, INNER),
    }
    named = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for layer in range(layers):
        named |= {f"model.layers.{layer}.{name}": shape for name, shape in of_layer.items()}
    return named


def write(folder: Path, layers: int = LAYERS) -> None:
    """Write config, weights and tokenizer into a new `folder`."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    tensors = {}
    for name, shape in shapes(layers).items():
        values = random.standard_normal(shape, np.float32)
        values = values * 0.1 if len(shape) == 1 else values * (0.8 / shape[1] ** 0.5)
        if name.endswith("norm.weight"):
            values += 1
        tensors[name] = values.astype(ml_dtypes.bfloat16)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "hidden_act": "silu",
        "max_position_embeddings": 32768,
        "max_window_layers": layers,
        "use_sliding_window": False,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 1,
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
    }
    generation = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    (folder / "config.json").write_text(json.dumps(config, indent=2), "utf-8")
    (folder / "generation_config.json").write_text(json.dumps(generation), "utf-8")
    write_tokenizer(folder)


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer of single bytes; its tokens are the first of the vocabulary."""
    special = ["<bos>", "<eos>"]
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*special, *alphabet])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    tokenizer.add_special_tokens(special)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<eos>",
        "model_max_length": 32768,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="is made; must not exist")
    parser.add_argument("--layers", type=int, default=LAYERS)
    arguments = parser.parse_args()
    write(arguments.folder, arguments.layers)


if __name__ == "__main__":
    main()
