"""The regression set's loader and runner: what they refuse, and how they say so."""

import json

import pytest

from shared.data.chat import ChatTemplate
from shared.data.tokenizer import Tokenizer
from shared.evaluation.properties import Answer
from shared.evaluation.regression import Case, RegressionError, load_cases, prompt_ids, responder, run_cases

GOOD = {"id": "a", "prompt": "Once upon a", "max_tokens": 4, "tags": ["text"], "expect": {"contains": ["time"]}}
CHAT = {"id": "b", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9, "expect": {"ends": True}}
VOCAB = {i: bytes([i]) for i in range(256)}
TEMPLATE = ChatTemplate("{% for m in messages %}{{ m['content'] }}<|im_end|>{% endfor %}")


@pytest.fixture
def byte_tokenizer():
    return Tokenizer(VOCAB, [], ["<|endoftext|>", "<|im_end|>"], eos_ids=[257])


def write(path, *lines):
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), "utf-8")
    return path


def test_good_cases(tmp_path):
    one, two = load_cases(write(tmp_path / "cases.jsonl", GOOD, "", CHAT | {"temperature": 0.5, "seed": 7}))
    assert one == Case("a", {"contains": ["time"]}, 4, ("text",), prompt="Once upon a")
    assert (two.messages, two.temperature, two.seed) == (({"role": "user", "content": "Hi"},), 0.5, 7)
    assert (one.text, two.text) == ("Once upon a", "Hi")


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ([1], "a case must be a JSON object, not list"),
        (GOOD | {"tokens": 4}, "tokens: no such field"),
        ({k: v for k, v in GOOD.items() if k != "id"}, "id: missing"),
        ({k: v for k, v in GOOD.items() if k != "expect"}, "expect: missing"),
        ({k: v for k, v in GOOD.items() if k != "max_tokens"}, "max_tokens: missing"),
        (GOOD | {"id": " "}, "id: must be a text that isn't empty, without spaces around it, not ' '"),
        (GOOD | {"id": "a "}, "id: must be a text that isn't empty, without spaces around it, not 'a '"),
        (GOOD | {"id": 3}, "id: must be"),
        (GOOD | {"max_tokens": 0}, "max_tokens: must be a whole number, 1 to 512, not 0"),
        (GOOD | {"max_tokens": "4"}, "max_tokens: must be"),
        (GOOD | {"max_tokens": True}, "max_tokens: must be"),
        (json.dumps(GOOD).replace("4,", "9" * 900 + ","), "max_tokens: must be a whole number, 1 to 512, not 9999"),
        (json.dumps(GOOD).replace("4,", "9" * 9000 + ","), "max_tokens: must be a whole number, 1 to 512, not inf"),
        (json.dumps(GOOD).replace('"max', '"id": "b", "max'), "id: stands there twice"),
        (json.dumps(GOOD).replace('{"con', '{"ends": true, "ends": false, "con'), "ends: stands there twice"),
        (GOOD | {"seed": -1}, "seed: must be"),
        (GOOD | {"temperature": "hot"}, "temperature: must be"),
        (GOOD | {"temperature": float("nan")}, "temperature: must be"),
        (GOOD | {"tags": "text"}, "tags: must be a list of texts"),
        (GOOD | {"tags": [1]}, "tags: must be a list of texts"),
        (GOOD | {"messages": CHAT["messages"]}, "prompt: a case has either a prompt or messages"),
        ({k: v for k, v in GOOD.items() if k != "prompt"}, "prompt: a case has either a prompt or messages"),
        (GOOD | {"prompt": ""}, "prompt: must be a text that isn't empty"),
        (GOOD | {"prompt": " "}, "prompt: must be a text that isn't empty"),
        (GOOD | {"prompt": None}, "prompt: must be a text that isn't empty"),
        (CHAT | {"messages": []}, "messages: must be a list of at least one"),
        (CHAT | {"messages": ["Hi"]}, "messages[0]: must be an object"),
        (CHAT | {"messages": [{"role": "user"}]}, "messages[0]: must have role and content only"),
        (CHAT | {"messages": [{"role": "me", "content": "x"}]}, "messages[0].role: must be one of"),
        (CHAT | {"messages": [{"role": "user", "content": 3}]}, "messages[0].content: must be a text"),
        (
            CHAT | {"messages": [{"role": "user", "content": ""}]},
            "messages[0].content: must be a text that isn't empty",
        ),
        (CHAT | {"messages": [{"role": "assistant", "content": "x"}]}, "messages: the last one must be the user's"),
        (GOOD | {"expect": {}}, "expect: must be an object with at least one property"),
        (GOOD | {"expect": {"contain": ["x"]}}, "expect.contain: no such property; there are: contains"),
        (GOOD | {"expect": {"contains": "x"}}, "expect.contains: must be a list of texts"),
        (GOOD | {"expect": {"regex": "("}}, "expect.regex: must be a regular expression"),
        (GOOD | {"expect": {"regex": "a{99999999999}"}}, "expect.regex: must be a regular expression"),
        (GOOD | {"expect": {"json": float("nan")}}, "expect.json: must be true, or a JSON value"),
        (GOOD | {"expect": {"min_words": 9, "max_words": 3}}, "expect.min_words: no answer has 9 words"),
        (GOOD, "id: 'a' is also the id of line 1"),
    ],
)
def test_bad_cases_name_file_line_and_field(tmp_path, bad, said):
    path = write(tmp_path / "cases.jsonl", GOOD, "", bad)
    with pytest.raises(RegressionError) as error:
        load_cases(path)
    assert str(error.value).startswith(f"{path}, line 3: {said}")


def test_files_that_are_none(tmp_path):
    with pytest.raises(RegressionError, match="is missing"):
        load_cases(tmp_path / "no.jsonl")
    with pytest.raises(RegressionError, match="holds no case"):
        load_cases(write(tmp_path / "empty.jsonl", "", " "))
    (tmp_path / "latin.jsonl").write_bytes(json.dumps(GOOD).encode() + b'\n{"id": "\xe9"}')
    with pytest.raises(RegressionError, match=r"latin.jsonl, line 2: not UTF-8: .*byte 0xe9"):
        load_cases(tmp_path / "latin.jsonl")
    with pytest.raises(RegressionError, match="can't be read"):
        load_cases(tmp_path)


def test_a_byte_order_mark_is_no_matter(tmp_path):
    path = tmp_path / "cases.jsonl"
    path.write_text(json.dumps(GOOD) + "\r\n" + json.dumps(CHAT), "utf-8-sig")
    assert [case.id for case in load_cases(path)] == ["a", "b"]


def test_tags(tmp_path):
    path = write(tmp_path / "cases.jsonl", GOOD, CHAT | {"tags": ["chat", "stop"]})
    assert [case.id for case in load_cases(path, ["stop"])] == ["b"]
    assert [case.id for case in load_cases(path, ["stop", "text"])] == ["a", "b"]
    with pytest.raises(RegressionError, match="no case has the tag 'fast'; there are: chat, stop, text"):
        load_cases(path, ["fast"])


def test_prompts(byte_tokenizer):
    case = Case("a", {"ends": True}, 4, prompt="hi<|im_end|>")
    assert prompt_ids(case, byte_tokenizer, None) == [256, *b"hi<|im_end|>"]  # a text, whatever it says
    chat = Case("b", {"ends": True}, 4, messages=({"role": "user", "content": "hi"},))
    assert prompt_ids(chat, byte_tokenizer, TEMPLATE) == [*b"hi", 257]
    with pytest.raises(ValueError, match="no chat template"):
        prompt_ids(chat, byte_tokenizer, None)


def test_answers_are_cut_or_end(byte_tokenizer):
    asked = []

    def generate(prompt_ids, max_tokens, temperature, seed):
        asked.append((list(prompt_ids), max_tokens, temperature, seed))
        yield from [*b"time!", 257][:max_tokens]

    cases = [Case("short", {"contains": ["time"], "ends": True}, 3, prompt="x", temperature=0.5, seed=9),
             Case("long", {"contains": ["time"], "ends": True}, 20, prompt="y")]  # fmt: skip
    cut, whole = run_cases(cases, responder(generate, byte_tokenizer, None))
    assert asked == [([256, *b"x"], 3, 0.5, 9), ([256, *b"y"], 20, 0.0, 0)]
    assert (cut.answer, cut.passed) == (Answer("tim", "length"), False)
    assert cut.problems == ["contains: 'time' is missing", "ends: cut off at max_tokens"]
    assert (whole.answer, whole.passed, whole.problems) == (Answer("time!", "stop"), True, [])


def test_a_case_that_the_model_can_t_take_is_named(byte_tokenizer):
    def generate(prompt_ids, max_tokens, temperature, seed):
        raise ValueError("the prompt has 9000 tokens")

    with pytest.raises(RegressionError, match="case 'a' can't be answered: the prompt has 9000 tokens"):
        responder(generate, byte_tokenizer, None)(Case("a", {"ends": True}, 4, prompt="x"))
    with pytest.raises(RegressionError, match="case 'b' can't be answered: it is a chat"):
        responder(generate, byte_tokenizer, None)(
            Case("b", {"ends": True}, 4, messages=({"role": "user", "content": "x"},))
        )
