"""An answer that one engine began and another goes on with: the same tokens, the same text, the same end."""

from dataclasses import replace

import pytest

from shared.inference.answer_text import AnswerText
from shared.inference.llm_engine import LLMEngine
from shared.inference.outputs import joined
from shared.inference.sampling import SamplingParams
from tests.inference.scripted import EOS, SILENT, ByteTokenizer
from tests.tiny import tiny_model

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8]
PARAMS = [
    SamplingParams(max_tokens=12),
    SamplingParams(max_tokens=12, temperature=1.2, seed=5, logprobs=2),
    SamplingParams(max_tokens=12, temperature=0.9, seed=-7, repetition_penalty=1.5, top_p=0.9),
]


class Letters(ByteTokenizer):
    """Token i is the i-th character from the space on."""

    eos_ids = frozenset()
    special_tokens = {}

    def token_bytes(self, id: int) -> bytes:
        return bytes([32 + id % 90])


@pytest.fixture(scope="module")
def model():
    return tiny_model()


def engine_over(model, **settings) -> LLMEngine:
    return LLMEngine(model, Letters(), num_blocks=40, block_size=4, attention="gather", **settings)


def resumed(engine: LLMEngine, params: SamplingParams, output_ids: list[int], index: int = 0):
    engine.add_request("a", PROMPT, params, output_ids=output_ids, index=index)
    outputs = []
    while engine.has_unfinished:
        outputs += [output for _, output in engine.step()]
    return joined(outputs)


@pytest.mark.parametrize("params", PARAMS, ids=["greedy", "drawn", "penalised"])
@pytest.mark.parametrize("budget", [8, 64])
def test_it_goes_on_behind_any_number_of_tokens(model, params, budget):
    """Positions, seeds, the penalty and max_tokens count what came before. budget: the tokens of a step."""
    [whole] = engine_over(model).generate([PROMPT], params)
    for n in (1, 5, 11):
        engine = engine_over(model, max_num_batched_tokens=budget, max_num_seqs=2)
        rest = resumed(engine, params, whole.token_ids[:n], index=3)
        assert rest.token_ids == whole.token_ids[n:]
        assert rest.text == whole.text[n:]
        assert (rest.finish_reason, rest.index) == (whole.finish_reason, 3)
        if params.logprobs is not None:
            assert [entry.token_id for entry in rest.logprobs] == rest.token_ids
        assert engine.blocks.num_free == engine.blocks.num_blocks


def test_a_stop_text_that_has_begun(model):
    """Its first characters are in the tokens that came before; nothing of it is sent."""
    [whole] = engine_over(model).generate([PROMPT], PARAMS[1])
    stop = whole.text[4:7]
    params = replace(PARAMS[1], stop=(stop,))
    for n, text in ((5, ""), (6, ""), (3, whole.text[3:4])):
        rest = resumed(engine_over(model), params, whole.token_ids[:n])
        assert (rest.text, rest.finish_reason) == (text, "stop")
        assert rest.token_ids == whole.token_ids[n:7]


def test_one_of_several_answers(model):
    """The k-th draws with seed + k."""
    params = replace(PARAMS[1], n=3)
    third = engine_over(model).generate([PROMPT], params)[2]
    rest = resumed(engine_over(model), replace(params, n=1, seed=params.seed + 2), third.token_ids[:4], index=2)
    assert rest.token_ids == third.token_ids[4:]


@pytest.mark.parametrize(
    ("output_ids", "changes", "message"),
    [
        ([5] * 12, {}, "the answer ends with token 5, its number 12"),
        ([5, 97], {}, "97 is no token id"),
        ([-1], {}, "-1 is no token id"),
        ([True], {}, "True is no token id"),
        ([5], {"n": 2}, "n is 2; resume each answer by itself"),
        ([33, 34, 35], {"stop": ("BC",)}, "the answer ends with token 35, its number 3"),
    ],
)
def test_what_nothing_can_go_on_behind(model, output_ids, changes, message):
    engine = engine_over(model)
    with pytest.raises(ValueError, match=message):
        engine.add_request("a", PROMPT, replace(PARAMS[0], **changes), output_ids=output_ids)
    assert not engine.has_unfinished


def test_one_answer_of_a_request_is_ended(model):
    """The others go on, and the request with them."""
    engine, params = engine_over(model), replace(PARAMS[1], n=3, logprobs=None)
    expected = engine.generate([PROMPT], params)
    engine.add_request("a", PROMPT, params)
    got = [output for _ in range(3) for _, output in engine.step()]
    engine.abort("a", 1)
    engine.abort("a", 7)
    while engine.has_unfinished:
        got += [output for _, output in engine.step()]
    for index in (0, 2):
        assert joined([output for output in got if output.index == index]) == expected[index]
    assert len([output for output in got if output.index == 1]) == 3
    assert engine.blocks.num_free == engine.blocks.num_blocks


def test_an_answer_s_end_by_its_tokens_alone():
    """Without a tokenizer there is no text; end tokens and the limit count all the same."""
    params = SamplingParams(max_tokens=3)
    assert [AnswerText(None, params, frozenset({9}), frozenset({9})).add(token) for token in (5, 9)] == [
        ("", None),
        ("", "stop"),
    ]
    text = AnswerText(None, replace(params, ignore_eos=True), frozenset({9}), frozenset({9}))
    assert [text.add(9) for _ in range(3)] == [("", None), ("", None), ("", "length")]


def test_special_tokens_are_silent():
    text = AnswerText(ByteTokenizer(), SamplingParams(max_tokens=9), ByteTokenizer.eos_ids, frozenset({EOS, SILENT}))
    assert [text.add(token) for token in (*b"a", SILENT, *b"b", EOS)] == [
        ("a", None),
        ("", None),
        ("b", None),
        ("", "stop"),
    ]
