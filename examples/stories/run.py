"""Builds the bundled model for an execution provider and lets ONNX Runtime tell a story.

Usage: python examples/stories/run.py [--ep cpu] [--prompt "Once upon a time"] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime as ort
from tokenizers import Tokenizer

import mobius

CHECKPOINT = Path(__file__).parent / "checkpoint"


def greedy(session: ort.InferenceSession, prompt: list[int], limit: int) -> Iterator[int]:
    """Yield the most likely next tokens of one sequence, at most `limit`, end token included."""
    names = [each.name for each in session.get_outputs()]
    cache = {
        each.name: np.zeros((1, each.shape[1], 0, each.shape[3]), np.float32)
        for each in session.get_inputs()
        if each.name.startswith("past_key_values.")
    }
    tokens, length = prompt, 0
    for _ in range(limit):
        positions = np.arange(length, length + len(tokens), dtype=np.int64)[None]
        length += len(tokens)
        feed = {
            "input_ids": np.array([tokens], np.int64),
            "attention_mask": np.ones((1, length), np.int64),
            "position_ids": positions,
            **cache,
        }
        outputs = dict(zip(names, session.run(names, feed), strict=True))
        cache = {name: outputs[name.replace("past_key_values", "present")] for name in cache}
        tokens = [int(outputs["logits"][0, -1].argmax())]
        yield tokens[0]


def tell(package: Path, prompt: str, limit: int = 200) -> str:
    """Return the story that the saved package in `package` continues `prompt` with."""
    tokenizer = Tokenizer.from_file(str(package / "tokenizer.json"))
    session = ort.InferenceSession(package / "model.onnx", providers=["CPUExecutionProvider"])
    ids = tokenizer.encode(prompt).ids
    end = tokenizer.token_to_id("</s>")
    story = list(ids)
    for token in greedy(session, ids, limit):
        if token == end:
            break
        story.append(token)
    return tokenizer.decode(story)


def main() -> None:
    """Build, save, run, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ep", default="cpu", help="execution provider (default: cpu)")
    parser.add_argument("--prompt", default="Once upon a time", help="how the story begins")
    parser.add_argument("--out", type=Path, help="keep the package in this folder")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        out = arguments.out or Path(scratch) / "stories"
        mobius.build(CHECKPOINT, execution_provider=arguments.ep).save(out)
        print(f"Built for {arguments.ep}: {', '.join(sorted(p.name for p in out.iterdir()))}\n")
        print(tell(out, arguments.prompt))


if __name__ == "__main__":
    main()
