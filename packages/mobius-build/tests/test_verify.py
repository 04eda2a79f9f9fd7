"""Two models on the same inputs: what is the same, what is not, and what is said about it."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from mobius.compare import Tolerance
from mobius.errors import ModelFileError, VerifyError
from mobius.ort import OrtError, OrtMissingError
from mobius.package import ModelPackage
from mobius.verify import Verification, VerifyOptions, verify

Decoder = Callable[..., ModelPackage]

HEAD = '<ir_version: 10, opset_import: ["" : 24]>'


def write(path: Path, body: str, signature: str = "(float[n, 3] x) => (float[n, 3] y)") -> Path:
    ir.save(ir.from_onnx_text(f"{HEAD} g {signature} {{ {body} }}"), path)
    return path


def pair(tmp_path: Path, a: str, b: str, **options: Any) -> Verification:
    """Compare two graphs of `float[n, 3] x` and `y`."""
    return verify(
        write(tmp_path / "a.onnx", a), write(tmp_path / "b.onnx", b), VerifyOptions(**options)
    )


def test_equal_models_are_the_same(tmp_path: Path) -> None:
    found = pair(tmp_path, "y = Exp(x)", "z = Exp(x) y = Identity(z)")
    assert found.same
    (output,) = found.outputs
    assert (output.graph, output.scenario, output.output) == ("model", "run", "y")
    assert output.difference.max_abs == 0.0
    assert found.tolerances == {"model": Tolerance(1e-4, 1e-4)}


def test_a_wrong_model_is_found_with_the_largest_difference(tmp_path: Path) -> None:
    found = pair(
        tmp_path, "y = Exp(x)", "half = Constant <value_float = 0.5> () z = Exp(x) y = Add(z, half)"
    )
    assert not found.same
    (output,) = found.outputs
    assert output.difference.max_abs == pytest.approx(0.5, rel=1e-6)
    assert output.difference.beyond == output.difference.compared == 12


def test_tolerances_can_be_set(tmp_path: Path) -> None:
    body = "little = Constant <value_float = 0.01> () y = Add(x, little)"
    assert not pair(tmp_path, "y = Identity(x)", body).same
    assert pair(tmp_path, "y = Identity(x)", body, absolute=0.02).same
    assert not pair(tmp_path, "y = Identity(x)", body, absolute=0.0, relative=1e-3).same


def test_a_coarse_dtype_has_a_wide_tolerance(tmp_path: Path) -> None:
    signature = "(float16[n] x) => (float16[n] y)"
    body = "c = Constant <value_float = 0.005> () d = CastLike(c, x) y = Add(x, d)"
    a = write(tmp_path / "a.onnx", "y = Identity(x)", signature)
    b = write(tmp_path / "b.onnx", body, signature)
    found = verify(a, b)
    assert found.tolerances == {"model": Tolerance(1e-2, 1e-2)}
    assert found.same


def test_bfloat16_goes_in_and_out(tmp_path: Path) -> None:
    signature = "(bfloat16[n] x) => (bfloat16[n] y)"
    a = write(tmp_path / "a.onnx", "y = Identity(x)", signature)
    (output,) = verify(a, a).outputs
    assert output.difference.dtypes == ("bfloat16", "bfloat16")
    values = output.difference.values
    assert values is not None
    assert values[0] != 0.0


def test_nan_in_one_and_in_both(tmp_path: Path) -> None:
    same, nan = "y = Identity(x)", "z = Sub(x, x) y = Div(z, z)"
    (output,) = pair(tmp_path, same, nan).outputs
    assert output.difference.problem is not None
    assert "NaN or infinite in one" in output.difference.problem
    (output,) = pair(tmp_path, nan, nan).outputs
    assert output.difference.problem == "12 of 12 numbers are NaN in both."
    assert pair(tmp_path, nan, nan, allow_nan=True).same
    json.dumps(pair(tmp_path, same, nan).to_dict(), allow_nan=False)


def test_several_runs_have_several_inputs(tmp_path: Path) -> None:
    # Wrong only where a number is above 1.5.
    wrong = "big = Constant <value_float = 1.5> () y = Min(x, big)"
    found = pair(tmp_path, "y = Identity(x)", wrong, runs=20)
    assert [output.seed for output in found.outputs] == list(range(20))
    problems = [output.difference.problem for output in found.outputs]
    assert None in problems
    assert not found.same
    (worst,) = found.worst()
    assert worst.difference.max_abs == max(o.difference.max_abs or 0 for o in found.outputs)


def test_other_inputs_and_outputs_are_a_difference(tmp_path: Path) -> None:
    two = "(float[n] x, float[n] unused) => (float[n] y, float[n] z)"
    a = write(tmp_path / "a.onnx", "y = Exp(x) z = Neg(x)", two)
    b = write(
        tmp_path / "b.onnx", "y = Exp(x) w = Neg(x)", "(float[n] x) => (float[n] y, float[n] w)"
    )
    found = verify(a, b)
    assert found.interface == (
        "Only A has the input 'unused'.",
        "Only A has the output 'z'.",
        "Only B has the output 'w'.",
    )
    assert [output.output for output in found.outputs] == ["y"]
    assert found.outputs[0].difference.problem is None
    assert not found.same


def test_another_shape_is_a_difference(tmp_path: Path) -> None:
    (output,) = pair(tmp_path, "y = Exp(x)", "z = Exp(x) y = Transpose(z)").outputs
    assert output.difference.problem == "The shapes are [4, 3] and [3, 4]."


def test_another_float_type_must_be_asked_for(tmp_path: Path) -> None:
    a = write(tmp_path / "a.onnx", "y = Exp(x)")
    b = write(tmp_path / "b.onnx", "y = Exp(x)", "(float16[n, 3] x) => (float16[n, 3] y)")
    with pytest.raises(VerifyError, match="'x' is FLOAT in A and FLOAT16 in B"):
        verify(a, b)
    found = verify(a, b, VerifyOptions(cross_dtype=True))
    assert found.same
    assert found.tolerances["model"] == Tolerance(1e-2, 1e-2)
    assert 0 < (found.outputs[0].difference.max_abs or 0) < 1e-2


def test_nothing_in_common(tmp_path: Path) -> None:
    a = write(tmp_path / "a.onnx", "y = Exp(x)")
    b = write(tmp_path / "b.onnx", "z = Exp(x)", "(float[n, 3] x) => (float[n, 3] z)")
    with pytest.raises(VerifyError, match=r"nothing in common.*Only A has the output 'y'"):
        verify(a, b)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 0}, "batch is 0"),
        ({"sequence": 0}, "sequence is 0"),
        ({"runs": 0}, "runs is 0"),
        ({"past": -1}, "past is -1"),
        ({"absolute": -1.0}, "absolute tolerance is -1"),
        ({"relative": float("nan")}, "relative tolerance is nan"),
        ({"dims": {"m": 3}}, "No input has a dimension called 'm'. There are: n."),
    ],
)
def test_options_without_sense(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        pair(tmp_path, "y = Exp(x)", "y = Exp(x)", **options)


def test_what_does_not_run(tmp_path: Path) -> None:
    good = write(tmp_path / "good.onnx", "y = Exp(x)")
    with pytest.raises(ModelFileError, match="does not exist"):
        verify(good, tmp_path / "none.onnx")
    (tmp_path / "text.onnx").write_text("not a model")
    with pytest.raises(ModelFileError, match="is not a readable ONNX file"):
        verify(good, tmp_path / "text.onnx")
    unknown = write(tmp_path / "unknown.onnx", "y = NoSuchOperator(x)")
    with pytest.raises(OrtError, match=r"does not load .*unknown\.onnx.*NoSuchOperator"):
        verify(good, unknown)
    picky = write(tmp_path / "picky.onnx", "s = Constant <value_ints = [7]> () y = Reshape(x, s)")
    with pytest.raises(OrtError, match=r"picky\.onnx does not run"):
        verify(good, picky)
    with pytest.raises(OrtError, match=r"has no \['NoSuchProvider'\]"):
        verify(good, good, VerifyOptions(providers=["NoSuchProvider"]))
    with pytest.raises(ModelFileError, match=r"neither mobius\.json nor model\.onnx"):
        verify(good, tmp_path)


def test_sequences_are_not_supported(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.onnx", "y = SequenceConstruct(x)", "(float[n] x) => (seq(float[n]) y)"
    )
    with pytest.raises(OrtError, match=r"'y' is a seq\(tensor\(float\)\); only tensors"):
        verify(path, path)


def test_without_onnx_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(OrtMissingError, match=r"pip install 'mobius-build\[ort\]'"):
        pair(tmp_path, "y = Exp(x)", "y = Exp(x)")


def test_only_one_model_is_loaded_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnxruntime

    loaded: list[str] = []
    alive = 0

    class Counted(onnxruntime.InferenceSession):  # type: ignore[misc]
        def __init__(self, path: Any, *arguments: Any, **options: Any) -> None:
            nonlocal alive
            super().__init__(path, *arguments, **options)
            loaded.append(Path(path).name)
            alive += 1
            assert alive == 1

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    monkeypatch.setattr(onnxruntime, "InferenceSession", Counted)
    assert pair(tmp_path, "y = Exp(x)", "y = Exp(x)").same
    assert loaded == ["b.onnx", "a.onnx", "b.onnx"]


@pytest.fixture
def packages(tmp_path: Path, decoder: Decoder) -> Callable[..., Path]:
    """Return a maker of saved decoders with one set of weights."""

    def make(ep: str, seed: int = 0) -> Path:
        folder = tmp_path / f"{ep}-{seed}"
        if not folder.exists():
            decoder(execution_provider=ep, seed=seed).save(folder)
        return folder

    return make


@pytest.mark.parametrize("ep", ["cpu", "onnx-standard"])
def test_an_optimised_decoder_is_the_same(packages: Callable[..., Path], ep: str) -> None:
    """Fused attention in f32 stays within 1e-5 of the reference, padded or not."""
    found = verify(packages("default"), packages(ep), VerifyOptions(absolute=1e-5, relative=0))
    assert found.same, [o for o in found.outputs if o.difference.problem]
    assert [o.scenario for o in found.outputs if o.output == "logits"] == [
        "prompt",
        "padded prompt",
        "next token",
        "next token after padding",
    ]
    shapes = {(o.scenario, o.output): o.difference.shapes[0] for o in found.outputs}
    assert shapes["prompt", "logits"] == (2, 7, 64)
    assert shapes["next token", "present.0.key"] == (2, 2, 8, 16)
    compared = {o.scenario: o.difference.compared for o in found.outputs if o.output == "logits"}
    # The second row of the padded prompt is one token shorter.
    assert compared == {
        "prompt": 14 * 64,
        "padded prompt": 13 * 64,
        "next token": 2 * 64,
        "next token after padding": 2 * 64,
    }
    # The cache of the row with padding is compared up to there.
    cache = {
        o.scenario: o.difference.compared for o in found.outputs if o.output == "present.0.key"
    }
    assert cache["next token"] == 2 * 8 * 2 * 16
    assert cache["next token after padding"] == (7 + 6) * 2 * 16


@pytest.mark.parametrize("last_is", ["A", "B"])
def test_logits_of_the_last_token_beside_those_of_all(
    tmp_path: Path, decoder: Decoder, last_is: str
) -> None:
    for name, last in (("all", False), ("last", True)):
        decoder(execution_provider="default", last_token_logits=last).save(tmp_path / name)
    order = ("last", "all") if last_is == "A" else ("all", "last")
    found = verify(*(tmp_path / name for name in order))
    assert found.same, [o for o in found.outputs if o.difference.problem]
    assert found.notes == (
        f"logits: {last_is} has each row's last token only; that token was compared.",
    )
    compared = {o.scenario: o.difference.compared for o in found.outputs if o.output == "logits"}
    assert compared == dict.fromkeys(
        ("prompt", "padded prompt", "next token", "next token after padding"), 2 * 64
    )
    # The padded row's last token is not its last column: another would be found.
    decoder(execution_provider="default", seed=1).save(tmp_path / "other")
    assert not verify(tmp_path / "last", tmp_path / "other").same


def test_other_weights_are_found(packages: Callable[..., Path]) -> None:
    found = verify(packages("default"), packages("default", seed=1))
    assert not found.same
    assert found.worst()[0].difference.beyond > 100


def test_a_mask_that_is_not_read_is_found(packages: Callable[..., Path]) -> None:
    """Padding comes after a prompt, where causal attention never looks, until tokens follow it."""
    right, wrong = packages("default"), packages("default").with_name("wrong")
    shutil.copytree(right, wrong)
    model = ir.load(wrong / "model.onnx")
    (mask,) = [value for value in model.graph.inputs if value.name == "attention_mask"]
    uses = list(mask.uses())
    one = ir.node("Constant", [], {"value_int": 1})
    ones = ir.node("Max", [mask, one.outputs[0]])  # all tokens are real, whatever the mask says
    for use in uses:
        use.node.replace_input_with(use.idx, ones.outputs[0])
    model.graph.insert_before(model.graph[0], [one, ones])
    ir.save(model, wrong / "model.onnx")
    found = verify(right, wrong)
    bad = {output.scenario for output in found.outputs if output.difference.problem}
    assert bad == {"next token after padding"}
    assert verify(right, wrong, VerifyOptions(padding=False)).same


def test_a_package_without_weights(tmp_path: Path, decoder: Decoder) -> None:
    decoder(weights=False).save(tmp_path / "graphs")
    with pytest.raises(ModelFileError, match="saved without weights"):
        verify(tmp_path / "graphs", tmp_path / "graphs")


def test_packages_of_several_graphs(tmp_path: Path, tiny_model: Any, tensors_for: Any) -> None:
    def save(name: str, keys: str, seed: int) -> Path:
        package = ModelPackage(
            {key: tiny_model() for key in keys}, roles=dict.fromkeys(keys, "encoder")
        )
        package.apply_weights(tensors_for(package, seed))
        package.save(tmp_path / name)
        return tmp_path / name

    a = save("a", "pq", 0)
    assert verify(a, save("same", "pq", 0)).same
    found = verify(a, save("fewer", "pr", 0))
    assert found.interface == ("Only A has the graph 'q'.", "Only B has the graph 'r'.")
    assert {output.graph for output in found.outputs} == {"p"}
    assert not verify(a, save("other", "pq", 1)).same


def test_a_missing_data_file_is_named(tmp_path: Path, decoder: Decoder) -> None:
    decoder().save(tmp_path / "package")
    (tmp_path / "package" / "model.onnx.data").unlink()
    with pytest.raises(ModelFileError, match=r"model\.onnx\.data.*cannot be read"):
        verify(tmp_path / "package", tmp_path / "package")


def test_the_result_is_json(tmp_path: Path) -> None:
    content = pair(tmp_path, "y = Exp(x)", "y = Exp(x)").to_dict()
    read = json.loads(json.dumps(content, allow_nan=False))
    assert read["same"] is True
    assert read["outputs"][0]["shapes"] == [[4, 3], [4, 3]]
    assert read["outputs"][0]["problem"] is None
