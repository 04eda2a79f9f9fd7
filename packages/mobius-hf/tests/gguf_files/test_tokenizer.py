"""tokenizer.json from a vocabulary in metadata: the ids of the tokenizer that it came from."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers
from tokenizers import models, pre_tokenizers, trainers

import mobius
from mobius_hf.gguf.tokenizer import tokenizer_files

WriteGguf = Callable[..., Path]

CORPUS = [
    "Once upon a time, in 1984, there was a naïve robot.",
    "It didn't know that 3.14159 isn't 2.71828; they've said so.",
    "def f(x):\n    return x ** 2  # squares\n\n",
    "東京 and Zürich are cities, aren't they?\r\n",
] * 4
TEXTS = [
    *CORPUS[:4],
    "  leading and   inner spaces \n\n\n and lines\t",
    "I'LL we'd 1234567 ⅷ ½ 🙂",
    "cafe\u0301 is café",
    "<|end|>user said<|end|>",
    "",
]
CONFIG = {"max_position_embeddings": 128, "bos_token_id": 0, "eos_token_id": [0]}


def trained() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return vocabulary and merges of byte-level BPE, trained on the corpus."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|end|>"],
        initial_alphabet=sorted(alphabet),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    content = json.loads(tokenizer.to_str())["model"]
    return content["vocab"], [tuple(merge) for merge in content["merges"]]


def byte_level(pre: str, **own: Any) -> dict[str, Any]:
    vocab, merges = trained()
    tokens = sorted(vocab, key=vocab.__getitem__)
    values = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": [3 if token == "<|end|>" else 1 for token in tokens],
        "merges": [" ".join(merge) for merge in merges],
        "bos_token_id": 0,
        "eos_token_id": 0,
        **own,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in values.items()}


def load(metadata: dict[str, Any], folder: Path) -> Any:
    for name, make in tokenizer_files(metadata, CONFIG).items():
        (folder / name).write_text(make(), "utf-8")
    return transformers.AutoTokenizer.from_pretrained(folder)


def with_digits(vocab: Any, merges: Any) -> Any:
    """GPT-2's tokenizer with single digits, as SmolLM and StarCoder have it."""
    reference = transformers.GPT2Tokenizer(vocab=vocab, merges=merges)
    reference.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    return reference


REFERENCES: dict[str, Callable[[Any, Any], Any]] = {
    "gpt-2": lambda vocab, merges: transformers.GPT2Tokenizer(vocab=vocab, merges=merges),
    "smollm": with_digits,
    "qwen2": lambda vocab, merges: transformers.Qwen2Tokenizer(
        vocab=vocab, merges=merges, eos_token="<|end|>", pad_token="<|end|>", unk_token=None
    ),
}


@pytest.mark.parametrize("pre", REFERENCES)
def test_byte_level(tmp_path: Path, pre: str) -> None:
    vocab, merges = trained()
    reference = REFERENCES[pre](vocab, merges)
    ours = load(byte_level(pre), tmp_path)
    reference.add_special_tokens({"additional_special_tokens": ["<|end|>"]})
    for text in TEXTS:
        expected = reference(text)["input_ids"]
        assert ours(text)["input_ids"] == expected, text
        assert ours.decode(expected) == reference.decode(expected)


def test_llama3_keeps_three_digits_together_and_whole_tokens(tmp_path: Path) -> None:
    vocab, merges = trained()
    whole = "Ġrobotics"
    extended = byte_level("llama-bpe", add_bos_token=False)
    extended["tokenizer.ggml.tokens"] = [*extended["tokenizer.ggml.tokens"], whole, "123"]
    extended["tokenizer.ggml.token_type"] = [*extended["tokenizer.ggml.token_type"], 1, 1]
    ours = load(extended, tmp_path)
    assert ours.convert_ids_to_tokens(ours(" robotics1234")["input_ids"])[:2] == [whole, "123"]
    # No merge makes them, so a tokenizer that follows merges alone would not find them.
    assert ("Ġrobot", "ics") not in merges
    assert whole not in vocab


@pytest.mark.parametrize("added", [True, False])
def test_the_first_token(tmp_path: Path, added: bool) -> None:
    ours = load(byte_level("gpt-2", add_bos_token=added), tmp_path)
    ids = ours("Once")["input_ids"]
    assert (ids[0] == 0) is added
    assert (ours.bos_token, ours.eos_token) == ("<|end|>", "<|end|>")


def test_llama3_puts_the_first_token_in_front_unless_the_file_says_otherwise(
    tmp_path: Path,
) -> None:
    assert load(byte_level("llama-bpe"), tmp_path)("Once")["input_ids"][0] == 0


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("gpt-4o", "HelloWorld's 12345 a/b//\n", "Hello|World's| |123|45| a|/b|//\n"),
        ("tekken", "HelloWorld's 12 a", "Hello|World|'s| |1|2| a"),
        ("deepseek-v3", "#define a 1234 日本 (y)", "#define| a| |123|4| |日本| (|y|)"),
        ("qwen35", "I'm 12 क्षि!", "I|'m| |1|2| क्षि|!"),
        ("qwen2", "क्षि", "क|्ष|ि"),
        ("seed-coder", "end.\n\n12", "end|.|\n\n|1|2"),
        ("qwen2", "end.\n\n12", "end|.\n\n|1|2"),
        ("bloom", "Hi, there 12", "Hi|,| there| 12"),
        ("glm4", "I'LL 1234", "I|'LL| |123|4"),
    ],
)
def test_how_a_text_is_split(tmp_path: Path, pre: str, text: str, pieces: str) -> None:
    """By hand, from the expressions of the models' own tokenizer.json."""
    splitter = load(byte_level(pre), tmp_path).backend_tokenizer.pre_tokenizer
    found = [text[start:end] for _, (start, end) in splitter.pre_tokenize_str(text)]
    assert found == pieces.split("|")


def test_chat_template(tmp_path: Path) -> None:
    metadata = byte_level("gpt-2")
    metadata["tokenizer.chat_template"] = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
    ours = load(metadata, tmp_path)
    messages = [{"role": "user", "content": "hi"}]
    assert ours.apply_chat_template(messages, tokenize=False) == "[hi]"


PIECES = ["▁", "a", "b", "c", "ab", "▁a", "bc", "abc", "▁ab", "▁abc", "ca", "cab", "▁c"]


def sentence_piece(**own: Any) -> dict[str, Any]:
    """Return a vocabulary as SentencePiece makes it: special tokens, bytes, pieces with scores."""
    special = ["<unk>", "<s>", "</s>"]
    letters = [f"<0x{value:02X}>" for value in range(256)]
    scores = [0.0] * (len(special) + 256) + [-float(index) for index in range(len(PIECES))]
    values = {
        "model": "llama",
        "tokens": special + letters + PIECES,
        "scores": scores,
        "token_type": [2, 3, 3] + [6] * 256 + [1] * len(PIECES),
        "unknown_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **own,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in values.items()}


def merged(text: str, metadata: dict[str, Any]) -> list[int]:
    """Merge the pair of the highest score, the first of equals, again and again.

    Source: SentencePiece's `bpe::Model::Encode`, which is what `llm_tokenizer_spm` does too.
    """
    tokens = metadata["tokenizer.ggml.tokens"]
    ids = {token: index for index, token in enumerate(tokens)}
    scores = metadata["tokenizer.ggml.scores"]
    parts = list(text.replace(" ", "▁"))
    while True:
        pairs = [
            (-scores[ids[a + b]], index)
            for index, (a, b) in enumerate(itertools.pairwise(parts))
            if a + b in ids
        ]
        if not pairs:
            break
        index = min(pairs)[1]
        parts[index : index + 2] = [parts[index] + parts[index + 1]]
    found = []
    for each in parts:
        known = each in ids
        found += [ids[each]] if known else [ids[f"<0x{byte:02X}>"] for byte in each.encode()]
    return found


@pytest.mark.parametrize("prefix", [True, False])
def test_sentence_piece(tmp_path: Path, prefix: bool) -> None:
    metadata = sentence_piece(add_space_prefix=prefix)
    ours = load(metadata, tmp_path)
    for text in ["abc", "cab abc", "aabbcc  cabcab", "ab é c", "c a b", " abcabcabc a"]:
        expected = [1, *merged(f" {text}" if prefix else text, metadata)]
        assert ours(text)["input_ids"] == expected, text
        assert ours.decode(expected, skip_special_tokens=True) == text


def test_without_the_first_token(tmp_path: Path) -> None:
    ours = load(sentence_piece(add_bos_token=False), tmp_path)
    assert ours("abc")["input_ids"][0] != 1


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, "the file has no vocabulary"),
        ({"model": "bert"}, "tokenizer.ggml.model is 'bert'; written are"),
        ({"model": "gpt2", "pre": "made-up"}, "tokenizer.ggml.pre is 'made-up'; written are"),
        ({"model": "gpt2", "pre": "gpt-2"}, "its vocabulary has no merges"),
        ({"model": "llama"}, "its vocabulary has no scores"),
    ],
)
def test_a_tokenizer_that_is_not_known_is_left_out_with_the_reason(
    metadata: dict[str, Any], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    own = {"tokens": ["a"], **metadata} if metadata else {}
    files = tokenizer_files({f"tokenizer.ggml.{key}": value for key, value in own.items()}, CONFIG)
    assert list(files) == ["generation_config.json"]
    assert message in caplog.text


def test_files_are_in_the_package(write_gguf: WriteGguf, tmp_path: Path) -> None:
    package = mobius.build(write_gguf(metadata=byte_level("gpt-2")), load_weights=False)
    package.save(tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.decode(tokenizer(TEXTS[0])["input_ids"]) == TEXTS[0]
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text()) == {
        "bos_token_id": 0,
        "eos_token_id": [0],
    }
    loaded = mobius.ModelPackage.load(tmp_path / "out")
    loaded.save(tmp_path / "again")
    assert (tmp_path / "again" / "tokenizer.json").is_file()
