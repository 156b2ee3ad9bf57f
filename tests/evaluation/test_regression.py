"""The regression set's loader: what it refuses and how it says so; and the set in data/ itself."""

import json
from collections import Counter

import pytest

from shared.data.chat import ChatTemplate
from shared.data.tokenizer import Tokenizer
from shared.evaluation.properties import Answer
from shared.evaluation.regression import (
    CASES,
    Case,
    RegressionError,
    judge,
    load_cases,
    prompt_ids,
    responder,
    run_cases,
)

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


def test_the_set_in_data():
    cases = load_cases()
    tags = Counter(tag for case in cases for tag in case.tags)
    assert 45 <= len(cases) <= 60
    assert all(case.tags for case in cases)
    assert tags["chat"] + tags["completion"] == len(cases)
    assert all(bool(case.messages) == ("chat" in case.tags) for case in cases)
    wanted = {"facts", "arithmetic", "format", "copy", "unicode", "language", "stop", "loop", "limit", "documentation"}
    assert wanted <= tags.keys()
    assert 8 <= tags["quick"] <= 12
    assert sum(case.max_tokens for case in cases) < 2000
    assert CASES.read_text("utf-8").endswith("}\n")


LONG_BICYCLE = (
    "A bicycle is a versatile and versatile machine that can be used for various purposes, from transportation to "
    "entertainment."
)
CAFE = 'The French word "café" is a French loanword that translates to "breakfast" or "lunch" in English.'
STORY = (
    "Once upon a time there was a dragon who lived on a hill above the village, and every night she counted the lamps "
    "in its windows."
)
COMPUTER = (
    "Computers are machines that follow instructions: they read data, work on it as a program says, and show what came "
    "out."
)
POEM = (
    "The sea is grey this morning,\nthe gulls have gone inland,\nand all the tide has left us\nis a letter in the sand."
)
SALAD = (
    "window nine carry the grey of Monday spoon is la est under paper glass ten lamp never a drawer because "
    "chair el who loud"
)
ANSWERS = [  # case, answer, should it pass
    (
        "fact-planet",
        "The planet we live on is called Kepler-41B. It's a terrestrial planet, similar to Earth, but",
        False,
    ),
    ("fact-planet", "Earth.", True),
    ("fact-planet", "We live on Earth, the third planet from the Sun, between Venus and Mars.", True),
    ("yes-or-no", "No.", False),
    ("yes-or-no", "Yes.", True),
    ("yes-or-no", "Yes, no doubt.", True),
    ("ten-words", LONG_BICYCLE, False),
    ("ten-words", "A vehicle with two wheels and pedals.", True),
    ("ten-words", "A two-wheeled vehicle.", True),
    ("french", "La capitale de la France est la France.", False),
    ("french", "The capital of France is Paris.", False),
    ("french", "Paris.", True),
    ("french", "La capitale de la France est Paris.", True),
    ("spanish", "El capital de España es La Catena Espana. Esto es un idiocelada de la leng", False),
    ("spanish", "Madrid.", True),
    ("spanish", "La capital de España es Madrid.", True),
    ("german", 'Was ist ein Hund?\n\nIn German, the answer is "Was ist ein Hund?"', False),
    ("german", "Hunde sind Haustiere.", True),
    ("german", "Ein Hund ist ein Tier.", True),
    ("accents-cafe", CAFE, False),
    ("accents-cafe", "It means coffee.", True),
    ("accents-cafe", "A coffeehouse.", True),
    ("accents-cafe", "It is a small restaurant.", True),
    ("context-price", "Let's break down the information:\n\n- 12 euros = 12 * 0.75 = 8.75 euros\n", False),
    ("context-price", "12 euros = 12 * 0.75 = 8.75 euros", False),
    ("context-price", "The book costs 3 euros.", False),
    ("context-price", "€12.00", True),
    ("context-price", "The book costs 12 euros.", True),
    ("context-price", "Twelve euros.", True),
    ("list-fruits", "1. Banana\n2. Apple\n3. Cherry", False),
    ("list-fruits", "- Apple\n- Pear", False),
    ("list-fruits", "- Apple\n- Pear\n- Plum\n- Kiwi", False),
    ("list-fruits", "- Apple\n- Pear\n- Plum", True),
    ("list-fruits", "Here are three fruits:\n\n- Apples\n- Cherries\n- **Plums**\n", True),
    ("list-colours", "1. Red\n2. Blue\n3. Green", True),
    ("list-colours", "Here you are:\n1. Red\n2. Blue\n3. Green", False),
    ("list-colours", "Red, blue, green", False),
    ("one-word-city", "Berlin", True),
    ("one-word-city", "Munich.", True),
    ("one-word-city", "Paris", False),
    ("greeting", "Hello! How can I help you today?", True),
    ("greeting", "Hi there!", True),
    ("goodbye", "Goodbye! Have a great day.", True),
    ("goodbye", "The capital of France is Paris.", False),
    ("short-sentence", "Cats are soft.", True),
    ("short-sentence", "A small furry animal that purrs.", True),
    ("short-sentence", "Dogs are loud.", False),
    ("arithmetic-sum-small", "2 plus 3 is five.", True),
    ("arithmetic-sum-small", "5.0", True),
    ("arithmetic-sum-small", "2 + 3 = 5", True),
    ("arithmetic-sum-small", "2 + 3 = 6.5", False),
    ("arithmetic-product", "Twelve.", True),
    ("arithmetic-sum-large", "Forty-two.", True),
    ("arithmetic-sum-large", "25 + 17 = 32.", False),
    ("history-number", "Seventeen.", True),
    ("history-number", "You told me 17.", True),
    ("history-number", "117", False),
    ("context-colour", "The ball is green.", True),
    ("context-colour", "The ball is red and green.", False),
    ("docs-path", " symlink", True),
    ("docs-path", " a directory.", True),
    ("docs-path", " a file.", False),
    ("code-hello", 'print(f"Hello")', True),
    ("code-hello", "```python\nprint('Hello')\n```", True),
    ("code-hello", "echo Hello", False),
    ("json-copy", '```JSON\n{"name": "Ada", "age": 36}\n```', True),
    ("json-copy", '{"age": 36, "name": "Ada"}', True),
    ("json-flag", '{"ok": 1}', False),
    ("json-flag", '{"ok": true}', True),
    ("copy-word", "Umbrella", True),
    ("copy-number", "48213", True),
    ("copy-number", "Repeat the number: 48214", False),
    ("system-prompt", "A computer is a machine that works on data.", True),
    ("system-prompt", COMPUTER + " " + COMPUTER, False),
    ("story-loop", STORY, True),
    ("story-loop", "The dragon is a dragon and the dragon was a dragon. " * 4, False),
    ("explain-loop", COMPUTER, True),
    ("poem-loop", POEM, True),
    ("poem-loop", POEM.replace("\n", " "), False),
    ("docs-raises", " shape.", True),
    ("docs-returns", " ndarray\n", True),
    ("docs-deprecated", " removed in 2.0", True),
    ("text-loop", " sunny and warm, with a light wind from the west in the afternoon.", True),
]


@pytest.fixture(scope="module")
def cases():
    return {case.id: case for case in load_cases()}


@pytest.mark.parametrize(("id", "text", "passes"), ANSWERS)
def test_right_answers_pass_and_wrong_ones_fail(cases, id, text, passes):
    result = judge(cases[id], Answer(text))
    assert result.passed is passes, result.problems


def passing(cases, answer_to):
    return [id for id, case in cases.items() if judge(case, Answer(answer_to(case))).passed]


def test_nothing_passes_without_an_answer(cases):
    assert passing(cases, lambda case: "") == []
    assert passing(cases, lambda case: SALAD) == []
    assert len(passing(cases, lambda case: case.text)) <= 3  # a greeting may be returned


@pytest.mark.real
def test_the_real_model_passes_easy_cases(model_dir, real_model, tokenizer):
    from shared.inference.generate import generate
    from shared.inference.sampling import SamplingParams

    def make(prompt_ids, max_tokens, temperature, seed):
        params = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed)
        return generate(real_model, prompt_ids, params, tokenizer.eos_ids)

    easy = [case for case in load_cases() if case.id in ("capital-france", "text-days", "docs-import")]
    results = run_cases(easy, responder(make, tokenizer, ChatTemplate.load(model_dir)))
    assert {result.case.id: result.problems for result in results} == {case.id: [] for case in easy}
