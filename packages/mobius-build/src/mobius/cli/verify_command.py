"""`mobius verify A B`: two models on the same random inputs, the differences and an exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mobius.cli.console import EXIT_ERROR, DebugOption, reported_errors

if TYPE_CHECKING:
    from rich.table import Table

    from mobius.verify import OutputDifference, Verification

__all__ = ["verify"]

SHOWN = 8


def verify(
    a: Annotated[
        Path, typer.Argument(metavar="A", help="The reference: an .onnx file or package folder.")
    ],
    b: Annotated[Path, typer.Argument(metavar="B", help="What is compared with it.")],
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
    as_json: Annotated[bool, typer.Option("--json", help="All of it as JSON.")] = False,
    debug: DebugOption = False,
) -> None:
    """Run two models on the same random inputs and show the largest difference of each output.

    Numbers are the same if they differ by at most atol + rtol * |A|. A decoder with a cache runs
    on a prompt and on one token after a filled cache, and both again with prompts that end in
    padding. Needs ONNX Runtime: pip install 'mobius-build[ort]'

    Exit codes: 0 the same, 1 different or an error (which is a panel), 2 wrong usage.
    """
    dims, limits = _sizes(dim, "--dim"), _sizes(below, "--below")
    with reported_errors(debug=debug):
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
    for title in ("Output", "Run", "Shape", "dtype"):
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
