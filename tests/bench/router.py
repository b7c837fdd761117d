#!/usr/bin/env python3
"""The router beside haproxy: what a request costs in CPU and in latency, over the same backend, in turns, medians.

The backend is a process of its own that answers at once: a small JSON reply, or a stream of 32 events, a
millisecond apart as a fast model's tokens are. CPU comes from /proc (so this runs on Linux), added latency is the
difference to asking the backend directly. One client on one connection measures latency; 16 measure CPU under
concurrency. haproxy gets http-no-delay: without it, it holds streams back for tens of milliseconds.
"""
import argparse
import asyncio
import json
import multiprocessing
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

EVENTS = 32
GAP_SECONDS = 0.001
ONE, MANY = 1500, 3200
STREAMS = 150
CLIENTS = 16

REPLY = json.dumps({
    "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "bench",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Four."}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11},
}).encode()
EVENT = b"data: " + json.dumps({
    "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "bench",
    "choices": [{"index": 0, "delta": {"content": " word"}, "finish_reason": None}],
}).encode() + b"\n\n"


# --- the backend --------------------------------------------------------------------------------------------------
class Backend(asyncio.Protocol):
    """Answers every POST at once; a body that says `"stream":true` gets events, one write each."""

    def connection_made(self, transport):
        self.transport, self.buffer = transport, b""
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data):
        self.buffer += data
        while True:
            head, mark, rest = self.buffer.partition(b"\r\n\r\n")
            if not mark:
                return
            length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
            if len(rest) < length:
                return
            body, self.buffer = rest[:length], rest[length:]
            if b'"stream":true' in body.replace(b" ", b""):
                asyncio.ensure_future(self.stream())
            else:
                self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(REPLY) + REPLY)

    async def stream(self):
        chunk = b"%x\r\n%s\r\n" % (len(EVENT), EVENT)
        self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n" + chunk)
        for _ in range(EVENTS - 1):
            await asyncio.sleep(GAP_SECONDS)
            self.transport.write(chunk)
        done = b"data: [DONE]\n\n"
        self.transport.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(done), done))


def serve_backend(ready):
    async def main():
        server = await asyncio.get_running_loop().create_server(Backend, "127.0.0.1", 0)
        ready.put(server.sockets[0].getsockname()[1])
        await server.serve_forever()
    asyncio.run(main())


# --- the client ---------------------------------------------------------------------------------------------------
def request(stream):
    body = json.dumps({"model": "bench", "stream": stream, "messages": [{"role": "user", "content": "What is 2+2?"}]}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


class Client:
    """One keep-alive connection."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, stream):
        """Seconds to the first byte of the body."""
        begun = time.perf_counter()
        self.socket.sendall(request(stream))
        data, first = b"", None
        while True:
            piece = self.socket.recv(65536)
            if not piece:
                raise SystemExit(f"bench: the connection ended after {data[:200]!r}")
            data += piece
            head, mark, body = data.partition(b"\r\n\r\n")
            if mark and body and first is None:
                first = time.perf_counter() - begun
                if b" 200 " not in head[:20]:
                    raise SystemExit(f"bench: the reply is {data[:500]!r}")
            if mark and (body.endswith(b"0\r\n\r\n") if stream else len(body) >= self.length(head)):
                return first

    @staticmethod
    def length(head):
        return next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))

    def close(self):
        self.socket.close()


def cpu_seconds(pid):
    """Of all threads, from the scheduler's own nanosecond count."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/schedstat", encoding="ascii") as file:
            total += int(file.read().split()[0])
    return total / 1e9


def measure(port, pid):
    client = Client(port)
    result = {}
    for stream, count, name in ((False, ONE, "plain"), (True, STREAMS, "stream")):
        for _ in range(count // 10):
            client.ask(stream)
        before = cpu_seconds(pid) if pid else 0
        times = sorted(client.ask(stream) for _ in range(count))
        used = (cpu_seconds(pid) - before) if pid else 0
        result[name] = {
            "p50": times[len(times) // 2] * 1e6, "p99": times[len(times) * 99 // 100] * 1e6, "cpu": used / count * 1e6,
        }
    client.close()
    before = cpu_seconds(pid) if pid else 0
    def many():
        own = Client(port)
        for _ in range(MANY // CLIENTS):
            own.ask(False)
        own.close()
    threads = [threading.Thread(target=many) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    used = (cpu_seconds(pid) - before) if pid else 0
    result["many"] = {"cpu": used / (MANY // CLIENTS * CLIENTS) * 1e6}
    return result


# --- the proxies --------------------------------------------------------------------------------------------------
def wait(what, look, process):
    limit = time.monotonic() + 30
    while time.monotonic() < limit:
        if process.poll() is not None:
            raise SystemExit(f"bench: {what} ended with {process.returncode}")
        try:
            found = look()
        except (OSError, ValueError, KeyError, IndexError):
            found = None
        if found:
            return found
        time.sleep(0.02)
    raise SystemExit(f"bench: {what} did not start")


def start_haproxy(scratch, backend):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = os.path.join(scratch, "haproxy.cfg")
    with open(config, "w", encoding="ascii") as file:
        file.write(f"""global
  nbthread 2
defaults
  mode http
  option http-no-delay
  timeout connect 5s
  timeout client 60s
  timeout server 60s
frontend f
  bind 127.0.0.1:{port}
  default_backend b
backend b
  http-reuse always
  server s 127.0.0.1:{backend}
""")
    process = subprocess.Popen(["haproxy", "-db", "-f", config], stderr=subprocess.DEVNULL)
    wait("haproxy", lambda: socket.create_connection(("127.0.0.1", port)).close() or port, process)
    return process, port


def start_router(binary, scratch, backend):
    config = os.path.join(scratch, "instance.yaml")
    with open(config, "w", encoding="ascii") as file:
        file.write(f"""name: bench
listen: ["127.0.0.1:0"]
admin: "127.0.0.1:0"
state_dir: state
backends:
  fake: {{ url: "http://127.0.0.1:{backend}/v1" }}
seats:
  bench: {{ backends: [fake] }}
""")
    log = open(os.path.join(scratch, "router.log"), "wb")
    process = subprocess.Popen([binary, "--instance", config], stdout=log, stderr=log, env={**os.environ, "SANCTUM_LOG": "warn"})
    def look():
        with open(os.path.join(scratch, "state", "router.json"), encoding="utf-8") as file:
            return int(json.load(file)["listen"][0].rsplit(":", 1)[1])
    return process, wait("sanctum-router", look, process)


def stop(process):
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    args = parser.parse_args()
    if not os.path.isdir("/proc/self/task"):
        sys.exit("bench: CPU is read from /proc, which this system does not have")
    ready = multiprocessing.Queue()
    backend = multiprocessing.Process(target=serve_backend, args=(ready,), daemon=True)
    backend.start()
    port = ready.get()
    with tempfile.TemporaryDirectory() as scratch:
        haproxy, haproxy_port = start_haproxy(scratch, port)
        router, router_port = start_router(args.binary, scratch, port)
        try:
            ways = {"direct": (port, None), "haproxy": (haproxy_port, haproxy.pid), "sanctum": (router_port, router.pid)}
            results = {name: [] for name in ways}
            for number in range(args.rounds):
                for name, (to, pid) in ways.items():
                    print(f"bench: round {number + 1} of {args.rounds}: {name}", file=sys.stderr)
                    results[name].append(measure(to, pid))
        finally:
            stop(router)
            stop(haproxy)
    backend.terminate()
    show(results, args)


def show(results, args):
    def middle(name, kind, key):
        return statistics.median(one[kind][key] for one in results[name])
    version = subprocess.run(["haproxy", "-v"], capture_output=True, text=True).stdout.split("\n")[0].split(" 20")[0]
    own = subprocess.run([args.binary, "--version"], capture_output=True, text=True).stdout.strip()
    print(f"\n{own} beside {version}; medians of {args.rounds} rounds\n")
    print(f"  {'':<44}{'direct':>9}{'haproxy':>9}{'sanctum':>9}{'sanctum/haproxy':>17}")
    rows = [
        ("CPU per request, one client, µs", "plain", "cpu", False),
        (f"CPU per request, {CLIENTS} clients, µs", "many", "cpu", False),
        (f"CPU per stream of {EVENTS} events, µs", "stream", "cpu", False),
        ("added latency p50, µs", "plain", "p50", True),
        ("added latency p99, µs", "plain", "p99", True),
        ("added to the first streamed byte p50, µs", "stream", "p50", True),
        ("added to the first streamed byte p99, µs", "stream", "p99", True),
    ]
    for label, kind, key, added in rows:
        direct = middle("direct", kind, key)
        them, us = (middle(name, kind, key) - (direct if added else 0) for name in ("haproxy", "sanctum"))
        first = f"{direct:>9.0f}" if added else f"{'':>9}"
        ratio = f"{us / them:>16.2f}x" if them > 0 else f"{'':>17}"
        print(f"  {label:<44}{first}{them:>9.0f}{us:>9.0f}{ratio}")


if __name__ == "__main__":
    main()
