"""A checkpoint as transformers runs it: what `mobius verify --against-hf` compares with.

The one place that has transformers load a model. It needs torch, which Mobius itself never does:
nothing here imports it, and without it there is a clear error.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

from mobius.ort import Array
from mobius.sources import SourceOptions
from mobius_hf.errors import HuggingFaceError
from mobius_hf.repository import open_repository

__all__ = ["ReferenceModelError", "TransformersReference", "open_reference"]


class ReferenceModelError(HuggingFaceError, ValueError):
    """transformers cannot load or run a checkpoint."""


class TransformersReference:
    """A causal language model in float32, with transformers' own attention ("eager").

    Attributes:
        vocab_size: Number of logits.
    """

    vocab_size: int

    def __init__(self, model: Any, tokenizer: Any | None) -> None:
        model.requires_grad_(False)
        self._model = model.eval()
        self._tokenizer = tokenizer
        self.vocab_size = int(model.get_output_embeddings().weight.shape[0])

    def tokens(self, text: str) -> list[int] | None:
        """Return the tokens of a text; `None` if the checkpoint has no tokenizer."""
        if self._tokenizer is None:
            return None
        # Not "verbose": whoever asks cuts the tokens to what the model reads.
        return [int(token) for token in self._tokenizer.encode(text, verbose=False)]

    def logits(self, tokens: Sequence[int]) -> Array:
        """Return the logits after each of `tokens`, float32 `[tokens, vocab]`."""
        # A tensor of the right kind, without importing what makes tensors.
        ids = self._model.dummy_inputs["input_ids"].new_tensor([list(tokens)])
        logits: Array = self._model(input_ids=ids, use_cache=False).logits[0].float().numpy()
        return logits


def open_reference(model: str, options: SourceOptions) -> TransformersReference:
    """Load `model`, a folder or hub id, with transformers.

    Raises:
        ReferenceModelError: if torch is missing, or transformers does not load it.
        ModelNotFoundError: if there is no such folder or repository.
        HubError: if the hub cannot be reached.
    """
    if importlib.util.find_spec("torch") is None:
        raise ReferenceModelError(
            "Running a checkpoint with transformers needs torch, which is not installed. Install "
            "it (https://pytorch.org/get-started), or compare with another package: mobius verify "
            "A B."
        )
    repository = open_repository(model, options)
    names = repository.names()
    import transformers

    arguments = {
        "revision": options.revision,
        "token": options.token,
        "cache_dir": options.cache_dir,
        "local_files_only": options.offline,
    }
    try:
        loaded = transformers.AutoModelForCausalLM.from_pretrained(
            model, dtype="float32", attn_implementation="eager", **arguments
        )
        tokenizer = None
        if names & {"tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json"}:
            tokenizer = transformers.AutoTokenizer.from_pretrained(model, **arguments)
    except Exception as error:  # whatever a model class, a tokenizer or torch raises
        raise ReferenceModelError(f"transformers does not load {model}: {error}") from error
    return TransformersReference(loaded, tokenizer)
