"""From a conversation to the one text, and the ids, that a chat model was trained to continue.

A model's template is a small Jinja program that comes with its weights. It runs in a sandbox, and what people wrote
into their messages cannot pass for the special tokens that separate one speaker from the next.
"""

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from shared.data.tokenizer import Tokenizer

Messages = Sequence[Mapping[str, str]]
JINJA = {"trim_blocks": True, "lstrip_blocks": True, "extensions": ["jinja2.ext.loopcontrols"]}  # as Hugging Face does
ROLE = re.compile(r"[a-z_]{1,32}")


class ChatError(ValueError):
    """A model without a usable template, or messages it cannot take."""


class ChatTemplate:
    """A chat template and the special tokens it names. `source` is the Jinja text."""

    def __init__(self, source: str, special: Mapping[str, str] | None = None) -> None:
        environment = ImmutableSandboxedEnvironment(**JINJA)
        environment.filters["tojson"] = lambda x, indent=None: json.dumps(x, ensure_ascii=False, indent=indent)
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        self._special = dict(special or {})
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ChatError(f"the chat template is not valid Jinja: {error}") from error

    @classmethod
    def load(cls, model_dir: Path | str) -> "ChatTemplate":
        """Read the template from chat_template.jinja or tokenizer_config.json."""
        model_dir = Path(model_dir)
        file = model_dir / "tokenizer_config.json"
        try:
            config = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        except ValueError as error:
            raise ChatError(f"{file} cannot be read: {error}") from error
        if not isinstance(config, dict):
            raise ChatError(f"{file} must hold a JSON object")
        source = config.get("chat_template")
        if (alone := model_dir / "chat_template.jinja").is_file():
            source = alone.read_text(encoding="utf-8")
        if isinstance(source, list):  # several, each with a name
            try:
                source = {entry["name"]: entry["template"] for entry in source}.get("default")
            except (KeyError, TypeError):
                raise ChatError(f"{file}: each entry of chat_template needs a name and a template") from None
        if not source:
            raise ChatError(f"{model_dir} has no chat template; it is probably a base model, which cannot chat")
        if not isinstance(source, str):
            raise ChatError(f"{file}: chat_template must be text, or a list of named ones, not {type(source).__name__}")
        special = {name: config.get(name) for name in ("bos_token", "eos_token", "unk_token", "pad_token")}
        return cls(source, {name: t["content"] if isinstance(t, dict) else t for name, t in special.items() if t})

    def render(self, messages: Messages, add_generation_prompt: bool = True) -> str:
        """The conversation as one text; with `add_generation_prompt` it ends where the assistant's answer begins.

        messages: [{"role": "user", "content": "Hi"}, ...]. Raises ChatError.
        """
        _check(messages)
        try:
            return self._template.render(
                messages=list(messages), add_generation_prompt=add_generation_prompt, **self._special
            )
        except Exception as error:  # a template is a program, and may fail like one
            raise ChatError(f"the model's chat template refuses these messages: {error}") from error


def encode_chat(tokenizer: Tokenizer, template: ChatTemplate, messages: Messages) -> list[int]:
    """The ids of a conversation, up to where the assistant's answer begins.

    Only the template makes special tokens. Where a message's own text spells one, as in "<|im_end|>", it is encoded as
    the characters it is; any other conversation gets exactly the ids of its rendered text. Raises ChatError.
    """
    _check(messages)
    special = re.compile("|".join(map(re.escape, sorted(tokenizer.special_tokens, key=len, reverse=True))) or r"(?!)")
    # A mark after the first character of each forgery breaks it; no message can hold the mark, for nobody can guess it.
    mark = f"\ue000{secrets.token_hex(8)}\ue001"
    forged = re.compile(rf"(?={special.pattern})(.)", re.DOTALL)
    masked = [{**message, "content": forged.sub(rf"\g<1>{mark}", message["content"])} for message in messages]
    text = template.render(masked)
    # A template that cuts or joins messages could still build a special token out of pieces. Harmless words show which
    # special tokens are the template's own.
    harmless = [{**m, "content": "x" if m["content"].strip() else m["content"]} for m in messages]
    if special.findall(text) != special.findall(template.render(harmless)):
        raise ChatError("a message changes which special tokens the model's chat template writes; it is refused")
    if mark not in text:
        return tokenizer.encode(text, allow_special=True)
    ids: list[int] = []
    end = 0
    for match in special.finditer(text):
        ids += tokenizer.encode(text[end : match.start()].replace(mark, ""))
        ids.append(tokenizer.special_tokens[match[0]])
        end = match.end()
    return ids + tokenizer.encode(text[end:].replace(mark, ""))


def _check(messages: Messages) -> None:
    if not messages:
        raise ChatError("messages is empty; a conversation needs at least one message")
    for i, message in enumerate(messages):
        if extra := message.keys() - {"role", "content"}:
            raise ChatError(f"messages[{i}] has {sorted(extra)[0]!r}; only role and content can be honoured")
        if not isinstance(message.get("role"), str) or not ROLE.fullmatch(message["role"]):
            raise ChatError(f"messages[{i}].role must be a plain word such as 'user', not {message.get('role')!r}")
        if not isinstance(message.get("content"), str):
            raise ChatError(f"messages[{i}].content must be text, not {type(message.get('content')).__name__}")


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
