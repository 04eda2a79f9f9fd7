"""`mobius verify A B`: two models on the same random inputs, the differences and an exit code.

With `--against-hf`, a package and the checkpoint that it was built from, on a text.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mobius.cli.console import EXIT_ERROR, DebugOption, JsonOption, reported_errors

if TYPE_CHECKING:
    from rich.table import Table

    from mobius.quality import Quality
    from mobius.verify import OutputDifference, Verification

__all__ = ["verify"]

SHOWN = 8


def verify(
    a: Annotated[
        Path, typer.Argument(metavar="A", help="The reference: an .onnx file or package folder.")
    ],
    b: Annotated[Path | None, typer.Argument(metavar="B", help="What is compared with it.")] = None,
    against_hf: Annotated[
        str | None,
        typer.Option(
            "--against-hf",
            metavar="CHECKPOINT",
            help="In place of B: run this folder or hub id with transformers on a text, and show "
            "what A makes of it.",
        ),
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(
            "--text", help="With --against-hf: a file with the text. [default: a short story]"
        ),
    ] = None,
    most_tokens: Annotated[
        int,
        typer.Option("--most-tokens", min=2, help="With --against-hf: tokens that are read."),
    ] = 512,
    least_top1: Annotated[
        float,
        typer.Option(
            "--least-top1",
            min=0,
            max=100,
            help="With --against-hf: fail where fewer percent of the likeliest tokens agree.",
        ),
    ] = 0.0,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Number of rows.")] = 2,
    sequence: Annotated[
        int, typer.Option("--sequence", min=1, help="Number of tokens of a prompt.")
    ] = 7,
    past: Annotated[
        int | None,
        typer.Option(
            "--past", min=0, help="Tokens in the cache of the step after. [default: the prompt's]"
        ),
    ] = None,
    dim: Annotated[
        list[str] | None,
        typer.Option("--dim", metavar="NAME=SIZE", help="Size of a dimension; repeatable."),
    ] = None,
    below: Annotated[
        list[str] | None,
        typer.Option(
            "--below",
            metavar="INPUT=NUMBER",
            help="What the numbers of an integer input stay below; repeatable. "
            "[default: the size of the table that they index, or 2]",
        ),
    ] = None,
    padding: Annotated[
        bool,
        typer.Option("--padding/--no-padding", help="Run prompts that end in padding, too."),
    ] = True,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the inputs.")] = 0,
    runs: Annotated[
        int, typer.Option("--runs", min=1, help="Number of runs, each with inputs of its own.")
    ] = 1,
    atol: Annotated[
        float | None,
        typer.Option(
            "--atol", min=0, help="Absolute tolerance. [default: 1e-4, f16 1e-2, bf16 1e-1]"
        ),
    ] = None,
    rtol: Annotated[
        float | None,
        typer.Option("--rtol", min=0, help="Relative tolerance. [default: as --atol]"),
    ] = None,
    cross_dtype: Annotated[
        bool, typer.Option("--cross-dtype", help="Compare models of different float types.")
    ] = False,
    allow_nan: Annotated[
        bool, typer.Option("--allow-nan", help="Let numbers be NaN in both.")
    ] = False,
    provider: Annotated[
        list[str] | None,
        typer.Option(
            "--provider",
            metavar="NAME",
            help="ONNX Runtime's execution provider; repeatable. [default: CPUExecutionProvider]",
        ),
    ] = None,
    every_output: Annotated[
        bool, typer.Option("--all", help="Show every output, not the worst ones only.")
    ] = False,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Run two models on the same inputs and show how far apart their results are.

    A and B get the same random inputs, and the largest difference of each output is shown.

    Numbers are the same if they differ by at most atol + rtol * |A|. A decoder with a cache runs
    on a prompt and on one token after a filled cache, and both again with prompts that end in
    padding. Needs ONNX Runtime: pip install 'mobius-build[ort]'

    With --against-hf A is compared with the checkpoint that it was built from: largest difference
    of a logit, how often both find the same next token the likeliest, and perplexities. Needs
    transformers and torch too.

    Exit codes: 0 the same, 1 different or an error (which is a panel), 2 wrong usage.
    """
    if (b is None) == (against_hf is None):
        raise typer.BadParameter("needs either a second model B or --against-hf CHECKPOINT")
    if against_hf is not None:
        with reported_errors(debug=debug, json_lines="verify" if as_json else None):
            quality = _quality(a, against_hf, text, most_tokens, provider)
            if as_json:
                content = {"a": str(a), "reference": against_hf, **quality.to_dict()}
                typer.echo(json.dumps(content, indent=2, allow_nan=False))
            else:
                _show_quality(quality)
            if not quality.top1 * 100 >= least_top1:
                raise typer.Exit(EXIT_ERROR)
        return
    assert b is not None
    dims, limits = _sizes(dim, "--dim"), _sizes(below, "--below")
    with reported_errors(debug=debug, json_lines="verify" if as_json else None):
        from mobius.verify import VerifyOptions
        from mobius.verify import verify as verify_models

        defaults = VerifyOptions()
        options = VerifyOptions(
            batch=batch,
            sequence=sequence,
            past=past,
            dims=dims,
            below=limits,
            padding=padding,
            seed=seed,
            runs=runs,
            absolute=atol,
            relative=rtol,
            cross_dtype=cross_dtype,
            allow_nan=allow_nan,
            providers=provider or defaults.providers,
        )
        verification = verify_models(a, b, options)
        if as_json:
            content = {"a": str(a), "b": str(b), **verification.to_dict()}
            typer.echo(json.dumps(content, indent=2, allow_nan=False))
        else:
            _show(verification, every_output=every_output)
        if not verification.same:
            raise typer.Exit(EXIT_ERROR)


def _quality(
    package: Path,
    checkpoint: str,
    text: Path | None,
    most_tokens: int,
    providers: list[str] | None,
) -> Quality:
    from mobius.ort import CPU
    from mobius.quality import measure_quality, open_reference
    from mobius.sources import SourceOptions

    content = None if text is None else text.read_text(encoding="utf-8")
    return measure_quality(
        package,
        open_reference(checkpoint, SourceOptions()),
        text=content,
        most_tokens=most_tokens,
        providers=providers or (CPU,),
    )


def _show_quality(quality: Quality) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    tokens = f"{quality.tokens} random tokens" if quality.random else f"{quality.tokens} tokens"
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column(tokens)
    table.add_column("Package", justify="right", no_wrap=True)
    table.add_column("Reference", justify="right", no_wrap=True)
    table.add_row("Perplexity", f"{quality.perplexity:.3f}", f"{quality.reference_perplexity:.3f}")
    table.add_row("Same likeliest next token", f"{quality.top1:.1%}", "")
    table.add_row("Largest difference of a logit", f"{quality.largest:.3g}", "")
    table.add_row("Relative to the largest logit", f"{quality.relative:.3g}", "")
    Console().print(table)


def _sizes(pairs: list[str] | None, option: str) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for pair in pairs or []:
        # Names of dimensions hold anything, "past + 1" for example.
        name, equals, number = pair.rpartition("=")
        if not equals or not name or not number.strip().isdigit():
            raise typer.BadParameter(
                f"{pair!r} is not NAME=NUMBER, for example batch=2.", param_hint=option
            )
        sizes[name] = int(number)
    return sizes


def _show(verification: Verification, *, every_output: bool) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console()
    worst = verification.worst()
    wrong = sum(each.difference.problem is not None for each in worst)
    shown = worst if every_output else worst[: max(SHOWN, wrong)]
    console.print(_table(shown, many_graphs=len(verification.tolerances) > 1))
    if len(shown) < len(worst):
        console.print(Text(f"and {len(worst) - len(shown)} more outputs; --all shows them"))
    for text in verification.notes:
        console.print(Text(text))
    for text in verification.interface:
        console.print(Text(text, style="red"))
    for each in worst:
        if each.difference.problem is not None:
            where = f"{_name(each, many_graphs=len(verification.tolerances) > 1)} ({each.scenario})"
            console.print(Text(f"{where}: {each.difference.problem}", style="red"))
    console.print(_verdict(verification, wrong))


def _verdict(verification: Verification, wrong: int) -> str:
    worst = verification.worst()
    measured = [each for each in worst if each.difference.max_abs is not None]
    largest = max(measured, key=lambda each: each.difference.max_abs or 0.0, default=None)
    text = (
        ""
        if largest is None
        else f"; the largest difference is {largest.difference.max_abs:.3g} in {largest.output}"
    )
    if verification.same:
        return f"[bold green]Same[/]: {len(worst)} outputs{_escaped(text)}"
    parts = [f"{wrong} of {len(worst)} outputs"] if wrong else []
    parts += ["the interface"] if verification.interface else []
    return f"[bold red]Different[/]: {' and '.join(parts)}{_escaped(text)}"


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _table(rows: tuple[OutputDifference, ...], *, many_graphs: bool) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("Output", overflow="fold")
    for title in ("Run", "Shape", "dtype"):
        table.add_column(title)
    for title in ("Max difference", "Relative", "Beyond"):
        table.add_column(title, justify="right", no_wrap=True)
    for each in rows:
        difference = each.difference
        beyond = f"{difference.beyond} of {difference.compared}" if difference.compared else "-"
        table.add_row(
            Text(_name(each, many_graphs=many_graphs)),
            each.scenario,
            _both(*("x".join(map(str, shape)) or "scalar" for shape in difference.shapes)),
            _both(*difference.dtypes),
            _number(difference.max_abs),
            _number(difference.max_rel),
            beyond,
            style="red" if difference.problem is not None else None,
        )
    return table


def _name(each: OutputDifference, *, many_graphs: bool) -> str:
    return f"{each.graph}: {each.output}" if many_graphs else each.output


def _both(a: str, b: str) -> str:
    return a if a == b else f"{a} / {b}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
