"""How llama.cpp splits a text before it merges, by `tokenizer.ggml.pre`.

Each is one or more expressions, one after the other, that isolate what they match; most are those
of the models' own tokenizer.json. Source: llama.cpp, `src/llama-vocab.cpp`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_GPT2 = (r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",)
_DIGITS = (r"\p{N}", *_GPT2)
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_REST = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_LLAMA3 = (rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}{{1,3}}|{_REST}",)
_QWEN2 = (rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}|{_REST}",)
_QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}",
)
_SEED = (rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",)
_CAPITAL, _SMALL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE, _REST_OF_PATHS = r"[^\r\n\p{L}\p{N}]?", rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
_GPT4O = (
    rf"{_BEFORE}{_CAPITAL}*{_SMALL}+{_CONTRACTIONS}?|{_BEFORE}{_CAPITAL}+{_SMALL}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}|{_REST_OF_PATHS}",
)
_TEKKEN = (
    rf"{_BEFORE}{_CAPITAL}*{_SMALL}+|{_BEFORE}{_CAPITAL}+{_SMALL}*|\p{{N}}|{_REST_OF_PATHS}",
)
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
)
_BLOOM = (" ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+",)

SPLITS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(
        ("gpt-2", "olmo", "mpt", "jais", "phi-2", "exaone4", "trillion", "granite-docling"), _GPT2
    ),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
        _DIGITS,
    ),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "smaug-bpe", "dbrx"), _LLAMA3),
    **dict.fromkeys(("falcon3", "falcon-h1", "pixtral", "lfm2", "chatglm-bpe", "glm4"), _LLAMA3),
    **dict.fromkeys(("qwen2", "stablelm2", "deepseek-r1-qwen", "megrez", "hunyuan"), _QWEN2),
    **dict.fromkeys(("gpt-4o", "llama4", "minimax-m2"), _GPT4O),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), _DEEPSEEK3),
    **dict.fromkeys(("bloom", "poro-chat", "gpt3-finnish"), _BLOOM),
    "qwen35": _QWEN35,
    "seed-coder": _SEED,
    "tekken": _TEKKEN,
}
"""By `tokenizer.ggml.pre`."""
COMPOSED = frozenset({"qwen2", "qwen35", "deepseek-r1-qwen"})
"""HuggingFace's tokenizer composes characters first, which llama.cpp leaves to whoever calls it."""
WHOLE_TOKENS = frozenset(
    {"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2", "tekken"}
)
"""A token that is in the vocabulary is one, whatever the merges would make of its letters; and the
first token is put in front of a text, unless a file says otherwise."""
