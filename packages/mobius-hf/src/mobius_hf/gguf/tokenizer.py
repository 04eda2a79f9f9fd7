"""Metadata of a GGUF file -> `tokenizer.json` and what goes with it, as texts that are made late.

Vocabularies of byte-level BPE (`tokenizer.ggml.model` is `gpt2`) and of SentencePiece's BPE
(`llama`) are written as the library `tokenizers` reads them.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mobius_hf.gguf.splits import COMPOSED, SPLITS, WHOLE_TOKENS

_PREFIX = "tokenizer.ggml."
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
_SPACE = "\u2581"
_logger = logging.getLogger(__name__)

Make = Callable[[], str]


def tokenizer_files(metadata: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Make]:
    """Return what makes each file: the tokenizer's two, and `generation_config.json`.

    A tokenizer that is not known is left out, and the log says so.

    Args:
        metadata: Of the file.
        config: Fields of `config.json`.
    """
    ids = ("bos_token_id", "eos_token_id", "pad_token_id")
    generation = {name: config[name] for name in ids if config.get(name) is not None}
    files: dict[str, Make] = {"generation_config.json": functools.partial(_json, generation)}
    reason = _refusal(metadata)
    if reason is not None:
        _logger.warning("No tokenizer.json is written: %s", reason)
        return files
    return {
        "tokenizer.json": functools.partial(_tokenizer_json, metadata),
        "tokenizer_config.json": functools.partial(_tokenizer_config, metadata, config),
        **files,
    }


def _refusal(metadata: Mapping[str, Any]) -> str | None:
    model, pre = metadata.get(f"{_PREFIX}model"), metadata.get(f"{_PREFIX}pre", "default")
    if f"{_PREFIX}tokens" not in metadata:
        return "the file has no vocabulary"
    if model == "llama":
        return None if f"{_PREFIX}scores" in metadata else "its vocabulary has no scores"
    if model != "gpt2":
        return f"{_PREFIX}model is {model!r}; written are 'gpt2' and 'llama'"
    if pre not in SPLITS:
        return f"{_PREFIX}pre is {pre!r}; written are {', '.join(sorted(SPLITS))}"
    return None if f"{_PREFIX}merges" in metadata else "its vocabulary has no merges"


def _json(content: object) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _tokenizer_json(metadata: Mapping[str, Any]) -> str:
    from tokenizers import AddedToken

    own = {key.removeprefix(_PREFIX): value for key, value in metadata.items()}
    tokenizer = _byte_level(own) if own["model"] == "gpt2" else _sentence_piece(own)
    kinds = own.get("token_type", [])
    for token, kind in zip(own["tokens"], kinds, strict=False):
        if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED):
            special = kind != _USER_DEFINED
            tokenizer.add_tokens([AddedToken(token, special=special, normalized=False)])
    text: str = tokenizer.to_str(pretty=False)
    return text + "\n"


def _byte_level(own: Mapping[str, Any]) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    pre = own["pre"]
    merges = [tuple(merge.split(" ", 1)) for merge in own["merges"]]
    model = models.BPE(_ids(own), merges, fuse_unk=False, ignore_merges=pre in WHOLE_TOKENS)
    tokenizer = Tokenizer(model)
    if pre in COMPOSED:
        tokenizer.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(each), "isolated") for each in SPLITS[pre]]
    bytes_to_letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, bytes_to_letters])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = _begin(own, default=pre in WHOLE_TOKENS)
    return tokenizer


def _sentence_piece(own: Mapping[str, Any]) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers

    tokens = own["tokens"]
    unknown = own.get("unknown_token_id")
    model = models.BPE(
        _ids(own),
        _merges(tokens, own["scores"]),
        unk_token=None if unknown is None else tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    spaces = normalizers.Replace(" ", _SPACE)
    prefixed = own.get("add_space_prefix", True)
    tokenizer.normalizer = (
        normalizers.Sequence([normalizers.Prepend(_SPACE), spaces]) if prefixed else spaces
    )
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, *([decoders.Strip(" ", 1, 0)] * prefixed)])
    tokenizer.post_processor = _begin(own, default=True)
    return tokenizer


def _ids(own: Mapping[str, Any]) -> dict[str, int]:
    return {token: index for index, token in enumerate(own["tokens"])}


def _merges(tokens: Sequence[str], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Return each pair of tokens that makes a third, the one of the highest score first.

    SentencePiece merges the pair whose whole has the highest score, again and again.
    """
    ids = {token: index for index, token in enumerate(tokens)}
    found = [
        (-scores[ids[token]], ids[token[:cut]], ids[token[cut:]], token[:cut], token[cut:])
        for token in tokens
        for cut in range(1, len(token))
        if token[:cut] in ids and token[cut:] in ids
    ]
    return [(left, right) for *_, left, right in sorted(found)]


def _begin(own: Mapping[str, Any], *, default: bool) -> Any:
    """Return what puts the first token in front of a text, where the model wants it."""
    from tokenizers import processors

    bos = own.get("bos_token_id")
    if bos is None or not own.get("add_bos_token", default):
        return None
    token = own["tokens"][bos]
    return processors.TemplateProcessing(
        single=f"{token}:0 $A:0",
        pair=f"{token}:0 $A:0 {token}:1 $B:1",
        special_tokens=[(token, bos)],
    )


def _tokenizer_config(metadata: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    tokens = metadata[f"{_PREFIX}tokens"]
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    ids = {name: metadata.get(f"{_PREFIX}{key}_token_id") for name, key in names.items()}
    content = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": config["max_position_embeddings"],
        **{f"{name}_token": tokens[each] for name, each in ids.items() if each is not None},
    }
    template = metadata.get("tokenizer.chat_template")
    return _json(content if template is None else {**content, "chat_template": template})
