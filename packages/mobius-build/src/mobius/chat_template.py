"""`render_chat`: messages in, the prompt that a model was trained on out (extra `run`).

Templates are Jinja, with the additions that `transformers` `apply_chat_template` has. They come
with a checkpoint, so they run in Jinja's sandbox.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mobius.text_codec import CodecError, RunExtraMissingError

__all__ = ["read_chat_template", "render_chat"]

TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json")
TOKENIZER_CONFIG = "tokenizer_config.json"
_FIELD = "chat_template"


def read_chat_template(folder: Path) -> str | None:
    """Return the chat template of a package, or `None` if it has none.

    Raises:
        CodecError: if a file that may hold it is damaged.
    """
    jinja, as_json = (folder / name for name in TEMPLATE_FILES)
    if jinja.is_file():
        return jinja.read_text(encoding="utf-8")
    for path in (as_json, folder / TOKENIZER_CONFIG):
        template = _read_json(path).get(_FIELD)
        if isinstance(template, list):  # several, by name
            template = {each["name"]: each["template"] for each in template}.get("default")
        if isinstance(template, str):
            return template
    return None


def render_chat(folder: Path, messages: Sequence[Mapping[str, str]]) -> str:
    """Return the prompt for the model's next turn after `messages`.

    Args:
        folder: A package.
        messages: Each with a `role` (`"system"`, `"user"`, `"assistant"`) and its `content`.

    Raises:
        RunExtraMissingError: if `jinja2` is not installed.
        CodecError: if there is no template, or it fails on these messages.
    """
    template = read_chat_template(folder)
    if template is None:
        raise CodecError(
            f"{folder} has no chat template ({', '.join(TEMPLATE_FILES)}, or {_FIELD} in "
            f"{TOKENIZER_CONFIG}): the model was not trained on conversations. Run it without "
            "--chat."
        )
    jinja2, environment = _environment()
    config = _read_json(folder / TOKENIZER_CONFIG)
    tokens = {name: _content(value) for name, value in config.items() if name.endswith("_token")}
    try:
        rendered: str = environment.from_string(template).render(
            messages=[dict(each) for each in messages],
            tools=None,
            documents=None,
            add_generation_prompt=True,
            **{name: token for name, token in tokens.items() if token is not None},
        )
    except jinja2.exceptions.TemplateError as error:
        raise CodecError(f"The chat template in {folder} fails: {error}") from error
    return rendered


def _content(token: object) -> str | None:
    """Return the text of a special token, which is itself or in a description of it."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CodecError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise CodecError(f"{path} holds {type(content).__name__}, not a JSON object.")
    return content


def _environment() -> tuple[Any, Any]:
    try:
        import jinja2
        from jinja2 import ext, sandbox
    except ImportError as error:
        raise RunExtraMissingError("jinja2") from error

    class Generation(ext.Extension):
        """`{% generation %}` marks what the model has said; it is rendered as it is."""

        tags = {"generation"}  # noqa: RUF012  as jinja2 declares it

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: str) -> None:
        raise jinja2.exceptions.TemplateError(message)

    def to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        # Jinja's own escapes what HTML would misread.
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[ext.loopcontrols, Generation]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return jinja2, environment
