"""The regression set in data/: right answers pass, wrong ones fail."""

from collections import Counter

import pytest

from shared.data.chat import ChatTemplate
from shared.evaluation.properties import Answer
from shared.evaluation.regression import CASES, judge, load_cases, responder, run_cases


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
