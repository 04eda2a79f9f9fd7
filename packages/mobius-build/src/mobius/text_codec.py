"""`TextCodec`: text to tokens and tokens to text, by a package's `tokenizer.json` (extra `run`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mobius_eps import MobiusError

__all__ = ["CodecError", "RunExtraMissingError", "TextCodec"]

TOKENIZER = "tokenizer.json"


class RunExtraMissingError(MobiusError, ImportError):
    """A package that the extra `run` brings is not installed."""

    def __init__(self, package: str) -> None:
        super().__init__(
            f"Text needs {package}, which is not installed: pip install 'mobius-build[run]'"
        )


class CodecError(MobiusError, ValueError):
    """A package's tokenizer cannot be used."""


class TextCodec:
    """The tokenizer of a package."""

    def __init__(self, folder: Path) -> None:
        """Read `tokenizer.json` in `folder`.

        Raises:
            RunExtraMissingError: if `tokenizers` is not installed.
            CodecError: if there is no such file, or it is damaged.
        """
        tokenizers = _import_tokenizers()
        path = folder / TOKENIZER
        if not path.is_file():
            raise CodecError(
                f"{path} is missing: the checkpoint had none, or the package was built from a "
                "module. Save the checkpoint's tokenizer as a fast one (transformers: "
                "AutoTokenizer.from_pretrained(...).save_pretrained(...)) and build again."
            )
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises plain Exception
            raise CodecError(f"{path} is not a tokenizer: {error}") from error
        self._stream = tokenizers.decoders.DecodeStream
        # A text is never cut or filled here, whatever it was when the tokenizer was saved.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def encode(self, text: str, *, special_tokens: bool = True) -> list[int]:
        """Return the tokens of `text`.

        Args:
            text: A text.
            special_tokens: Add what the model wants around it, such as a token that starts it. A
                chat template has written those already.

        Raises:
            CodecError: if it is no text, but holds bytes that are not UTF-8.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise CodecError(
                f"The text has a byte at position {error.start} that is not UTF-8. Give it in "
                "UTF-8."
            ) from error
        tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=special_tokens).ids
        return tokens

    def decode(self, tokens: Iterable[int], *, after: Sequence[int] = ()) -> Iterator[str]:
        """Yield the text of `tokens` as soon as its characters are complete, without special ones.

        Args:
            tokens: Tokens, which may come while this runs.
            after: Tokens before them, which are not decoded but may decide a space.
        """
        stream = self._stream(ids=list(after), skip_special_tokens=True)
        for token in tokens:
            piece = stream.step(self._tokenizer, token)
            if piece is not None:
                yield piece


def _import_tokenizers() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise RunExtraMissingError("tokenizers") from error
    return tokenizers
