#!/usr/bin/env python3
"""Stores what mlx_lm says for the embedded model, so that a Rust test can compare without Python.

    python smollm2_reference.py MODEL_F32 OUT.json [MODEL_EXACT]

MODEL_F32 is the directory that `sanctum-mlx import --dtype f32` makes: the same values as the default import, in a type
in which MLX's CPU backend computes accurately. Needs requirements-mlx-lm.txt. For every prompt: the token ids, the
greedy continuation, its text, and the largest logits after the prompt. MODEL_EXACT, the default import, must load too
and agree with the first tokens; it is not stored, because MLX's 16-bit arithmetic on a CPU is not a reference.
"""
import json
import sys

import mlx.core as mx
import mlx_lm
from mlx_lm.models.cache import make_prompt_cache

TOKENS = 48
LOGITS = 8
PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n",
    "In 1969, 12 astronauts",
    "Grüße aus Köln! Die drei Städte",
    "{\"name\": \"Yoda\", \"age\":",
]
CHATS = [
    [{"role": "user", "content": "What is 2+2?"}],
    [{"role": "user", "content": "Write one sentence about the sea."}],
    [
        {"role": "system", "content": "You answer in one word."},
        {"role": "user", "content": "Name a colour."},
        {"role": "assistant", "content": "Red"},
        {"role": "user", "content": "Another one, please. 😀"},
    ],
]


def greedy(model, ids, count):
    """The first step's logits and `count` greedy tokens, with no stop token: every prompt yields the same number."""
    cache = make_prompt_cache(model)
    logits = model(mx.array(ids)[None], cache=cache)[0, -1].astype(mx.float32)
    first, tokens = logits, []
    for _ in range(count):
        token = int(mx.argmax(logits))
        tokens.append(token)
        logits = model(mx.array([[token]]), cache=cache)[0, -1].astype(mx.float32)
    return first, tokens


def case(model, tokenizer, name, ids, chat):
    first, tokens = greedy(model, ids, TOKENS)
    top = [int(i) for i in mx.argsort(-first)[:LOGITS]]
    print(f"  {name!r}: {tokenizer.decode(tokens)!r}")
    return {
        "name": name,
        **({"messages": chat} if chat else {}),
        "prompt_ids": ids,
        "greedy_ids": tokens,
        "text": tokenizer.decode(tokens),
        "top_logits": [[i, round(float(first[i]), 5)] for i in top],
        "logits_std": round(float(mx.sqrt(mx.var(first))), 5),
    }


def main(path, out, exact=None):
    model, tokenizer = mlx_lm.load(path)
    cases = [case(model, tokenizer, text, tokenizer.encode(text, add_special_tokens=False), None) for text in PROMPTS]
    for chat in CHATS:
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True)
        cases.append(case(model, tokenizer, chat[-1]["content"], list(ids), chat))
    made_by = f"mlx_lm {mlx_lm.__version__}, mlx {mx.__version__}, CPU, float32"
    with open(out, "w", encoding="utf-8") as file:
        file.write('{\n "made_by": ' + json.dumps(made_by) + ',\n "cases": [\n')
        file.write(",\n".join("  " + json.dumps(c, ensure_ascii=False) for c in cases))
        file.write("\n ]\n}\n")
    if exact:
        model, _ = mlx_lm.load(exact)
        for stored in cases[:2]:
            _, tokens = greedy(model, stored["prompt_ids"], 4)
            print(f"  {exact}: {tokens} beside {stored['greedy_ids'][:4]}")
            if tokens != stored["greedy_ids"][:4]:
                sys.exit("the default import disagrees from its first tokens on")


if __name__ == "__main__":
    mx.set_default_device(mx.cpu)
    main(*sys.argv[1:])
