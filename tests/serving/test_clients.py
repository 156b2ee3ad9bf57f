"""LangChain's ChatOpenAI, unchanged, against a live server."""

import asyncio

import pytest

from shared.serving.guard.keys import KeyRing
from tests.inference.scripted import ScriptedModel
from tests.serving.live import hold, scripted, serving, until

langchain_openai = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed; pip install it")

ANSWER = "Paris, “of course”. 😀"


@pytest.fixture(scope="module")
def model():
    return ScriptedModel(ANSWER)


@pytest.fixture(scope="module")
def server(model):
    with serving(scripted(model, max_num_seqs=2, max_waiting=2, keys=KeyRing.load(api_key="the key"))) as client:
        yield client


def chat(server, **settings):
    settings = {"model": "scripted", "api_key": "the key", "max_retries": 0, "timeout": 20} | settings
    return langchain_openai.ChatOpenAI(base_url=f"{server.base_url}/v1", **settings)


def test_invoke(server):
    message = chat(server, temperature=0, seed=1).invoke("What is the capital of France?")
    assert message.content == ANSWER
    assert message.response_metadata["finish_reason"] == "stop"
    assert message.response_metadata["system_fingerprint"] == "v1"
    assert message.usage_metadata["output_tokens"] == len(ANSWER.encode()) + 1


def test_a_conversation_with_the_models_own_message_in_it(server):
    llm = chat(server, max_tokens=5)
    message = llm.invoke([("system", "Be brief."), ("human", "What is the capital of France?")])
    assert message.content == "Paris"
    assert llm.invoke([("human", "Hi"), message, ("human", [{"type": "text", "text": "Sure?"}])]).content == "Paris"


def test_stream(server):
    chunks = list(chat(server, stream_usage=True).stream("What is the capital of France?"))
    assert "".join(chunk.content for chunk in chunks) == ANSWER
    assert len(chunks) > 10
    whole = sum(chunks[1:], chunks[0])
    assert whole.response_metadata["finish_reason"] == "stop"
    assert whole.usage_metadata["output_tokens"] == len(ANSWER.encode()) + 1


def test_asynchronously_and_several_at_a_time(server):
    async def ask():
        llm = chat(server, max_retries=5)
        return await asyncio.gather(*(llm.ainvoke(f"What is the capital of country {i}?") for i in range(6)))

    assert [message.content for message in asyncio.run(ask())] == [ANSWER] * 6  # two run, two wait, two try again


def test_stop_and_logprobs(server):
    message = chat(server, logprobs=True, top_logprobs=1).invoke("What?", stop=[" “of"])
    assert message.content == "Paris,"
    assert [entry["token"] for entry in message.response_metadata["logprobs"]["content"]][:5] == list("Paris")


def test_a_stream_that_is_left_stops_the_work(server, model):
    turnstile = hold(model, 3)
    stream = chat(server).stream("What is the capital of France?")
    next(stream)
    stream.close()
    turnstile.allow(1)
    until(lambda: not server.service.open)
    model.before_step = None


def test_errors_name_what_is_wrong(server):
    with pytest.raises(Exception, match="presence_penalty is supported only as 0"):
        chat(server, presence_penalty=1).invoke("Hi")
    with pytest.raises(Exception, match="tools is supported only as"):
        chat(server).bind_tools([{"name": "f", "description": "d", "parameters": {}}]).invoke("Hi")
    with pytest.raises(Exception, match="API key"):
        chat(server, api_key="another").invoke("Hi")
