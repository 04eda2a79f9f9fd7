"""`mobius run`: the text on stdout, its speed on stderr, and what is wrong in a panel."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from typer.testing import CliRunner

from mobius.cli import app
from mobius.generate import generate
from mobius.generation import GenerationSettings
from mobius.package import ModelPackage
from mobius.sampling import Sampler
from mobius.text_codec import TextCodec
from mobius.text_decoder import TextDecoder

Run = Callable[..., Any]
WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "then", "it", "was", "gone"]


@pytest.fixture
def package(decoder: Callable[..., ModelPackage], tmp_path: Path) -> Path:
    """A package whose 64 tokens are words."""
    files = tmp_path / "files"
    files.mkdir()
    vocabulary = {word: index for index, word in enumerate([*WORDS, *map(str, range(53))])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="the"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(files / "tokenizer.json"))
    (files / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.role == 'system' and 'on a' or 'the' }} {{ m.content }} "
        "{% endfor %}it was"
    )
    built = decoder(execution_provider="cpu").with_source(
        name="org/name",
        revision="0",
        files=sorted(files.iterdir()),
        generation=GenerationSettings(search={"temperature": 0.5, "top_k": 7}),
    )
    built.save(tmp_path / "package")
    return tmp_path / "package"


def expected(package: Path, text: str, sampler: Sampler | None = None, count: int = 9) -> str:
    codec, decoder = TextCodec(package), TextDecoder(package)
    tokens = codec.encode(text)
    made = generate(decoder, tokens, max_new_tokens=count, sampler=sampler)
    return "".join(codec.decode(made, after=tokens)) + "\n"


def test_the_likeliest_text(run: Run, package: Path) -> None:
    result = run("run", package, "the cat sat", "-n", 9)
    assert result.exit_code == 0, result.output
    assert result.stdout == expected(package, "the cat sat")
    assert len(result.stdout.split()) == 9
    assert re.fullmatch(
        r"prefill 3 tokens at [\d,.]+/s, decode 8 tokens at [\d,.]+/s "
        r"\(CPUExecutionProvider, shared cache\)\n",
        result.stderr,
    )


def test_json(run: Run, package: Path) -> None:
    result = run("run", package, "the cat sat", "-n", 9, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    told = json.loads(result.stdout)
    codec = TextCodec(package)
    tokens = codec.encode("the cat sat")
    assert told["tokens"] == list(generate(TextDecoder(package), tokens, max_new_tokens=9))
    assert told["text"] + "\n" == expected(package, "the cat sat")
    for part, count in (("prefill", 3), ("decode", 8)):
        assert told[part]["tokens"] == count
        speed = count / told[part]["seconds"]
        assert told[part]["tokens_per_second"] == pytest.approx(speed, rel=0.02)
    rest = {name: told[name] for name in ("package", "providers", "shared_cache")}
    assert rest == {
        "package": str(package),
        "providers": ["CPUExecutionProvider"],
        "shared_cache": True,
    }
    one = json.loads(run("run", package, "the cat sat", "-n", 1, "--json").stdout)
    assert one["tokens"] == told["tokens"][:1]
    assert one["decode"] == {"tokens": 0, "seconds": 0.0, "tokens_per_second": None}
    failed = run("run", package, "", "--json")
    assert (failed.exit_code, failed.stdout) == (1, "")
    assert json.loads(failed.stderr)["kind"] == "RunError"


def test_a_prompt_from_standard_input(package: Path) -> None:
    result = CliRunner().invoke(app, ["run", str(package), "-", "-n", "9"], input="the cat sat\n")
    assert result.stdout == expected(package, "the cat sat")


@pytest.mark.parametrize(
    ("options", "sampler"),
    [
        (["--seed", 3], Sampler(sample=True, seed=3, temperature=0.5, top_k=7)),
        (
            ["--sample", "--seed", 4, "--top-k", 0, "--temperature", 1.5],
            Sampler(sample=True, seed=4, temperature=1.5, top_k=0),
        ),
        (["--top-p", 1e-9], Sampler(sample=True, seed=0, temperature=0.5, top_k=7, top_p=1e-9)),
    ],
)
def test_sampled_texts(run: Run, package: Path, options: list[Any], sampler: Sampler) -> None:
    """What the options leave open is the package's, then transformers'."""
    result = run("run", package, "the cat", "-n", 9, *options)
    assert result.stdout == expected(package, "the cat", sampler)


def test_bytes_that_are_no_text(package: Path) -> None:
    for command, data in ((["-"], b"the \xff cat"), (["the \udcff cat"], b"")):
        result = CliRunner().invoke(app, ["run", str(package), *command], input=data)
        assert result.exit_code == 1
        panel = " ".join(result.stderr.replace("│", " ").split())
        assert "The text has a byte at position 4 that is not UTF-8. Give it in UTF-8." in panel


def test_several_graphs_generate_nothing(run: Run, package: Path) -> None:
    path = package / "mobius.json"
    manifest = json.loads(path.read_text())
    manifest["models"]["other"] = manifest["models"]["model"]
    path.write_text(json.dumps(manifest))
    result = run("run", package, "x")
    assert "is not a package with one text decoder" in " ".join(
        result.stderr.replace("│", " ").split()
    )


def test_chat(run: Run, package: Path) -> None:
    result = run("run", package, "cat", "-n", 9, "--chat", "--system", "mat")
    assert result.stdout == expected(package, "on a mat the cat it was")


def joined(text: str) -> str:
    """Return text without panels and white space: a long path breaks a line anywhere."""
    return re.sub(r"[\s│]+", "", text)


def test_what_is_wrong(run: Run, package: Path, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "config.json").write_text("{}")
    for arguments, message in (
        ((tmp_path, "x"), "mobius.json is missing"),
        ((checkpoint, "x"), "It looks like a checkpoint: `mobius build` makes a package of it."),
        ((tmp_path / "nowhere", "x"), "nowhere does not exist. Name the folder of a package"),
        ((package / "model.onnx", "x"), "model.onnx is a file. Name the folder of a package"),
        ((package, "x", "--temperature", -1), "temperature is -1.0; needed: a number above 0"),
        ((package, ""), "The prompt has 0 tokens"),
        ((package, "x", "--provider", "Nowhere"), "has no ['Nowhere']"),
    ):
        result = run("run", *arguments)
        assert result.exit_code == 1
        assert joined(message) in joined(result.stderr)
    assert run("run", package, "x", "--system", "y").exit_code == 2
    (package / "tokenizer.json").unlink()
    assert joined("tokenizer.json is missing") in joined(run("run", package, "x").stderr)
    (package / "model.onnx.data").unlink()
    result = run("run", package, "x")
    assert result.exit_code == 1
    message = "model.onnx.data, which holds weights of model.onnx, is missing. Copy it"
    assert joined(message) in joined(result.stderr)
