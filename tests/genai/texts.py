"""Greedy continuations of token lists: transformers' and onnxruntime-genai's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime_genai as og
import torch
import transformers

PAD, EOS = 0, (1, 106)
MARGIN = 1e-3  # between the best two logits of what transformers says; ours differ by 1e-4


class Tie(AssertionError):
    """Which token is the likeliest is not certain."""


def set_special_tokens(model: transformers.PreTrainedModel) -> None:
    """Give `model` special tokens that config.json and generation_config.json differ about."""
    model.config.pad_token_id = PAD
    model.config.eos_token_id = EOS[0]
    model.generation_config.pad_token_id = PAD
    model.generation_config.eos_token_id = list(EOS)


def expected(
    model: transformers.PreTrainedModel,
    prompt: Sequence[int],
    count: int,
    eos: Sequence[int] = EOS,
) -> list[int]:
    """Return what transformers says after `prompt`, the token that ends it left out."""
    output = model.generate(
        torch.tensor([list(prompt)]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        do_sample=False,
        max_new_tokens=count,
        eos_token_id=list(eos),
        return_dict_in_generate=True,
        output_logits=True,
    )
    best = torch.cat(output.logits).topk(2).values
    if (best[:, 0] - best[:, 1]).min() < MARGIN:
        raise Tie("two tokens are as likely as each other: another prompt is needed")
    tokens = output.sequences[0, len(prompt) :].tolist()
    return tokens[:-1] if tokens[-1] in eos else tokens


def assert_said(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> None:
    """Compare rows; one of ours that ends before others has the token that ends it, and padding."""
    for our, their in zip(ours, theirs, strict=True):
        assert our[: len(their)] == their
        rest = our[len(their) :]
        assert not rest or (rest[0] in EOS and set(rest[1:]) <= {PAD})


class Text:
    """One text, or a batch of them, in onnxruntime-genai on the CPU."""

    def __init__(
        self,
        folder: Path,
        length: int,
        *,
        batch: int = 1,
        eos: Sequence[int] = EOS,
        **search: object,
    ) -> None:
        """Load the package in `folder`, for texts of up to `length` tokens."""
        config = og.Config(str(folder))
        config.overlay(json.dumps({"model": {"eos_token_id": list(eos)}}))
        config.clear_providers()  # the arithmetic of every EP's graph runs on the CPU
        self._model = og.Model(config)
        parameters = og.GeneratorParams(self._model)
        parameters.set_search_options(
            do_sample=False, max_length=length, batch_size=batch, **search
        )
        self.generator = og.Generator(self._model, parameters)

    def say(self, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
        """Read a prompt a row, right-padded, and return up to `count` tokens after each.

        The token that ends a text is left out, but a row that ends before others is filled.
        """
        width = max(map(len, prompts))
        rows = [[*prompt, *[PAD] * (width - len(prompt))] for prompt in prompts]
        before = self.generator.token_count()
        self.generator.append_tokens(np.array(rows, np.int32))
        while self.generator.token_count() < before + width + count:
            if self.generator.is_done():
                break
            self.generator.generate_next_token()
        return [
            self.generator.get_sequence(row)[before + width :].tolist()
            for row in range(len(prompts))
        ]
