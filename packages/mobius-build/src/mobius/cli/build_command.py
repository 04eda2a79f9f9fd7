"""`mobius build MODEL OUT`: a checkpoint in, a saved package out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mobius.cli.console import DebugOption, JsonOption, reported_errors, stderr_console
from mobius.cli.quantize_options import (
    AccuracyOption,
    AsymmetricOption,
    BlockSizeOption,
    EmbeddingsOption,
    ExcludeOption,
    FloatHeadOption,
    QuantizeOption,
    quantization_of,
)
from mobius.cli.report_view import (
    EpOption,
    OpsetOption,
    PaddingOption,
    ReportOption,
    TraceOption,
    report_view,
)

if TYPE_CHECKING:
    from mobius.package import ModelPackage

__all__ = ["build"]


def build(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Hub id, a folder in HuggingFace layout, a .gguf file, or one on the hub: "
            "owner/name/file.gguf.",
        ),
    ],
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="New or empty folder for the package.")
    ],
    ep: EpOption = "default",
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", help="f32, f16 or bf16. [default: the checkpoint's own]"),
    ] = None,
    opset: OpsetOption = None,
    padding_side: PaddingOption = "right",
    last_token_logits: Annotated[
        bool | None,
        typer.Option(
            "--last-token-logits/--all-logits",
            help="Make the logits of each row's last token only, all that generating text needs, "
            "or those of every token. [default: of the last where onnxruntime-genai knows the EP]",
        ),
    ] = None,
    quantize: QuantizeOption = None,
    block_size: BlockSizeOption = None,
    asymmetric: AsymmetricOption = False,
    float_head: FloatHeadOption = False,
    quantize_embeddings: EmbeddingsOption = False,
    quantize_exclude: ExcludeOption = None,
    accuracy_level: AccuracyOption = None,
    no_weights: Annotated[
        bool, typer.Option("--no-weights", help="Write the graphs only.")
    ] = False,
    text_only: Annotated[
        bool,
        typer.Option(
            "--text-only", help="Build the language model of a checkpoint for images or sound too."
        ),
    ] = False,
    weights: Annotated[
        str,
        typer.Option(
            "--weights",
            metavar="[copy|reference]",
            help="Write all weights, or let the graph point into the checkpoint's own files where "
            "nothing changes. They are copied beside it; with OUT the folder that holds them, they "
            "stay as they are.",
        ),
    ] = "copy",
    trace: TraceOption = False,
    report: ReportOption = None,
    revision: Annotated[
        str | None, typer.Option("--revision", help="Branch, tag or commit on the hub.")
    ] = None,
    token: Annotated[
        str | None,
        typer.Option("--token", help="Hub access token. [default: the one stored]"),
    ] = None,
    cache_dir: Annotated[
        Path | None, typer.Option("--cache-dir", help="Folder for downloaded files.")
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Never touch the network.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a package that is in OUT.")
    ] = False,
    allow_non_finite: Annotated[
        bool,
        typer.Option(
            "--allow-non-finite", help="Write weights that are NaN, infinite or overflow."
        ),
    ] = False,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Build MODEL for an execution provider and save it in OUT.

    Exit codes: 0 done, 1 an error, 2 wrong usage.
    """
    quantization = quantization_of(
        quantize,
        block_size=block_size,
        symmetric=False if asymmetric else None,
        lm_head=False if float_head else None,
        embeddings=quantize_embeddings or None,
        exclude=None if quantize_exclude is None else tuple(quantize_exclude),
        accuracy_level=accuracy_level,
    )
    with reported_errors(debug=debug, json_lines="build" if as_json else None) as reporter:
        import mobius
        from mobius.html_report import check_report_path, write_html_report
        from mobius.saving import check_target

        if report is not None:
            check_report_path(report)
        target = check_target(out, overwrite=overwrite, source=model, weights=weights)
        working = reporter.working(f"Building {model} for {ep}")
        with working, reporter.downloading() as downloaded:
            package = mobius.build(
                model,
                execution_provider=ep,
                dtype=dtype,
                opset=opset,
                padding_side=padding_side,
                quantize=quantization,
                last_token_logits=last_token_logits,
                load_weights=not no_weights,
                text_only=text_only,
                revision=revision,
                token=token,
                cache_dir=cache_dir,
                offline=offline,
                progress=downloaded,
            )
        if trace:
            for key, each in package.reports.items():
                stderr_console().print(report_view(key, each))
        package.allow_non_finite = allow_non_finite
        with reporter.saving() as progress:
            package.save(target, overwrite=overwrite, progress=progress, weights=weights)
        if report is not None:
            write_html_report(report, package.reports, title=f"{model} for {package.ep}")
        if as_json:
            typer.echo(json.dumps(_as_json(package, model, target)))
        else:
            typer.echo("\n".join([_summary(package, model, out, target), *_missing(target)]))


def _size(target: Path) -> int:
    return sum(path.stat().st_size for path in target.rglob("*") if path.is_file())


def _as_json(package: ModelPackage, model: str, target: Path) -> dict[str, Any]:
    return {
        "model": model,
        "saved": str(target),
        "ep": package.ep,
        "dtype": None if package.dtype is None else package.dtype.name,
        "bytes": _size(target),
        "weights": package.is_loaded,
        "missing": _missing(target),
    }


def _summary(package: ModelPackage, model: str, out: Path, target: Path) -> str:
    from mobius.dtypes import short_name

    size = _size(target)
    dtype = "" if package.dtype is None else f" in {short_name(package.dtype)}"
    weights = "" if package.is_loaded else ", without weights"
    return f"Saved {model} for {package.ep}{dtype} to {out} ({size / 1e6:,.1f} MB{weights})"


def _missing(target: Path) -> list[str]:
    """Return what a text decoder's package lacks that runtimes look for, a sentence each."""
    from mobius.genai import GENAI_CONFIG
    from mobius.model_files import read_manifest
    from mobius.text_codec import TOKENIZER

    manifest = read_manifest(target)
    if manifest is None or manifest.generation is None:
        return []
    refusal = manifest.generation.genai_refusal
    found = [] if refusal is None else [f"There is no {GENAI_CONFIG}: {refusal}"]
    if not (target / TOKENIZER).is_file():
        found.append(f"There is no {TOKENIZER}: the source has none, and text needs one.")
    return found
