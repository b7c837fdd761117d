#!/usr/bin/env python3
"""Times mlx_lm on a model directory and prints one line of JSON: the peer's half of `tests/bench/worker.py`.

    mlx_lm_bench.py MODEL PROMPT_TOKENS SHORT_PROMPT_TOKENS TOKENS BATCH
"""
import json
import sys
import time

import mlx.core as mx
import mlx_lm
from mlx_lm.models.cache import make_prompt_cache


def prefill(model, batch, tokens):
    """Seconds to the first token after a prompt that no cache knows."""
    cache = make_prompt_cache(model)
    prompt = mx.random.randint(0, 40000, (batch, tokens))
    begun = time.perf_counter()
    token = mx.argmax(model(prompt, cache=cache)[:, -1], axis=-1)
    mx.eval(token)
    return time.perf_counter() - begun, token, cache


def decode(model, batch, short, tokens):
    """Tokens per second of all rows together, after a short prompt."""
    _, token, cache = prefill(model, batch, short)
    begun = time.perf_counter()
    for _ in range(tokens):
        token = mx.argmax(model(token[:, None], cache=cache)[:, -1], axis=-1)
        mx.eval(token)
    return batch * tokens / (time.perf_counter() - begun)


def main(path, prompt, short, tokens, batch):
    mx.set_default_device(mx.cpu)
    model, _ = mlx_lm.load(path)
    decode(model, 1, short, 1)
    print(json.dumps({
        "version": f"mlx_lm {mlx_lm.__version__}, mlx {mx.__version__}",
        "first_token_ms": prefill(model, 1, short)[0] * 1e3,
        "prefill": prompt / prefill(model, 1, prompt)[0],
        "decode": decode(model, 1, short, tokens),
        "batch": decode(model, batch, short, max(1, tokens // 2)),
    }))


if __name__ == "__main__":
    main(sys.argv[1], *(int(word) for word in sys.argv[2:]))
