"""`mobius run DIR PROMPT`: a text decoder's package in, the text that follows the prompt out."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mobius.cli.console import DebugOption, JsonOption, reported_errors

if TYPE_CHECKING:
    from mobius.generate import Speed
    from mobius.sampling import Sampler
    from mobius.text_decoder import TextDecoder

__all__ = ["run"]

STDIN = "-"


def run(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A saved package.")],
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="Text to continue; - reads standard input.")
    ],
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", "-n", min=1, help="Most tokens to make.")
    ] = 256,
    chat: Annotated[
        bool, typer.Option("--chat", help="Ask PROMPT in the model's chat template.")
    ] = False,
    system: Annotated[
        str | None, typer.Option("--system", help="Instructions for --chat, before the prompt.")
    ] = None,
    sample: Annotated[
        bool,
        typer.Option("--sample", help="Draw tokens at random, as the options below say."),
    ] = False,
    temperature: Annotated[
        float | None,
        typer.Option("--temperature", help="Below 1 for likelier tokens. [default: the model's]"),
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option(
            "--top-k", help="Draw from the K likeliest, 0 for all. [default: the model's]"
        ),
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            "--top-p", help="Draw from the likeliest with this much in all. [default: the model's]"
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Seed of --sample.")] = None,
    provider: Annotated[
        list[str] | None,
        typer.Option(
            "--provider",
            metavar="NAME",
            help="ONNX Runtime's execution provider; repeatable. [default: the one that the "
            "package is for, if this ONNX Runtime has it]",
        ),
    ] = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Continue PROMPT with the model in DIR, on ONNX Runtime.

    The most likely token is taken each time, unless --sample or one of its options is given. The
    text goes to stdout while it is made, its speed to stderr; with --json both are one object on
    stdout, with the tokens.
    Needs: pip install 'mobius-build[run]'

    Exit codes: 0 done, 1 an error, 2 wrong usage.
    """
    if system is not None and not chat:
        raise typer.BadParameter("--system needs --chat")
    with reported_errors(debug=debug, json_lines="run" if as_json else None):
        from mobius.generate import Speed, generate
        from mobius.text_codec import TextCodec
        from mobius.text_decoder import TextDecoder

        settings = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        decoder = TextDecoder(folder, providers=provider)
        sampler = _sampler(decoder, sample, settings, seed)
        codec = TextCodec(folder)
        text = _standard_input() if prompt == STDIN else prompt
        if chat:
            text = _chat(folder, system, text)
        tokens = codec.encode(text, special_tokens=not chat)
        speed = Speed()
        made: list[int] = []
        pieces = codec.decode(
            _kept(
                generate(
                    decoder, tokens, max_new_tokens=max_new_tokens, sampler=sampler, speed=speed
                ),
                made,
            ),
            after=tokens,
        )
        if as_json:
            found = "".join(pieces)
            told = {"package": str(folder), "text": found, "tokens": made, **speed.to_dict()}
            how = {"providers": decoder.providers, "shared_cache": decoder.generation.shared_cache}
            typer.echo(json.dumps({**told, **how}, indent=2))
            return
        for piece in pieces:
            typer.echo(piece, nl=False)
            sys.stdout.flush()
        typer.echo()
        typer.echo(_summary(decoder, speed), err=True)


def _standard_input() -> str:
    """Return what is piped in: UTF-8, whatever the locale."""
    return sys.stdin.buffer.read().decode(errors="surrogateescape")


def _kept(tokens: Iterable[int], made: list[int]) -> Iterator[int]:
    """Yield `tokens`, and add each to `made`."""
    for token in tokens:
        made.append(token)
        yield token


def _chat(folder: Path, system: str | None, prompt: str) -> str:
    from mobius.chat_template import render_chat

    messages = [] if system is None else [{"role": "system", "content": system}]
    return render_chat(folder, [*messages, {"role": "user", "content": prompt}])


def _sampler(
    decoder: TextDecoder, sample: bool, settings: dict[str, float | None], seed: int | None
) -> Sampler:
    """Return the sampler that the options ask for; the package decides what they leave open."""
    from mobius.sampling import Sampler

    given = {name: value for name, value in settings.items() if value is not None}
    if not sample and not given and seed is None:
        return Sampler()
    search = decoder.generation.search
    defaults = {name: search[name] for name in settings if name in search}
    return Sampler(sample=True, seed=seed, **{**defaults, **given})


def _summary(decoder: TextDecoder, speed: Speed) -> str:
    cache = "shared cache" if decoder.generation.shared_cache else "growing cache"
    return (
        f"prefill {speed.prefill_tokens} tokens at {speed.prefill:,.1f}/s, "
        f"decode {speed.decode_tokens} tokens at {speed.decode:,.1f}/s "
        f"({decoder.providers[0]}, {cache})"
    )
