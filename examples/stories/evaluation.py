"""Greedy continuations with their margins, and the soundness of sampled stories."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import checks
import torch
from tokenizer import BOS_ID, EOS_ID
from transformers import PreTrainedModel, PreTrainedTokenizerBase

PROMPTS = (
    "Once upon a time",
    "Once upon a time, there was a boy named",
    "One day,",
    "One day, a little girl named Mia",
    "There once was a kind boy named Sam.",
    "Tom was a happy boy. He had a blue boat.",
    "Anna was a little girl. She loved to play with her yellow kite.",
    "Once upon a time, there was a girl named Rose. Her favorite toy was a green drum.",
    "One day, a boy named Max found a red ball.",
)


@dataclass(frozen=True)
class Continuation:
    """What the model says after a prompt.

    Attributes:
        text: The prompt and its continuation.
        ended: Whether the continuation ends with the end-of-story token.
        tokens: Number of generated tokens.
        margin: The smallest lead, in logits, of a chosen token over the runner-up.
    """

    text: str
    ended: bool
    tokens: int
    margin: float


def continue_greedily(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompt: str
) -> Continuation:
    """Continues a prompt with the most likely token, one at a time.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        prompt: The beginning of a story.

    Returns:
        The continuation.
    """
    inputs = tokenizer(prompt, return_tensors="pt")
    output = model.generate(
        **inputs, do_sample=False, return_dict_in_generate=True, output_logits=True
    )
    tokens = output.sequences[0]
    best = torch.cat(output.logits).topk(2).values
    return Continuation(
        text=tokenizer.decode(tokens, skip_special_tokens=True),
        ended=bool(tokens[-1] == EOS_ID),
        tokens=len(output.logits),
        margin=float((best[:, 0] - best[:, 1]).min()),
    )


@dataclass(frozen=True)
class SampleReport:
    """How stories hold up that were sampled at temperature 1 from nothing.

    Attributes:
        sound: Share of stories without a fault.
        sentences: Share of sentences that occur word for word in the training corpus.
        novel: Share of stories that do not occur in the training corpus.
        faults: The faults found.
    """

    sound: float
    sentences: float
    novel: float
    faults: list[str]


def check_samples(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Collection[str],
    count: int,
) -> SampleReport:
    """Samples whole stories and checks them.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        corpus: The stories the model was trained on.
        count: How many stories to sample.

    Returns:
        The report.
    """
    start = torch.full((count, 1), BOS_ID)
    tokens = model.generate(start, attention_mask=torch.ones_like(start), do_sample=True, top_k=0)
    stories = tokenizer.batch_decode(tokens, skip_special_tokens=True)
    faults = [checks.find_faults(story) for story in stories]
    known = {sentence for story in corpus for sentence in checks.split_sentences(story)}
    sentences = [sentence for story in stories for sentence in checks.split_sentences(story)]
    seen = set(corpus)
    return SampleReport(
        sound=sum(not found for found in faults) / count,
        sentences=sum(sentence in known for sentence in sentences) / len(sentences),
        novel=sum(story not in seen for story in stories) / count,
        faults=[fault for found in faults for fault in found],
    )
