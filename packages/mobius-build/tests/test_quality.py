"""`measure_quality`, `mobius verify --against-hf`: a package and the model it is made from."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import mobius.quality
from mobius import ModelPackage
from mobius.errors import VerifyError
from mobius.quality import bundled_text, measure_quality, open_reference
from mobius.sources import SourceError, SourceOptions

Run = Callable[..., Any]
MakeDecoder = Callable[..., ModelPackage]


class Fake:
    """A reference whose logits a test decides."""

    def __init__(
        self, logits: Callable[[Sequence[int]], npt.NDArray[Any]], tokens: list[int] | None
    ) -> None:
        self.vocab_size = 64
        self._logits = logits
        self._tokens = tokens
        self.text = ""

    def tokens(self, text: str) -> list[int] | None:
        self.text = text
        return self._tokens

    def logits(self, tokens: Sequence[int]) -> npt.NDArray[Any]:
        return self._logits(tokens)


TOKENS = [3, 60, 12, 12, 40]


@pytest.fixture
def saved(decoder: MakeDecoder, tmp_path: Path) -> Path:
    """Return the folder of a small decoder."""
    decoder().save(tmp_path / "decoder")
    return tmp_path / "decoder"


def own_logits(folder: Path, tokens: Sequence[int] = TOKENS) -> npt.NDArray[Any]:
    """Return what the package itself gives, one token at a time."""
    session = mobius.quality.open_session(folder / "model.onnx")
    feed: dict[str, Any] = {
        port.name: np.zeros((1, *(int(dim) for dim in port.shape[1:2]), 0, 16), np.float32)
        for port in session.inputs
        if port.name.startswith("past")
    }
    rows = []
    for index, token in enumerate(tokens):
        feed["input_ids"] = np.array([[token]])
        feed["attention_mask"] = np.ones((1, index + 1), np.int64)
        feed["position_ids"] = np.array([[index]])
        results = session.run(feed)
        rows.append(results.pop("logits")[0, 0])
        feed.update({k.replace("present", "past_key_values"): v for k, v in results.items()})
    return np.stack(rows)


def test_a_package_agrees_with_itself(saved: Path) -> None:
    quality = measure_quality(saved, Fake(lambda tokens: own_logits(saved), TOKENS))
    assert (quality.tokens, quality.random, quality.top1) == (5, False, 1.0)
    assert quality.largest < 1e-5
    assert quality.perplexity == pytest.approx(quality.reference_perplexity, rel=1e-5)


def test_numbers_are_what_they_are_called(saved: Path) -> None:
    ours = own_logits(saved)
    theirs = ours.copy()
    theirs[2, 7] += 50.0  # another token is the likeliest there
    quality = measure_quality(saved, Fake(lambda tokens: theirs, TOKENS))
    assert quality.largest == pytest.approx(50.0, abs=1e-4)
    assert quality.relative == pytest.approx(50.0 / np.abs(theirs).max(), abs=1e-5)
    assert quality.top1 == pytest.approx(4 / 5)

    def perplexity(logits: npt.NDArray[Any]) -> float:
        likelihoods = [
            np.exp(float(row[token])) / np.exp(row.astype(np.float64)).sum()
            for row, token in zip(logits[:-1], TOKENS[1:], strict=True)
        ]
        return float(np.prod(likelihoods) ** (-1 / len(likelihoods)))

    assert quality.perplexity == pytest.approx(perplexity(ours), rel=1e-5)
    assert quality.reference_perplexity == pytest.approx(perplexity(theirs), rel=1e-5)


def test_the_text_that_comes_with_it(saved: Path) -> None:
    fake = Fake(lambda tokens: own_logits(saved), TOKENS)
    measure_quality(saved, fake)
    assert fake.text == bundled_text()
    assert 120 < len(bundled_text().split()) < 200
    assert bundled_text().isascii()
    measure_quality(saved, fake, text="Other words.")
    assert fake.text == "Other words."


def test_long_texts_are_cut(saved: Path) -> None:
    seen: list[int] = []

    def logits(tokens: Sequence[int]) -> npt.NDArray[Any]:
        seen.extend(tokens)
        return own_logits(saved, tokens)

    assert measure_quality(saved, Fake(logits, TOKENS * 9), most_tokens=3).tokens == 3
    assert seen == TOKENS[:3]


def test_without_a_tokenizer_tokens_are_random_and_the_same_each_time(
    decoder: MakeDecoder, tmp_path: Path
) -> None:
    import dataclasses

    package = decoder()
    assert package.config is not None
    config = dataclasses.replace(package.config, max_position_embeddings=128)
    long = mobius.build_from_module(
        mobius.models.CausalLMModel(config), config, weights=tensors_of(package)
    )
    long.save(tmp_path / "long")
    seen: list[tuple[int, ...]] = []

    def logits(tokens: Sequence[int]) -> npt.NDArray[Any]:
        seen.append(tuple(tokens))
        return own_logits(tmp_path / "long", tokens)

    for _ in range(2):
        quality = measure_quality(tmp_path / "long", Fake(logits, None))
        assert (quality.random, quality.tokens, quality.top1) == (True, 128, 1.0)
    assert seen[0] == seen[1]
    assert set(seen[0]) < set(range(64))


def tensors_of(package: ModelPackage) -> dict[str, Any]:
    return {name: values[0].const_value for name, values in package.parameters().items()}


def test_a_package_of_the_last_logits_is_read_token_by_token(
    decoder: MakeDecoder, tmp_path: Path
) -> None:
    package = decoder()
    package.save(tmp_path / "all")
    assert package.config is not None
    mobius.build_from_module(
        mobius.models.CausalLMModel(package.config),
        package.config,
        last_token_logits=True,
        weights=tensors_of(package),
    ).save(tmp_path / "last")
    fake = Fake(lambda tokens: own_logits(tmp_path / "all"), TOKENS)
    quality = measure_quality(tmp_path / "last", fake)
    assert quality.largest < 1e-5
    assert quality.top1 == 1.0


@pytest.mark.parametrize(
    ("tokens", "logits", "message"),
    [
        ([3], lambda tokens: np.zeros((1, 64), np.float32), "The text has 1 tokens; at least 2"),
        (
            TOKENS,
            lambda tokens: np.zeros((5, 63), np.float32),
            "The package gives 64 logits for each of 5 tokens, the reference 63 for each of 5.",
        ),
    ],
)
def test_what_cannot_be_compared(saved: Path, tokens: list[int], logits: Any, message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        measure_quality(saved, Fake(logits, tokens))


def test_other_models_are_no_text_decoders(
    make_package: Callable[..., ModelPackage], tmp_path: Path
) -> None:
    make_package().save(tmp_path / "tiny")
    fake = Fake(lambda tokens: np.zeros((5, 64), np.float32), TOKENS)
    with pytest.raises(VerifyError, match="has no input 'input_ids' or no output 'logits'"):
        measure_quality(tmp_path / "tiny", fake)


def test_a_source_that_runs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mobius.quality, "load_source", lambda name: object())
    with pytest.raises(SourceError, match="'plain' opens models and runs none"):
        open_reference("model", SourceOptions(), source="plain")


class TestCommandLine:
    """`mobius verify A --against-hf CHECKPOINT`."""

    @pytest.fixture
    def reference(self, monkeypatch: pytest.MonkeyPatch, saved: Path) -> list[str]:
        """Put a reference in place that differs in one of five tokens; return what is opened."""
        opened: list[str] = []
        theirs = own_logits(saved)
        theirs[2, 7] += 50.0

        def fake(model: str, options: SourceOptions) -> Fake:
            del options
            opened.append(model)
            return Fake(lambda tokens: theirs, TOKENS)

        monkeypatch.setattr(mobius.quality, "open_reference", fake)
        return opened

    def test_a_table(self, run: Run, saved: Path, reference: list[str]) -> None:
        result = run("verify", saved, "--against-hf", "org/name")
        assert result.exit_code == 0, result.output
        assert reference == ["org/name"]
        lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
        assert "5 tokens Package Reference" in lines
        assert "Same likeliest next token 80.0%" in lines
        assert "Largest difference of a logit 50" in lines
        assert any(line.startswith("Perplexity ") and line.count(".") == 2 for line in lines)

    def test_json_and_a_limit(self, run: Run, saved: Path, reference: list[str]) -> None:
        arguments = ("verify", saved, "--against-hf", "m", "--json", "--least-top1")
        passed, failed = run(*arguments, 80), run(*arguments, 81)
        assert (passed.exit_code, failed.exit_code) == (0, 1)
        document = json.loads(passed.stdout)
        assert document["top1"] == pytest.approx(0.8)
        assert document["reference"] == "m"
        assert passed.stdout == failed.stdout
        assert reference == ["m", "m"]

    def test_a_text_of_ones_own(
        self, run: Run, saved: Path, reference: list[str], tmp_path: Path
    ) -> None:
        (tmp_path / "text.txt").write_text("Words.")
        arguments = ("--text", tmp_path / "text.txt", "--most-tokens", "512")
        assert run("verify", saved, "--against-hf", "m", *arguments).exit_code == 0
        assert reference == ["m"]

    @pytest.mark.parametrize("arguments", [(), ("b.onnx", "--against-hf", "m")])
    def test_one_of_the_two(self, run: Run, saved: Path, arguments: tuple[str, ...]) -> None:
        result = run("verify", saved, *arguments)
        assert result.exit_code == 2
        assert "needs either a second model B or --against-hf" in result.stderr
