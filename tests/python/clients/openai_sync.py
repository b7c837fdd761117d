"""The OpenAI client, unmodified, against a router: python3 openai_sync.py BASE_URL"""

import sys
import time

import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key="none")
QUESTION = [{"role": "user", "content": "What is 2+2?"}]


def whole():
    reply = client.chat.completions.create(
        model="council-secure", messages=QUESTION, temperature=0, max_tokens=40
    )
    assert "4" in reply.choices[0].message.content, reply
    assert reply.choices[0].finish_reason == "stop", reply
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens, reply
    assert reply.usage.prompt_tokens_details.cached_tokens == 0, reply
    assert reply.object == "chat.completion" and reply.id.startswith("chatcmpl-"), reply
    return reply.choices[0].message.content


def streamed():
    pieces, reasons, usages = [], [], []
    for chunk in client.chat.completions.create(
        model="council-secure",
        messages=QUESTION,
        temperature=0,
        max_tokens=40,
        stream=True,
        stream_options={"include_usage": True},
    ):
        assert chunk.object == "chat.completion.chunk", chunk
        if chunk.usage:
            assert chunk.choices == [], chunk
            usages.append(chunk.usage)
        for choice in chunk.choices:
            pieces.append(choice.delta.content or "")
            if choice.finish_reason:
                reasons.append(choice.finish_reason)
    assert "".join(pieces) == whole(), pieces
    assert len(pieces) > 3, "it comes in pieces"
    assert reasons == ["stop"], reasons
    assert len(usages) == 1 and usages[0].completion_tokens > 3, usages


def stream_helper():
    with client.chat.completions.stream(
        model="yoda", messages=QUESTION, temperature=0, max_tokens=40
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds, kinds
    assert final.choices[0].message.content == whole(), final


def raw_response():
    raw = client.chat.completions.with_raw_response.create(
        model="coder", messages=QUESTION, max_tokens=2, seed=7
    )
    assert raw.headers["x-sanctum-seat"] == "coder", raw.headers
    assert raw.parse()._request_id == raw.headers["x-request-id"]


def text_completion():
    reply = client.completions.create(model="coder", prompt="1, 2, 3,", max_tokens=4, temperature=0)
    assert reply.choices[0].text and reply.choices[0].finish_reason == "length", reply


def options():
    reply = client.chat.completions.create(
        model="coder",
        messages=[{"role": "developer", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
        n=2,
        seed=1,
        max_completion_tokens=5,
        stop=["\n\n"],
        logprobs=True,
        top_logprobs=2,
        user="somebody",
        metadata={"unknown": "fields"},
        extra_body={"top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1},
    )
    assert [choice.index for choice in reply.choices] == [0, 1], reply
    first = reply.choices[0].logprobs.content[0]
    assert first.logprob <= 0 and len(first.top_logprobs) == 2, first


def models():
    names = [model.id for model in client.models.list()]
    assert {"council-secure", "yoda", "windu", "coder", "spatial", "cloud"} <= set(names), names
    assert client.models.retrieve("coder").id == "coder"


def unknown_model():
    try:
        client.chat.completions.create(model="gpt-7", messages=QUESTION)
    except openai.NotFoundError as error:
        assert (error.code, error.param) == ("model_not_found", "model"), error
    else:
        raise AssertionError("an unknown model is served")


def bad_requests():
    for field, value in [("temperature", 9), ("n", 10**9), ("stop", 7), ("top_p", "x")]:
        begun = time.monotonic()
        try:
            client.chat.completions.create(model="coder", messages=QUESTION, **{field: value})
        except openai.BadRequestError as error:
            assert error.param == field and error.type == "invalid_request_error", error
        else:
            raise AssertionError(f"{field}={value} is accepted")
        # A mistake is not retried, neither by the client nor by the router.
        assert time.monotonic() - begun < 1, field


def too_long():
    try:
        client.chat.completions.create(
            model="coder", messages=[{"role": "user", "content": "word " * 9000}], stream=True
        )
    except openai.BadRequestError as error:
        assert error.code == "context_length_exceeded", error
        assert "maximum context length is 2048 tokens" in str(error), error
    else:
        raise AssertionError("a prompt beyond the context is accepted")


def not_configured():
    impatient = client.with_options(max_retries=0)
    try:
        impatient.chat.completions.create(model="cloud", messages=QUESTION)
    except openai.InternalServerError as error:
        assert error.status_code == 503, error
    else:
        raise AssertionError("a seat that nobody serves answers")


def leaving():
    stream = client.chat.completions.create(
        model="coder", messages=QUESTION, max_tokens=1500, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    assert whole(), "the next request is served"


for check in [whole, streamed, stream_helper, raw_response, text_completion, options, models, unknown_model,
              bad_requests, too_long, not_configured, leaving]:
    check()
    print("passed", check.__name__)
