"""The command `mobius`: what it prints, what it leaves on disk, and its exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mobius
import mobius_eps
from mobius.errors import WeightsError
from mobius.package import ModelPackage
from mobius_eps import UnknownEpError, ep_registry

MakePackage = Callable[..., ModelPackage]
Run = Callable[..., Any]


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch, make_package: MakePackage) -> Iterator[dict[str, Any]]:
    """Replace `mobius.build` by one that makes a tiny package, and return what it was called with.

    `raises` in the returned mapping is raised instead, if it is set.
    """
    calls: dict[str, Any] = {}

    def fake(model: str, **options: Any) -> ModelPackage:
        calls.update(options, model=model)
        if "warns" in calls:
            warnings.warn(calls["warns"], UserWarning, stacklevel=1)
        if "raises" in calls:
            raise calls["raises"]
        return make_package(weights=options["load_weights"])

    monkeypatch.setattr(mobius, "build", fake, raising=False)
    return calls


def squeezed(text: str) -> str:
    """Return text without panel borders and line breaks."""
    return " ".join(text.replace("│", " ").split())


def test_build_passes_its_options_on_and_saves(
    run: Run, build: dict[str, Any], tmp_path: Path
) -> None:
    result = run(
        *("build", "org/name", tmp_path / "out", "--ep", "cuda", "--dtype", "f16"),
        *("--revision", "main", "--token", "secret", "--cache-dir", tmp_path, "--offline"),
        *("--opset", "21", "--last-token-logits", "--text-only"),
    )
    assert result.exit_code == 0, result.output
    assert build == {
        "model": "org/name",
        "execution_provider": "cuda",
        "dtype": "f16",
        "opset": 21,
        "last_token_logits": True,
        "quantize": None,
        "padding_side": "right",
        "load_weights": True,
        "text_only": True,
        "progress": None,  # stderr is no terminal
        "revision": "main",
        "token": "secret",
        "cache_dir": tmp_path,
        "offline": True,
    }
    assert result.stdout.startswith(f"Saved org/name for default to {tmp_path / 'out'} (0.0 MB)")
    assert result.stderr == ""  # no terminal, no progress
    assert ModelPackage.load(tmp_path / "out").is_loaded


@pytest.mark.parametrize(
    ("option", "value"),
    [((), None), (("--all-logits",), False), (("--last-token-logits",), True)],
)
def test_logits_are_what_the_runtime_reads_unless_one_says_so(
    run: Run, build: dict[str, Any], tmp_path: Path, option: tuple[str, ...], value: bool | None
) -> None:
    assert run("build", "m", tmp_path / "out", *option).exit_code == 0
    assert build["last_token_logits"] is value


def test_build_without_weights(run: Run, build: dict[str, Any], tmp_path: Path) -> None:
    result = run("build", "m", tmp_path / "out", "--no-weights")
    assert result.exit_code == 0, result.output
    assert build["load_weights"] is False
    assert "without weights" in result.stdout
    assert not (tmp_path / "out" / "model.onnx.data").exists()


def test_trace_is_a_table_on_stderr(
    run: Run, monkeypatch: pytest.MonkeyPatch, decoder: Callable[..., ModelPackage], tmp_path: Path
) -> None:
    def fake(model: str, *, execution_provider: str, **options: Any) -> ModelPackage:
        return decoder(execution_provider=execution_provider)

    monkeypatch.setattr(mobius, "build", fake, raising=False)
    traced = run("build", "m", tmp_path / "traced", "--ep", "cpu", "--trace")
    assert traced.exit_code == 0, traced.output
    assert traced.stdout.startswith("Saved m for cpu")
    assert "model: decoder for cpu in f32, " in traced.stderr
    (fusion,) = [line for line in traced.stderr.splitlines() if "GQAFusion" in line]
    assert fusion.split()[:3] == ["2", "GQAFusion", "2"]
    assert "+2 GroupQueryAttention" in squeezed(traced.stderr)
    quiet = run("build", "m", tmp_path / "quiet", "--ep", "cpu")
    assert quiet.stderr == ""


def test_report_is_written_after_the_package(
    run: Run, monkeypatch: pytest.MonkeyPatch, decoder: Callable[..., ModelPackage], tmp_path: Path
) -> None:
    monkeypatch.setattr(mobius, "build", lambda model, **options: decoder(), raising=False)
    out = tmp_path / "out"
    out.mkdir()
    result = run("build", "org/name", out, "--report", out / "report.html")
    assert result.exit_code == 0, result.output
    assert "<title>org/name for default</title>" in (out / "report.html").read_text("utf-8")
    assert ModelPackage.load(out).is_loaded


def test_a_report_that_cannot_be_written_is_found_before_anything_is_built(
    run: Run, build: dict[str, Any], tmp_path: Path
) -> None:
    result = run("build", "m", tmp_path / "out", "--report", tmp_path / "nowhere" / "page.html")
    assert result.exit_code == 1
    assert "does not exist" in squeezed(result.stderr)
    assert build == {}


def test_a_warning_is_one_line(run: Run, build: dict[str, Any], tmp_path: Path) -> None:
    build["warns"] = "GQA fusion expected"
    result = run("build", "m", tmp_path / "out")
    assert result.exit_code == 0
    assert result.stderr == "UserWarning: GQA fusion expected\n"


def test_an_expected_error_is_a_panel(run: Run, build: dict[str, Any], tmp_path: Path) -> None:
    build["raises"] = UnknownEpError("cud", ep_registry)
    result = run("build", "m", tmp_path / "out", "--ep", "cud")
    assert result.exit_code == 1
    assert "Error" in result.stderr
    assert "Traceback" not in result.stderr
    assert "Unknown execution provider 'cud'" in squeezed(result.stderr)
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_brackets_in_a_message_are_not_markup(
    run: Run, build: dict[str, Any], tmp_path: Path
) -> None:
    build["raises"] = WeightsError("shape [9], needs [red]8[/red]")
    result = run("build", "m", tmp_path / "out")
    assert "shape [9], needs [red]8[/red]" in squeezed(result.stderr)


def test_an_unexpected_error_says_how_to_see_more(
    run: Run, build: dict[str, Any], tmp_path: Path
) -> None:
    build["raises"] = KeyError("layers")
    result = run("build", "m", tmp_path / "out")
    assert result.exit_code == 1
    assert "Unexpected error" in result.stderr
    assert "KeyError: 'layers'" in squeezed(result.stderr)
    assert "--debug" in result.stderr


def test_debug_lets_the_traceback_through(run: Run, build: dict[str, Any], tmp_path: Path) -> None:
    build["raises"] = WeightsError("wrong")
    result = run("build", "m", tmp_path / "out", "--debug")
    assert result.exit_code == 1
    assert isinstance(result.exception, WeightsError)


def test_a_bad_folder_is_found_before_anything_is_built(
    run: Run, build: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").touch()
    result = run("build", "m", tmp_path)
    assert result.exit_code == 1
    assert "is not empty" in squeezed(result.stderr)
    assert build == {}


def test_overwrite_replaces_a_package(run: Run, build: dict[str, Any], tmp_path: Path) -> None:
    assert run("build", "m", tmp_path / "out").exit_code == 0
    assert run("build", "m", tmp_path / "out").exit_code == 1
    assert run("build", "m", tmp_path / "out", "--overwrite").exit_code == 0


def test_an_interrupt_is_130_and_leaves_nothing(
    run: Run, build: dict[str, Any], tmp_path: Path
) -> None:
    build["raises"] = KeyboardInterrupt()
    result = run("build", "m", tmp_path / "out")
    assert result.exit_code == 130
    assert "Interrupted" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["build"], "Missing argument 'MODEL'"),
        (["build", "m"], "Missing argument 'OUT'"),
        (["build", "m", "o", "--epp", "cuda"], "--ep"),
        (["bild"], "build"),
    ],
)
def test_wrong_usage_is_2(run: Run, arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in squeezed(result.stderr)


def test_help_names_every_option(run: Run) -> None:
    result = run("build", "--help")
    assert result.exit_code == 0
    for option in ("--ep", "--dtype", "--no-weights", "--trace", "--report", "--revision"):
        assert option in result.stdout
    assert "[default: the checkpoint's own]" in squeezed(result.stdout)
    for option in (
        "--token",
        "--cache-dir",
        "--offline",
        "--overwrite",
        "--allow-non-finite",
        "--debug",
    ):
        assert option in result.stdout


def test_version(run: Run) -> None:
    from mobius.__about__ import __version__

    assert run("--version").stdout == f"mobius {__version__}\n"


def test_eps_lists_every_provider(run: Run) -> None:
    result = run("eps")
    assert result.exit_code == 0, result.output
    for name in ep_registry.names():
        assert name in result.stdout
    (cuda,) = [line for line in result.stdout.splitlines() if "cuda" in line]
    assert "f16 bf16" in cuda


def test_eps_as_json_holds_every_capability(run: Run) -> None:
    document = json.loads(run("eps", "--json").stdout)
    assert set(document) == set(ep_registry.names())
    assert document["cuda"]["gqa_dtypes"] == ["BFLOAT16", "FLOAT16"]
    assert document["cuda"]["provider_options"] == dict(mobius_eps.get_ep("cuda").provider_options)
    assert document["onnx-standard"]["allowed_domains"] == [""]
    assert document["dml"]["max_opset"] == 21
    assert {
        "op_type": "PackedMultiHeadAttention",
        "domain": "com.microsoft",
        "dtypes": ["BFLOAT16"],
        "attribute": None,
        "reason": "ORT's CUDA EP has kernels in float32 and float16 only (1.31)",
        "input_dtypes": [],
    } in document["cuda"]["lacks"]


def python(script: str, *arguments: object, **options: Any) -> subprocess.Popen[str]:
    """Start a script in another process."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell starts background jobs, a CI among them, with the signal ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **options,
    )


def test_help_does_not_load_what_it_does_not_need() -> None:
    script = """
        import sys
        from mobius.cli import main
        try:
            main()
        finally:
            heavy = {"numpy", "onnx", "onnx_ir", "onnxruntime", "onnxscript"}
            print(sorted(heavy & set(sys.modules)))
    """
    process = python(script, "--help")
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    for command in ("build", "optimize", "verify", "explain", "run", "inspect", "models", "eps"):
        assert command in stdout
    assert stdout.splitlines()[-1] == "[]"


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX accounts of time")
def test_help_is_quick() -> None:
    import resource

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = python("from mobius.cli import main; main()", "--help")
    process.communicate(timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # The goal is half a second; a slow processor may take twice as long, not ten times.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0


def test_a_reader_that_goes_away_is_no_error() -> None:
    process = python("from mobius.cli import main; main()", "eps", "--json")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(timeout=60) == 1
    process.stderr.close()


def test_help_says_what_exit_codes_mean(run: Run) -> None:
    from mobius.cli import EXIT_CODES

    text = squeezed(run("--help").stdout)
    for code, meaning in EXIT_CODES.items():
        assert f"{code} {meaning.replace('`', '')}" in text


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_saving_leaves_nothing(tmp_path: Path, number: int, code: int) -> None:
    script = """
        import time
        import numpy as np, onnx_ir as ir
        import mobius
        from mobius.cli import main
        from mobius.package import ModelPackage

        def read():
            print("writing", flush=True)
            time.sleep(60)

        def build(model, **options):
            value = ir.Value(name="w", shape=ir.Shape([4]), type=ir.TensorType(ir.DataType.FLOAT))
            graph = ir.Graph([], [], nodes=[], opset_imports={"": 24}, name="g")
            graph.initializers["w"] = value
            models = {"model": ir.Model(graph, ir_version=10)}
            package = ModelPackage(models, roles={"model": "decoder"})
            package.apply_weights({"w": ir.LazyTensor(read, ir.DataType.FLOAT, ir.Shape([4]))})
            return package

        mobius.build = build
        main()
    """
    process = python(script, "build", "m", tmp_path / "out", env={**os.environ, "NO_COLOR": "1"})
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    assert list(tmp_path.iterdir()) != []
    process.send_signal(number)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == code, stderr
    assert "Traceback" not in stderr
    assert list(tmp_path.iterdir()) == []
