"""langchain-openai, unmodified, against a router: python3 langchain_client.py BASE_URL"""

import asyncio
import sys

import openai
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI, OpenAI

URL = sys.argv[1]


def model(**more):
    return ChatOpenAI(model="council-secure", base_url=URL, api_key="none", temperature=0, max_tokens=40, **more)


def invoke():
    reply = model().invoke("What is 2+2?")
    assert "4" in reply.content, reply
    assert reply.usage_metadata["output_tokens"] > 3, reply
    assert reply.response_metadata["finish_reason"] == "stop", reply
    return reply.content


def stream():
    chunks = list(model(stream_usage=True).stream("What is 2+2?"))
    assert "".join(chunk.content for chunk in chunks) == invoke(), chunks
    assert len(chunks) > 3, chunks
    assert sum(chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata) > 3, chunks


def conversation():
    reply = model().invoke([
        SystemMessage("You answer with a number."),
        HumanMessage("What is 1+1?"),
        AIMessage("2"),
        HumanMessage([{"type": "text", "text": "What is 2+2?"}]),
    ])
    assert reply.content, reply


def chain_and_batch():
    chain = ChatPromptTemplate.from_template("Name a {thing}.") | model()
    replies = chain.batch([{"thing": "colour"}, {"thing": "river"}, {"thing": "number"}])
    assert len(replies) == 3 and all(reply.content for reply in replies), replies


def asynchronous():
    async def read():
        whole = await model().ainvoke("What is 2+2?")
        pieces = [chunk.content async for chunk in model().astream("What is 2+2?")]
        assert "".join(pieces) == whole.content, pieces

    asyncio.run(read())


def text_model():
    text = OpenAI(model="coder", base_url=URL, api_key="none", temperature=0, max_tokens=4).invoke("1, 2, 3,")
    assert text, text


def errors():
    try:
        ChatOpenAI(model="gpt-7", base_url=URL, api_key="none").invoke("hello")
    except openai.NotFoundError as error:
        assert error.param == "model", error
    else:
        raise AssertionError("an unknown model is served")


for check in [invoke, stream, conversation, chain_and_batch, asynchronous, text_model, errors]:
    check()
    print("passed", check.__name__)
