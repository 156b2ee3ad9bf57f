"""The regression set: prompts with the properties that their answers must have, from a checked file."""

import codecs
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from shared.data.chat import ChatTemplate, encode_chat
from shared.data.tokenizer import Tokenizer
from shared.evaluation.perplexity import beginning_id
from shared.evaluation.properties import PROPERTIES, Answer, contradiction, problems
from shared.measure.progress import progress_bar

CASES = Path(__file__).resolve().parents[2] / "data" / "regression.jsonl"
MAX_TOKENS = 512


class RegressionError(ValueError):
    """A regression set that can't be used; the message names the file, the line and the field."""


@dataclass(frozen=True)
class Case:
    """One prompt. Either `messages`, for a chat model, or `prompt`, a text to go on with, for any model.

    expect: property -> value, see `properties`. temperature: 0 is greedy; with more, `seed` decides every draw.
    """

    id: str
    expect: dict[str, Any]
    max_tokens: int
    tags: tuple[str, ...] = ()
    prompt: str | None = None
    messages: tuple[dict[str, str], ...] = ()
    temperature: float = 0.0
    seed: int = 0

    @property
    def text(self) -> str:
        """What the user wrote."""
        return self.prompt if self.prompt is not None else self.messages[-1]["content"]


@dataclass(frozen=True)
class Result:
    """A case, what the model said to it, and what is wrong with that: nothing, when the case passes."""

    case: Case
    answer: Answer
    problems: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """True when nothing is wrong: the answer has every property that the case expects."""
        return not self.problems


class Generate(Protocol):
    """Whatever makes tokens: the answer's ids, an end token included if there was one."""

    def __call__(self, prompt_ids: Sequence[int], max_tokens: int, temperature: float, seed: int) -> Iterable[int]:
        """Yield the answer's ids, at most max_tokens. Raises ValueError for a prompt the model can't take."""


Respond = Callable[[Case], Answer]


def load_cases(path: Path | str = CASES, tags: Iterable[str] = ()) -> list[Case]:
    """Read a regression set, one JSON object a line; with `tags`, only the cases that have one of them.

    Raises RegressionError, with the file, the line and the field, for anything that isn't as it should be: a field
    nobody knows, a property nobody knows, a value of the wrong kind, a field or an id that was there before, two
    properties that no answer can have both, no case at all.
    """
    path, tags = Path(path), set(tags)
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        raise RegressionError(f"{path} is missing; it holds the regression set, one JSON object a line") from None
    except OSError as error:
        raise RegressionError(f"{path} can't be read: {error}") from None
    if lines[0].startswith(codecs.BOM_UTF8):  # some editors put it there
        lines[0] = lines[0][len(codecs.BOM_UTF8) :]
    cases: list[Case] = []
    lines_of: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            case = parse_case(_read_json(line))
        except (ValueError, RecursionError) as error:
            what: object = error
            if isinstance(error, json.JSONDecodeError | RecursionError | UnicodeDecodeError):
                what = f"not {'UTF-8' if isinstance(error, UnicodeDecodeError) else 'JSON'}: {error}"
            raise RegressionError(f"{path}, line {number}: {what}") from None
        if case.id in lines_of:
            raise RegressionError(f"{path}, line {number}: id: {case.id!r} is also the id of line {lines_of[case.id]}")
        lines_of[case.id] = number
        cases.append(case)
    if not cases:
        raise RegressionError(f"{path} holds no case")
    if unknown := tags - {tag for case in cases for tag in case.tags}:
        known = ", ".join(sorted({tag for case in cases for tag in case.tags}))
        raise RegressionError(f"{path}: no case has the tag {sorted(unknown)[0]!r}; there are: {known}")
    return [case for case in cases if not tags or tags & set(case.tags)]


def _read_json(line: bytes) -> Any:
    """json.loads, but a name may stand only once in an object, and a number of any length is read.

    Without the second, Python refuses a number of thousands of digits before anybody knows which field it is in.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:
                raise ValueError(f"{name}: stands there twice; nobody can say which one counts")
            found[name] = value
        return found

    def whole(digits: str) -> int | float:
        return int(digits) if len(digits) < 1000 else float(digits)  # infinity

    return json.loads(line.decode("utf-8"), object_pairs_hook=unique, parse_int=whole)


def parse_case(data: Any) -> Case:
    """A case from a JSON object. Raises ValueError that begins with the field's name."""
    if not isinstance(data, dict):
        raise ValueError(f"a case must be a JSON object, not {type(data).__name__}")
    known = set(Case.__dataclass_fields__)
    if unknown := data.keys() - known:
        raise ValueError(f"{sorted(unknown)[0]}: no such field; there are: {', '.join(sorted(known))}")
    for name in ("id", "expect", "max_tokens"):
        if name not in data:
            raise ValueError(f"{name}: missing")
    name = data["id"]
    good = isinstance(name, str) and name and name == name.strip()
    _need(good, "id: must be a text that isn't empty, without spaces around it", name)
    for name, low, high in (("max_tokens", 1, MAX_TOKENS), ("seed", 0, 2**63)):
        value = data.get(name, low)
        _need(type(value) is int and low <= value <= high, f"{name}: must be a whole number, {low} to {high}", value)
    value = data.get("temperature", 0.0)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 10
    _need(is_number, "temperature: must be a number from 0 to 10", value)
    tags = data.get("tags", [])
    _need(
        isinstance(tags, list) and all(isinstance(tag, str) and tag for tag in tags),
        "tags: must be a list of texts",
        tags,
    )
    if ("prompt" in data) == ("messages" in data):
        raise ValueError("prompt: a case has either a prompt or messages, and not both")
    if "prompt" in data:
        prompt = data["prompt"]
        _need(isinstance(prompt, str) and prompt.strip(), "prompt: must be a text that isn't empty", prompt)
    _check_messages(data.get("messages", [{"role": "user", "content": "x"}]))
    _check_expected(data["expect"])
    return Case(**{**data, "tags": tuple(tags), "messages": tuple(data.get("messages", ()))})


def _check_messages(messages: Any) -> None:
    _need(isinstance(messages, list) and messages, "messages: must be a list of at least one message", messages)
    for i, message in enumerate(messages):
        where = f"messages[{i}]"
        _need(isinstance(message, dict), f"{where}: must be an object with role and content", message)
        _need(message.keys() == {"role", "content"}, f"{where}: must have role and content only", sorted(message))
        roles = ("system", "user", "assistant")
        _need(message["role"] in roles, f"{where}.role: must be one of {', '.join(roles)}", message["role"])
        content = message["content"]
        _need(
            isinstance(content, str) and content.strip(), f"{where}.content: must be a text that isn't empty", content
        )
    _need(messages[-1]["role"] == "user", "messages: the last one must be the user's", messages[-1]["role"])


def _check_expected(expected: Any) -> None:
    _need(isinstance(expected, dict) and expected, "expect: must be an object with at least one property", expected)
    for name, value in expected.items():
        if name not in PROPERTIES:
            raise ValueError(f"expect.{name}: no such property; there are: {', '.join(PROPERTIES)}")
        if wanted := PROPERTIES[name].wants(value):
            raise ValueError(f"expect.{name}: must be {wanted}, not {_short(value)}")
    if problem := contradiction(expected):
        raise ValueError(f"expect.{problem}")


def _need(condition: object, what: str, value: object) -> None:
    if not condition:
        raise ValueError(f"{what}, not {_short(value)}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + " …"


def prompt_ids(case: Case, tokenizer: Tokenizer, template: ChatTemplate | None) -> list[int]:
    """The ids that the model is to continue. Raises ValueError for messages and a model without a chat template."""
    if case.prompt is not None:
        return [beginning_id(tokenizer), *tokenizer.encode(case.prompt)]
    if template is None:
        raise ValueError("it is a chat, and the model has no chat template")
    return encode_chat(tokenizer, template, case.messages)


def responder(generate: Generate, tokenizer: Tokenizer, template: ChatTemplate | None) -> Respond:
    """A function from a case to a model's answer. It raises RegressionError for a case the model can't take."""

    def respond(case: Case) -> Answer:
        try:
            ids = list(generate(prompt_ids(case, tokenizer, template), case.max_tokens, case.temperature, case.seed))
        except ValueError as error:
            raise RegressionError(f"case {case.id!r} can't be answered: {error}") from error
        if ids and ids[-1] in tokenizer.eos_ids:
            return Answer(tokenizer.decode(ids[:-1]), "stop")
        return Answer(tokenizer.decode(ids), "length")

    return respond


def judge(case: Case, answer: Answer) -> Result:
    """The case's result, given the answer to it."""
    return Result(case, answer, problems(answer, case.expect))


def run_cases(
    cases: Sequence[Case], respond: Respond, progress: bool = False, label: str = "answering"
) -> list[Result]:
    """Answer every case, and judge the answers."""
    results = []
    with progress_bar(label, len(cases), progress) as step:
        for case in cases:
            results.append(judge(case, respond(case)))
            step()
    return results
