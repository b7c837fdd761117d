"""The OpenAI client's asynchronous half, with streams at once: python3 openai_async.py BASE_URL"""

import asyncio
import sys
import time

import openai

WORDS = ["river", "stone", "cloud", "lamp", "garden", "train"]


def ask(client, word, **more):
    return client.chat.completions.create(
        model="council-secure",
        messages=[{"role": "user", "content": f"Say something about a {word}."}],
        temperature=0,
        max_tokens=24,
        extra_body={"ignore_eos": True},
        **more,
    )


async def read(client, word):
    pieces, times = [], []
    async for chunk in await ask(client, word, stream=True):
        if chunk.choices and chunk.choices[0].delta.content:
            pieces.append(chunk.choices[0].delta.content)
            times.append(time.monotonic())
    return "".join(pieces), times


async def concurrent_streams(client):
    streams = await asyncio.gather(*(read(client, word) for word in WORDS))
    first_end = min(times[-1] for _, times in streams)
    last_begin = max(times[0] for _, times in streams)
    assert last_begin < first_end, "the streams ran one after the other"
    for word, (text, _) in zip(WORDS, streams):
        alone = await ask(client, word)
        assert text == alone.choices[0].message.content, (word, text)


async def cancelled_task(client):
    task = asyncio.create_task(read(client, "bridge"))
    await asyncio.sleep(0)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        pass
    assert (await ask(client, "bridge")).choices[0].message.content


async def errors(client):
    try:
        await client.chat.completions.create(model="coder", messages=[])
    except openai.BadRequestError as error:
        assert error.param == "messages", error
    else:
        raise AssertionError("no messages are accepted")


async def listing(client):
    names = [model.id async for model in client.models.list()]
    assert "coder" in names, names


async def main():
    async with openai.AsyncOpenAI(base_url=sys.argv[1], api_key="none") as client:
        for check in [concurrent_streams, cancelled_task, errors, listing]:
            await check(client)
            print("passed", check.__name__)


asyncio.run(main())
