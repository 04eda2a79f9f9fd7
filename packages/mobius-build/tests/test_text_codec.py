"""Text in and out: a package's tokenizer, and its chat template."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from mobius.chat_template import read_chat_template, render_chat
from mobius.text_codec import CodecError, RunExtraMissingError, TextCodec

QUESTION = [{"role": "user", "content": "Why <b>?"}]
# What real templates use: loop controls, whitespace control, tojson, a generation mark, an error.
TEMPLATE = """{%- if messages[0]['role'] == 'system' %}
{{ raise_exception('no instructions') }}
{%- endif %}
{{ bos_token }}
{%- for message in messages %}
    {%- if loop.index > 9 %}{% break %}{% endif %}
    {% generation %}
<|{{ message.role }}|>{{ message.content | tojson }}
    {% endgeneration %}
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>{{ strftime_now('%Y')[:1] }}{% endif %}"""
RENDERED = '<s><|user|>"Why <b>?"\n<|assistant|>2'


def write_tokenizer(folder: Path) -> None:
    """Write a byte-level tokenizer of no merges, which starts each text with `<s>`."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(["<s>", "</s>", *alphabet])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(folder / "tokenizer.json"))


def test_there_and_back(tmp_path: Path) -> None:
    """Nothing is cut or filled, whatever the file says, and no character is torn."""
    write_tokenizer(tmp_path)
    codec = TextCodec(tmp_path)
    text = "Größe: 7 €, 你好"
    tokens = codec.encode(text)
    plain = codec.encode(text, special_tokens=False)
    assert tokens == [0, *plain]
    assert len(plain) == len(text.encode())
    pieces = list(codec.decode(iter([*tokens, 1])))
    assert "".join(pieces) == text
    assert "€" in pieces
    assert list(codec.decode(iter(plain[1:]), after=plain[:1])) == pieces[1:]


def test_files_that_are_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(CodecError, match=r"tokenizer\.json is missing: the checkpoint had none"):
        TextCodec(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CodecError, match=r"tokenizer\.json is not a tokenizer: "):
        TextCodec(tmp_path)


@pytest.mark.parametrize(
    "files",
    [
        {"chat_template.jinja": TEMPLATE, "tokenizer_config.json": {"chat_template": "older"}},
        {"chat_template.json": {"chat_template": TEMPLATE}},
        {"tokenizer_config.json": {"chat_template": TEMPLATE}},
        {
            "tokenizer_config.json": {
                "chat_template": [
                    {"name": "tools", "template": "other"},
                    {"name": "default", "template": TEMPLATE},
                ]
            }
        },
    ],
)
def test_a_template_is_found_and_rendered(files: dict[str, Any], tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    config = tmp_path / "tokenizer_config.json"
    content = json.loads(config.read_text()) if config.is_file() else {}
    content["bos_token"] = {"content": "<s>", "special": True}
    content["pad_token"] = None
    config.write_text(json.dumps(content))
    assert render_chat(tmp_path, QUESTION) == RENDERED


def test_templates_that_fail(tmp_path: Path) -> None:
    assert read_chat_template(tmp_path) is None
    with pytest.raises(CodecError, match=r"has no chat template .*Run it without --chat"):
        render_chat(tmp_path, QUESTION)
    path = tmp_path / "chat_template.jinja"
    path.write_text(TEMPLATE)
    with pytest.raises(CodecError, match="fails: no instructions"):
        render_chat(tmp_path, [{"role": "system", "content": "x"}])
    path.write_text("{% if %}")
    with pytest.raises(CodecError, match=r"The chat template in .* fails: "):
        render_chat(tmp_path, QUESTION)
    # The sandbox: a template comes with a checkpoint, from anywhere.
    path.write_text("{{ messages.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(CodecError, match="unsafe"):
        render_chat(tmp_path, QUESTION)
    path.unlink()
    for text, problem in (("[1]", "holds list"), ("{", "is not JSON")):
        (tmp_path / "tokenizer_config.json").write_text(text)
        with pytest.raises(CodecError, match=problem):
            read_chat_template(tmp_path)


@pytest.mark.parametrize("package", ["tokenizers", "jinja2"])
def test_what_is_not_installed(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    real = builtins.__import__

    def without(name: str, *arguments: Any) -> Any:
        if name.partition(".")[0] == package:
            raise ImportError(name)
        return real(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without)
    call = {"tokenizers": TextCodec, "jinja2": lambda folder: render_chat(folder, QUESTION)}[
        package
    ]
    with pytest.raises(
        RunExtraMissingError, match=rf"needs {package}, .*pip install 'mobius-build\[run\]'"
    ):
        call(tmp_path)
