"""Fixtures: tiny GGUF files, written with the library that llama.cpp's converter uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest

Arrays = Mapping[str, npt.NDArray[Any]]
WriteGguf = Callable[..., Path]

WIDTH, INNER, HEADS, VOCAB = 64, 96, 4, 32

METADATA: dict[str, Any] = {
    "llama.context_length": 128,
    "llama.embedding_length": WIDTH,
    "llama.block_count": 1,
    "llama.feed_forward_length": INNER,
    "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 500000.0,
}


@pytest.fixture
def llama_metadata() -> dict[str, Any]:
    """Return the metadata of the one-layer llama."""
    return dict(METADATA)


@pytest.fixture
def llama_tensors() -> dict[str, npt.NDArray[np.float32]]:
    """Return the tensors of a one-layer llama with tied embeddings, all values different."""
    rng = np.random.default_rng(0)
    keys = WIDTH // 2
    shapes = {
        "token_embd": (VOCAB, WIDTH),
        "output_norm": (WIDTH,),
        "blk.0.attn_norm": (WIDTH,),
        "blk.0.ffn_norm": (WIDTH,),
        "blk.0.attn_q": (WIDTH, WIDTH),
        "blk.0.attn_k": (keys, WIDTH),
        "blk.0.attn_v": (keys, WIDTH),
        "blk.0.attn_output": (WIDTH, WIDTH),
        "blk.0.ffn_gate": (INNER, WIDTH),
        "blk.0.ffn_up": (INNER, WIDTH),
        "blk.0.ffn_down": (WIDTH, INNER),
    }
    return {
        f"{name}.weight": rng.standard_normal(shape, np.float32) for name, shape in shapes.items()
    }


@pytest.fixture
def write_gguf(tmp_path: Path, llama_tensors: Arrays) -> WriteGguf:
    """Return a function that writes a GGUF file and returns its path."""

    def write(
        name: str = "model.gguf",
        *,
        metadata: Mapping[str, Any] | None = None,
        tensors: Arrays | None = None,
        kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
        architecture: str = "llama",
    ) -> Path:
        """Write the one-layer llama, but for what is given; matrices are stored as `kind`."""
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        writer = gguf.GGUFWriter(path, architecture)
        for key, value in {**METADATA, **(metadata or {})}.items():
            if value is not None:
                writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))
        for tensor, values in (llama_tensors if tensors is None else tensors).items():
            stored = kind if values.ndim > 1 else gguf.GGMLQuantizationType.F32
            writer.add_tensor(tensor, gguf.quants.quantize(values, stored), raw_dtype=stored)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write
