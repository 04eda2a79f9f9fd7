"""Trains the bundled story model from nothing, on two CPU cores, in a quarter of an hour.

    python examples/stories/train.py --out examples/stories/checkpoint

The stories come from the grammar in `corpus.py`. With `--evaluate` nothing is trained: the
checkpoint is loaded and evaluated.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from corpus import write_corpus
from evaluation import PROMPTS, check_samples, continue_greedily
from tokenizer import BOS_ID, EOS_ID, PAD_ID, save_tokenizer, train_tokenizer
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

POSITIONS = 256
VOCAB_SIZE = 512
THREADS = 2
IGNORED = -100


@dataclass(frozen=True)
class Recipe:
    """Everything the training run depends on.

    Attributes:
        seed: Seed of the weights and of the order of the batches.
        steps: Number of optimizer steps.
        batch: Stories in a batch.
        bucket: Batches that are sorted by length together, to save padding.
        peak_rate: The learning rate after warm-up.
        warmup: Steps over which the learning rate rises; it falls to zero over the others.
        weight_decay: Weight decay of the matrices.
        clip: Largest norm of the gradient.
    """

    seed: int = 1
    steps: int = 3000
    batch: int = 32
    bucket: int = 16
    peak_rate: float = 6e-3
    warmup: int = 150
    weight_decay: float = 0.1
    clip: float = 1.0

    def rate(self, step: int) -> float:
        """Returns the learning rate of a step: a linear rise, then half a cosine."""
        if step < self.warmup:
            return self.peak_rate * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.peak_rate * 0.5 * (1 + math.cos(math.pi * done))


TRAIN_SEED = 2024
HELD_OUT_SEED = 4048
HELD_OUT_STORIES = 1000


def make_model() -> LlamaForCausalLM:
    """Makes the untrained model; the weights follow torch's global seed."""
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=96,
        intermediate_size=224,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=POSITIONS,
        rms_norm_eps=1e-5,
        initializer_range=0.04,
        tie_word_embeddings=True,
        pad_token_id=PAD_ID,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
        dtype="float32",
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(
        pad_token_id=PAD_ID,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
        do_sample=False,
        max_new_tokens=POSITIONS - 32,
    )
    return model


def encode(tokenizer: PreTrainedTokenizerBase, stories: list[str]) -> list[list[int]]:
    """Returns the tokens of each story, from `<s>` to `</s>`."""
    return [[*ids, EOS_ID] for ids in tokenizer(stories)["input_ids"]]


def collate(rows: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Pads rows on the right and returns the tokens and the labels."""
    width = max(map(len, rows))
    tokens = torch.tensor([row + [PAD_ID] * (width - len(row)) for row in rows])
    labels = torch.tensor([row + [IGNORED] * (width - len(row)) for row in rows])
    return tokens, labels


def batches(
    tokenizer: PreTrainedTokenizerBase, stories: list[str], recipe: Recipe
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yields every story once, in batches of stories of similar length."""
    rng = random.Random(recipe.seed)
    size = recipe.batch * recipe.bucket
    for start in range(0, len(stories), size):
        bucket = sorted(encode(tokenizer, stories[start : start + size]), key=len)
        groups = [bucket[i : i + recipe.batch] for i in range(0, len(bucket), recipe.batch)]
        rng.shuffle(groups)
        yield from map(collate, groups)


def make_optimizer(model: PreTrainedModel, recipe: Recipe) -> torch.optim.Optimizer:
    """Makes an AdamW that decays the matrices and leaves the norms alone."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    groups = [
        {"params": matrices, "weight_decay": recipe.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.peak_rate, betas=(0.9, 0.97))


def train(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    stories: list[str],
    recipe: Recipe,
) -> None:
    """Trains the model in place, one pass over the stories."""
    optimizer = make_optimizer(model, recipe)
    model.train()
    started = time.perf_counter()
    for step, (tokens, labels) in enumerate(batches(tokenizer, stories, recipe)):
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate(step)
        loss = model(input_ids=tokens, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimizer.step()
        if step % 100 == 0 or step == recipe.steps - 1:
            elapsed = time.perf_counter() - started
            print(f"step {step:5d}  loss {loss.item():.4f}  {elapsed:6.1f} s", flush=True)
    model.eval()


@torch.no_grad()
def held_out_loss(model: PreTrainedModel, rows: list[list[int]], batch: int = 50) -> float:
    """Returns the mean cross-entropy of a token of the rows, in nats."""
    total, count = 0.0, 0
    for start in range(0, len(rows), batch):
        tokens, labels = collate(rows[start : start + batch])
        targets = int((labels[:, 1:] != IGNORED).sum())
        total += float(model(input_ids=tokens, labels=labels).loss) * targets
        count += targets
    return total / count


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Writes the checkpoint next to `out`, then moves its files into place."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as scratch:
        model.save_pretrained(scratch)
        save_tokenizer(tokenizer, Path(scratch))
        for path in sorted(Path(scratch).iterdir()):
            path.chmod(0o644)
            os.replace(path, out / path.name)


def evaluate(out: Path, stories: list[str]) -> None:
    """Loads a checkpoint and prints how well it does.

    Args:
        out: Folder of the checkpoint.
        stories: The stories it was trained on.
    """
    tokenizer = AutoTokenizer.from_pretrained(out)
    model = AutoModelForCausalLM.from_pretrained(out, attn_implementation="eager")
    model.eval()
    print(f"parameters     {sum(p.numel() for p in model.parameters()):,}")
    held_out = encode(tokenizer, write_corpus(HELD_OUT_STORIES, HELD_OUT_SEED))
    print(f"held-out loss  {held_out_loss(model, held_out):.4f} nats a token")
    torch.manual_seed(0)
    report = check_samples(model, tokenizer, stories, count=500)
    print(f"sampled        {report.sound:.1%} of stories without a fault")
    print(f"               {report.sentences:.1%} of sentences word for word in the corpus")
    print(f"               {report.novel:.1%} of stories new")
    for fault in report.faults:
        print(f"               fault: {fault}")
    for prompt in PROMPTS:
        said = continue_greedily(model, tokenizer, prompt)
        ending = "ended" if said.ended else "NOT ENDED"
        print(f"\n[{prompt}]  {said.tokens} tokens, {ending}, least margin {said.margin:.3f}")
        print(said.text)


def main() -> None:
    """Trains, saves and evaluates."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--steps", type=int, default=Recipe.steps, help="optimizer steps")
    parser.add_argument("--evaluate", action="store_true", help="only evaluate the checkpoint")
    arguments = parser.parse_args()

    torch.set_num_threads(THREADS)
    torch.use_deterministic_algorithms(True)
    recipe = Recipe(steps=arguments.steps)
    stories = write_corpus(recipe.steps * recipe.batch, TRAIN_SEED)
    if not arguments.evaluate:
        torch.manual_seed(recipe.seed)
        tokenizer = train_tokenizer(stories[:20000], VOCAB_SIZE, POSITIONS)
        model = make_model()
        train(model, tokenizer, stories, recipe)
        save(model, tokenizer, arguments.out)
    evaluate(arguments.out, stories)


if __name__ == "__main__":
    main()
