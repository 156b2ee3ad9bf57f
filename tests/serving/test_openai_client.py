"""The unchanged `openai` client against a live server."""

import threading

import pytest

from shared.serving.guard.keys import KeyRing
from tests.inference.scripted import ScriptedModel, Turnstile
from tests.serving.live import scripted, serving, until
from tests.serving.whole import whole_model

openai = pytest.importorskip("openai", reason="the openai package is not installed; it is in the [dev] extra")

ANSWER = "Paris, “of course”. 😀"
MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture
def model():
    return ScriptedModel(ANSWER)


@pytest.fixture
def server(model):
    with serving(scripted(model, max_waiting=0, max_num_seqs=1, keys=KeyRing.load(api_key="the key"))) as client:
        yield client


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="the key", max_retries=0, timeout=20) as client:
        yield client


def test_a_whole_answer(client):
    completion = client.chat.completions.create(model="scripted", messages=MESSAGES, temperature=0)
    choice = completion.choices[0]
    assert choice.message.content == ANSWER
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "stop"
    assert completion.usage.completion_tokens == len(ANSWER.encode()) + 1
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + completion.usage.completion_tokens


def test_the_conversation_goes_on_with_the_clients_own_message(client):
    message = client.chat.completions.create(model="scripted", messages=MESSAGES).choices[0].message
    for earlier in (message, message.model_dump()):
        again = [*MESSAGES, earlier, {"role": "user", "content": "Sure?"}]
        assert client.chat.completions.create(model="scripted", messages=again).choices[0].message.content == ANSWER


def test_a_stream(client):
    text, reasons, usage = "", [], None
    stream = client.chat.completions.create(
        model="scripted", messages=MESSAGES, stream=True, stream_options={"include_usage": True}, seed=1, stop=["zzz"]
    )
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reasons.append(choice.finish_reason)
    assert text == ANSWER
    assert reasons[-1] == "stop"
    assert usage.completion_tokens == len(ANSWER.encode()) + 1


def test_the_stream_helper(client):
    with client.chat.completions.stream(model="scripted", messages=MESSAGES) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.content == ANSWER


def test_models(client):
    assert [model.id for model in client.models.list()] == ["scripted", "scripted@v1"]
    assert client.models.retrieve("scripted").owned_by == "your-own-parts"


def test_several_answers_and_their_logprobs(client):
    """A scripted model gives its token all the probability there is, and so all others the same little."""
    ask = {"model": "scripted", "messages": MESSAGES, "n": 2, "logprobs": True, "top_logprobs": 2, "max_tokens": 8}
    whole = client.chat.completions.create(**ask)
    streamed = {0: [], 1: []}
    for chunk in client.chat.completions.create(**ask, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.logprobs.content if choice.logprobs else []
    assert [choice.index for choice in whole.choices] == [0, 1]
    for choice in whole.choices:
        assert choice.message.content == "Paris, "
        assert choice.finish_reason == "length"
        entries = choice.logprobs.content
        assert bytes(byte for entry in entries for byte in entry.bytes) == ANSWER.encode()[:8]
        assert [entry.token for entry in entries] == [*"Paris, ", "bytes:\\xe2"]
        assert all(entry.logprob == pytest.approx(0, abs=1e-6) for entry in entries)
        assert all(entry.top_logprobs[0].token == entry.token for entry in entries)
        assert all(len(entry.top_logprobs) == 2 for entry in entries)
        assert streamed[choice.index] == entries
    assert whole.usage.completion_tokens == 16


def test_completions(client):
    ask = {"model": "scripted", "prompt": ["one", "two"], "max_tokens": 5}
    whole = client.completions.create(**ask)
    assert [(choice.index, choice.text, choice.finish_reason) for choice in whole.choices] == [
        (0, "Paris", "length"), (1, "Paris", "length"),
    ]  # fmt: skip
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (6, 10)
    texts, usage = {0: "", 1: ""}, None
    for chunk in client.completions.create(**ask, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == {0: "Paris", 1: "Paris"}
    assert usage == whole.usage


def test_what_openai_has_and_we_have_not(client):
    with pytest.raises(openai.NotFoundError, match="does not offer embeddings") as refusal:
        client.embeddings.create(model="scripted", input="text")
    assert refusal.value.code == "not_offered"
    with pytest.raises(openai.NotFoundError, match="does not offer responses"):
        client.responses.create(model="scripted", input="text")


def test_errors_arrive_as_the_clients_own(client, server, model):
    with pytest.raises(openai.NotFoundError) as not_found:
        client.chat.completions.create(model="other", messages=MESSAGES)
    assert not_found.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="scripted", messages=MESSAGES, presence_penalty=1)
    assert bad.value.param == "presence_penalty"
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": "x" * 200}])
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="another").models.list()

    def fail(done):
        if done == [3]:
            raise RuntimeError("no memory left")

    model.before_step = fail
    with pytest.raises(openai.InternalServerError, match="no memory left") as failure:
        client.chat.completions.create(model="scripted", messages=MESSAGES)
    assert failure.value.request_id == failure.value.response.json()["request_id"]
    with pytest.raises(openai.APIError, match="no memory left"):
        list(client.chat.completions.create(model="scripted", messages=MESSAGES, stream=True))


def test_an_answer_that_is_not_finished_in_time(client, server, model):
    model.before_step = turnstile = Turnstile(2)
    with pytest.raises(openai.InternalServerError) as late:
        client.chat.completions.create(model="scripted", messages=MESSAGES, extra_body={"timeout": 0.3})
    assert late.value.status_code == 504
    assert late.value.code == "deadline_passed"
    turnstile.allow(1)
    until(lambda: not server.engine._requests)
    turnstile.allow(2)
    ask = {"model": "scripted", "messages": MESSAGES, "stream": True, "extra_body": {"timeout": 0.3}}
    stream = client.chat.completions.create(**ask)
    with pytest.raises(openai.APIError, match="not finished") as late:
        list(stream)
    assert late.value.code == "deadline_passed"
    turnstile.allow(1000)


def test_a_full_queue_and_a_closed_stream(client, server, model):
    model.before_step = turnstile = Turnstile(3)
    stream = client.chat.completions.create(model="scripted", messages=MESSAGES, stream=True)
    assert next(stream).choices[0].delta.role == "assistant"
    with pytest.raises(openai.RateLimitError) as refused:
        client.chat.completions.create(model="scripted", messages=MESSAGES)
    assert int(refused.value.response.headers["retry-after"]) >= 1
    stream.close()
    engine = server.engine
    until(lambda: not engine._requests)
    turnstile.allow(1000)
    until(lambda: not engine._requests)
    assert model.steps < len(ANSWER.encode()) + 2  # it left before the end
    assert client.chat.completions.create(model="scripted", messages=MESSAGES).choices[0].message.content == ANSWER


def test_the_client_tries_again_by_itself(client, model):
    """It waits as long as Retry-After says."""
    model.before_step = turnstile = Turnstile()
    first = client.chat.completions.create(model="scripted", messages=MESSAGES, stream=True)
    threading.Timer(0.3, turnstile.allow, [1000]).start()
    patient = client.with_options(max_retries=3)
    assert patient.chat.completions.create(model="scripted", messages=MESSAGES).choices[0].message.content == ANSWER
    assert len(list(first)) > 2


@pytest.mark.real
@pytest.mark.parametrize("int8", [False, True], ids=["float32", "int8"])
def test_paris(model_dir, int8):
    """The same whole answer from the weights as they are and from rounded ones.

    The question decides it. After the plain "What is the capital of France?" the two most likely first tokens are 0.1
    apart as logits, less than the eighth bit is worth, and a rounding error anywhere turns the answer round. After this
    one the likeliest token leads by 1.8 or more at every step, measured with float32. (The token that ends the
    answer is the eighth.)
    """
    messages = [{"role": "user", "content": "What is the capital of France? Answer with one word."}]
    name = model_dir.name
    with (
        serving(whole_model(model_dir, int8)) as server,
        openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0, timeout=120) as client,
    ):
        ask = {"model": name, "messages": messages, "temperature": 0, "max_tokens": 20}
        whole = client.chat.completions.create(**ask).choices[0].message.content
        pieces = [c.choices[0].delta.content or "" for c in client.chat.completions.create(**ask, stream=True)]
        assert whole == "The capital of France is Paris."
        assert "".join(pieces) == whole
        assert len(pieces) > 4
