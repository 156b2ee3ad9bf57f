"""The unchanged `openai` client against a live server."""

import threading

import pytest

from tests.inference.scripted import ScriptedModel, Turnstile
from tests.serving.live import scripted, serving, until

openai = pytest.importorskip("openai", reason="the openai package is not installed; it is in the [dev] extra")

ANSWER = "Paris, “of course”. 😀"
MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture
def model():
    return ScriptedModel(ANSWER)


@pytest.fixture
def server(model):
    with serving("scripted", lambda: scripted(model, max_waiting=0, max_num_seqs=1), api_key="the key") as client:
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
    assert [model.id for model in client.models.list()] == ["scripted"]
    assert client.models.retrieve("scripted").owned_by == "your-own-parts"


def test_errors_arrive_as_the_clients_own(client, server, model):
    with pytest.raises(openai.NotFoundError) as not_found:
        client.chat.completions.create(model="other", messages=MESSAGES)
    assert not_found.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="scripted", messages=MESSAGES, n=2)
    assert bad.value.param == "n"
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="another").models.list()

    def fail(done):
        if done == [3]:
            raise RuntimeError("no memory left")

    model.before_step = fail
    with pytest.raises(openai.InternalServerError, match="no memory left"):
        client.chat.completions.create(model="scripted", messages=MESSAGES)
    with pytest.raises(openai.APIError, match="no memory left"):
        list(client.chat.completions.create(model="scripted", messages=MESSAGES, stream=True))


def test_a_full_queue_and_a_closed_stream(client, server, model):
    model.before_step = turnstile = Turnstile(3)
    stream = client.chat.completions.create(model="scripted", messages=MESSAGES, stream=True)
    assert next(stream).choices[0].delta.role == "assistant"
    with pytest.raises(openai.RateLimitError) as refused:
        client.chat.completions.create(model="scripted", messages=MESSAGES)
    assert int(refused.value.response.headers["retry-after"]) >= 1
    stream.close()
    engine = server.server.config.app.state.model.engine
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
    from shared.serving.served_model import ServedModel

    messages = [{"role": "user", "content": "What is the capital of France? Answer with one word."}]
    name = model_dir.name
    with (
        serving(name, lambda: ServedModel.load(model_dir, int8=int8)) as server,
        openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0, timeout=120) as client,
    ):
        ask = {"model": name, "messages": messages, "temperature": 0, "max_tokens": 20}
        whole = client.chat.completions.create(**ask).choices[0].message.content
        pieces = [c.choices[0].delta.content or "" for c in client.chat.completions.create(**ask, stream=True)]
        assert whole == "The capital of France is Paris."
        assert "".join(pieces) == whole
        assert len(pieces) > 4
