"""The options of `--quantize`, and what they mean together."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from mobius.quantization import Quantization

__all__ = [
    "AccuracyOption",
    "AsymmetricOption",
    "BlockSizeOption",
    "EmbeddingsOption",
    "ExcludeOption",
    "FloatHeadOption",
    "QuantizeOption",
    "quantization_of",
]

QuantizeOption = Annotated[
    str | None,
    typer.Option(
        "--quantize",
        metavar="[int4|int8]",
        help="Make weights of products integers, rounded to nearest. [default: leave them]",
    ),
]
BlockSizeOption = Annotated[
    int | None,
    typer.Option(
        "--block-size",
        help="With --quantize: numbers that share a scale, 16, 32, 64, 128 or 256. [default: 32]",
    ),
]
AsymmetricOption = Annotated[
    bool,
    typer.Option("--asymmetric", help="With --quantize: give each block a zero point, too."),
]
FloatHeadOption = Annotated[
    bool, typer.Option("--float-head", help="With --quantize: leave the output head as it is.")
]
EmbeddingsOption = Annotated[
    bool,
    typer.Option(
        "--quantize-embeddings",
        help="With --quantize: quantize tables that tokens are looked up in, too.",
    ),
]
ExcludeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--quantize-exclude",
        metavar="REGEX",
        help="With --quantize: leave parameters alone in whose name this is found; repeatable.",
    ),
]
AccuracyOption = Annotated[
    int | None,
    typer.Option(
        "--accuracy-level",
        help="With --quantize: how far kernels may round what weights are multiplied with, from 0, "
        "not at all, to 4, 8-bit integers. [default: the EP's]",
    ),
]


def quantization_of(quantize: str | None, **options: Any) -> Quantization | None:
    """Return what the options ask for.

    Args:
        quantize: Value of `--quantize`.
        **options: Fields of `QuantizationConfig`; those that are `None` were not given.

    Raises:
        typer.BadParameter: for options without `--quantize`, and values that are none.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if quantize is None:
        if given:
            raise typer.BadParameter(
                f"{', '.join(given)}: needs --quantize int4 or --quantize int8"
            )
        return None
    from mobius.quantization import (
        QuantizationConfig,
        QuantizationError,
        parse_quantization,
    )

    try:
        config = parse_quantization(quantize)
        return (
            dataclasses.replace(config, **given)
            if isinstance(config, QuantizationConfig)
            else config
        )
    except QuantizationError as error:
        raise typer.BadParameter(str(error)) from error
