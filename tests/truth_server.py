"""A deterministic completions server that knows the truth: absolute deadlines, and a log of when it really wrote.

`python truth_server.py '{"ttft_ms": 200, "itl_ms": 10}'` prints its port and ends with its standard input.
The request's model says how to behave: any name is good; see BEHAVIOURS for the bad ones.
"""

import asyncio
import itertools
import json
import sys

CHUNK = json.dumps(
    {"id": "cmpl-1", "object": "text_completion", "model": "truth", "choices": [{"index": 0, "text": " ☃x"}]},
    ensure_ascii=False,
)
ROLE = json.dumps({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
BEHAVIOURS = (
    "http-429",
    "cut",
    "stall",
    "malformed",
    "in-stream",
    "no-usage",
    "no-tokens",
    "role-first",
    "bytewise",
    "close",
)


class Truth(asyncio.Protocol):
    """One connection of the server."""

    def __init__(self, options, log):
        self.options, self.log = options, log
        self.buffer = b""
        self.transport = self.streaming = None

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.buffer += data
        head, separator, rest = self.buffer.partition(b"\r\n\r\n")
        if not separator:
            return
        length = next(
            (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")), 0
        )
        if len(rest) < length:
            return
        self.buffer = rest[length:]
        at = asyncio.get_running_loop().time()
        if head.startswith(b"GET"):
            content = self.log if b"/truth" in head else {"data": [{"id": "truth"}]} if b"/models" in head else None
            self.answer(200, json.dumps(content).encode() if content is not None else metrics(self.log))
        else:
            self.log["bodies"].append(json.loads(rest[:length])) if self.options.get("keep_bodies") else None
            self.complete(json.loads(rest[:length]), at)

    def complete(self, body, at):
        model = body["model"]
        if model == "http-429":
            self.answer(429, b'{"error": {"message": "too many requests", "code": 429}}')
        elif not body["stream"]:
            usage = {"prompt_tokens": 3 + 2 * len(body.get("prompt", "x").split()), "completion_tokens": 1}
            self.answer(200, json.dumps({"choices": [{"text": "x"}], "usage": usage}).encode())
        else:
            self.transport.write(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n%s\r\n"
                % (b"Connection: close\r\n" if model == "close" else b"")
            )
            self.streaming = asyncio.ensure_future(self.stream(body, model, at))

    async def stream(self, body, model, at):
        loop = asyncio.get_running_loop()
        n_tokens = 0 if model == "no-tokens" else body["max_tokens"]
        writes = []
        if model == "role-first":
            self.event(ROLE, model)
        for number in range(n_tokens):
            due = at + self.options["ttft_ms"] / 1000 + number * self.options["itl_ms"] / 1000
            await asyncio.sleep(max(0.0, due - loop.time()))
            if number == 2 and model in BAD:
                return BAD[model](self)
            writes.append(loop.time())
            self.event(CHUNK, model)
        if model != "no-usage":
            usage = {"prompt_tokens": 3 + 2 * len(body.get("prompt", "x").split()), "completion_tokens": n_tokens}
            self.event(json.dumps({"choices": [], "usage": usage}), model)
        self.event("[DONE]", model)
        self.transport.write(b"0\r\n\r\n")
        if model == "close":
            self.transport.close()
        if writes:
            self.log["ttft_ms"].append(1000 * (writes[0] - at))
            self.log["itl_ms"].extend(1000 * (b - a) for a, b in itertools.pairwise(writes))
        return None

    def event(self, text, model):
        data = b"data: %s\n\n" % text.encode()
        pieces = [data[n : n + 1] for n in range(len(data))] if model == "bytewise" else [data]
        self.transport.write(b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces))

    def answer(self, status, body):
        self.transport.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body))


BAD = {
    "cut": lambda server: server.transport.abort(),
    "stall": lambda server: None,
    "malformed": lambda server: (server.event("{broken", ""), server.transport.write(b"0\r\n\r\n")),
    "in-stream": lambda server: (
        server.event('{"error": {"message": "engine died"}}', ""),
        server.transport.write(b"0\r\n\r\n"),
    ),
}


def metrics(log):
    count, total = len(log["ttft_ms"]), sum(log["ttft_ms"]) / 1000
    lines = [f"vllm:time_to_first_token_seconds_sum {total}", f"vllm:time_to_first_token_seconds_count {count}"]
    hits = log["prefix_cache_hits_per_request"] * count
    return "\n".join(
        [*lines, f'vllm:prefix_cache_hits_total{{engine="0"}} {hits}', f"vllm:prefix_cache_queries_total {100 * count}"]
    ).encode()


async def serve(options):
    log = {
        "ttft_ms": [],
        "itl_ms": [],
        "bodies": [],
        "prefix_cache_hits_per_request": options.get("prefix_cache_hits", 0),
    }
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Truth(options, log), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    ended = loop.create_future()
    loop.add_reader(sys.stdin, lambda: sys.stdin.buffer.read1() or ended.done() or ended.set_result(None))
    await ended


if __name__ == "__main__":
    asyncio.run(serve(json.loads(sys.argv[1])))
