"""`--json`: results on stdout, and one JSON object a line on stderr."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mobius
from mobius.package import ModelPackage
from mobius_eps import UnknownEpError, ep_registry

Run = Callable[..., Any]


def events(result: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stderr.splitlines()]


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch, decoder: Callable[..., ModelPackage]) -> dict[str, Any]:
    """What stands in for `mobius.build` does besides building."""
    extra: dict[str, Any] = {}

    def fake(model: str, *, execution_provider: str, **options: Any) -> ModelPackage:
        if "raises" in extra:
            raise extra["raises"]
        warnings.warn("slow", UserWarning, stacklevel=1)
        logging.getLogger("mobius_hf").warning("own %s", "code")
        return decoder(execution_provider=execution_provider)

    monkeypatch.setattr(mobius, "build", fake, raising=False)
    return extra


@pytest.mark.usefixtures("build")
def test_a_build(run: Run, tmp_path: Path) -> None:
    result = run("build", "org/name", tmp_path / "out", "--ep", "cpu", "--json")
    assert result.exit_code == 0, result.output
    written = json.loads(result.stdout)
    assert written == {
        "model": "org/name",
        "saved": str(tmp_path / "out"),
        "ep": "cpu",
        "dtype": "FLOAT",
        "bytes": sum(path.stat().st_size for path in (tmp_path / "out").iterdir()),
        "weights": True,
        "missing": [
            "There is no genai_config.json: its special tokens are not known: it was built from a "
            "module.",
            "There is no tokenizer.json: the source has none, and text needs one.",
        ],
    }
    told = events(result)
    assert told[0] == {
        "event": "started",
        "command": "build",
        "version": mobius.__version__,
        "message": "Building org/name for cpu",
    }
    kinds = [each["event"] for each in told]
    assert kinds.index("optimizing") < kinds.index("stage") < kinds.index("finished")
    assert {"event": "warning", "kind": "UserWarning", "message": "slow"} in told
    log = {"event": "log", "level": "WARNING", "logger": "mobius_hf", "message": "own code"}
    assert log in told
    (fusion,) = [each for each in told if each.get("name") == "GQAFusion"]
    assert (fusion["phase"], fusion["applications"], fusion["refusals"]) == ("2", 2, 0)
    saved = [each for each in told if each["event"] == "saving"]
    assert saved[-1]["bytes"] == saved[-1]["total"]
    assert [each["bytes"] for each in saved] == sorted(each["bytes"] for each in saved)
    assert logging.getLogger().handlers == [
        each for each in logging.getLogger().handlers if type(each).__module__ != "mobius.cli"
    ]


def test_an_error(run: Run, build: dict[str, Any], tmp_path: Path) -> None:
    build["raises"] = UnknownEpError("cud", ep_registry)
    result = run("build", "m", tmp_path / "out", "--json")
    assert (result.exit_code, result.stdout) == (1, "")
    assert events(result)[-1] == {
        "event": "error",
        "kind": "UnknownEpError",
        "expected": True,
        "message": str(build["raises"]),
    }


def test_an_unexpected_error(run: Run, build: dict[str, Any], tmp_path: Path) -> None:
    build["raises"] = KeyError()
    error = events(run("build", "m", tmp_path / "out", "--json"))[-1]
    assert (error["kind"], error["expected"], error["message"]) == ("KeyError", False, "KeyError")


def test_an_interrupt(run: Run, build: dict[str, Any], tmp_path: Path) -> None:
    build["raises"] = KeyboardInterrupt()
    result = run("build", "m", tmp_path / "out", "--json")
    assert result.exit_code == 130
    assert events(result)[-1] == {"event": "interrupted"}


def test_optimize(run: Run, tmp_path: Path, decoder: Callable[..., ModelPackage]) -> None:
    decoder().save(tmp_path / "in")
    result = run(
        *("optimize", tmp_path / "in" / "model.onnx", tmp_path / "in" / "out.onnx"),
        *("--ep", "cpu", "--json"),
    )
    assert result.exit_code == 0, result.output
    written = json.loads(result.stdout)
    assert written["saved"] == str(tmp_path / "in" / "out.onnx")
    assert written["shared"] == ["model.onnx.data"]
    assert [each["event"] for each in events(result)][:2] == ["started", "optimizing"]


@pytest.mark.parametrize("command", [["eps"], ["inspect", "PACKAGE"]])
def test_questions_tell_nothing_but_the_answer(
    run: Run, tmp_path: Path, decoder: Callable[..., ModelPackage], command: list[str]
) -> None:
    decoder().save(tmp_path / "package")
    arguments = [tmp_path / "package" if each == "PACKAGE" else each for each in command]
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    json.loads(result.stdout)
    assert result.stderr == ""


def test_errors_of_questions_are_lines_too(run: Run, tmp_path: Path) -> None:
    result = run("inspect", tmp_path / "nowhere.onnx", "--json")
    (error,) = events(result)
    assert (result.exit_code, error["kind"]) == (1, "ModelFileError")
