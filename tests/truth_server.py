"""A deterministic completions server that knows the truth: absolute deadlines, and a log of when it really wrote.

`python truth_server.py '{"ttft_ms": 200, "itl_ms": 10}'` prints its port and ends with its standard input. Options:
keep_bodies; tokens_per_word (gives it a /tokenize); api_key; certificate and key (PEM files: TLS); stall_at_s and
stall_s (the whole server stands still once, counted from the first stream); prefix_cache_hits (per request); dies_after (so many answers);
every_third (the behaviour of every third stream).
The request's model says how to behave: any name is good; see BEHAVIOURS for the others.
"""

import asyncio
import itertools
import json
import os
import ssl
import sys
import time

TEXT = " ☃x"
BEHAVIOURS = {
    "http-NNN": "an error status with a JSON body",
    "silent": "no byte at all",
    "slow-headers": "half a status line, then nothing",
    "cut": "reset after two tokens",
    "stall": "nothing more after two tokens",
    "malformed": "an event that is no JSON",
    "in-stream": "an error inside the stream",
    "not-http": "bytes that are no HTTP",
    "no-usage": "no usage chunk",
    "no-tokens": "a stream without tokens",
    "empty-choices": "chunks whose choices are empty",
    "huge": "one chunk of 10 MB",
    "role-first": "an early role chunk",
    "reasoning": "reasoning_content, then a tool call's pieces",
    "paired": "two tokens in each chunk",
    "comments": "comments and keep-alive lines between the events",
    "bytewise": "chunks of one byte",
    "odd-frames": "one stream written in pieces of 7 bytes, in the middle of frames and characters",
    "close": "Connection: close, and the body's end is the connection's",
    "flood": "no deadlines: every stream's next token as soon as all others had theirs",
    "refuses-fields": "400 for a field that the server doesn't know",
}


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
        lines = head.decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        length = int(headers.get("content-length", 0))
        if len(rest) < length:
            return
        self.buffer = rest[length:]
        at = asyncio.get_running_loop().time()
        method, path, _ = lines[0].split(" ")
        if method == "GET":
            self.tell(path)
        elif self.options.get("api_key") and headers.get("authorization") != f"Bearer {self.options['api_key']}":
            self.answer(401, b'{"error": "Unauthorized"}')
        elif path.endswith("/tokenize"):
            self.tokenize(json.loads(rest[:length]))
        elif not path.endswith("/completions"):
            self.answer(404, b'{"detail": "Not Found"}')
        else:
            self.log["bodies"].append(json.loads(rest[:length])) if self.options.get("keep_bodies") else None
            self.complete(json.loads(rest[:length]), at, is_chat=path.endswith("/chat/completions"))

    def tell(self, path):
        if path.endswith("/truth"):
            self.answer(200, json.dumps(self.log).encode())
        elif path.endswith("/models"):
            self.answer(200, b'{"data": [{"id": "truth"}]}')
        elif path.endswith("/health"):
            self.answer(200, b"")
        elif path.endswith("/metrics"):
            self.answer(200, metrics(self.log))
        else:
            self.answer(404, b'{"detail": "Not Found"}')

    def tokenize(self, body):
        if "tokens_per_word" in self.options:
            self.answer(200, json.dumps({"count": self.n_prompt(body)}).encode())
        else:
            self.answer(404, b'{"detail": "Not Found"}')

    def n_prompt(self, body):
        """Three tokens, and two for each word (or as the options say)."""
        text = body.get("prompt") or body["messages"][0]["content"]
        text = text if isinstance(text, str) else " ".join(part["text"] for part in text)
        return 3 + int(self.options.get("tokens_per_word", 2)) * len(text.split())

    def complete(self, body, at, is_chat):
        model = body["model"]
        if body.get("stream"):
            self.log["asked_at"].append(time.monotonic())
            if "every_third" in self.options and len(self.log["asked_at"]) % 3 == 0:
                model = self.options["every_third"]
        if "stall_at_s" in self.options and body.get("stream") and not self.log["started_at"]:
            self.log["started_at"] = at
            asyncio.get_running_loop().call_later(self.options["stall_at_s"], time.sleep, self.options["stall_s"])
        if model.startswith("http-"):
            self.answer(int(model[5:]), b'{"error": {"message": "too many requests", "code": 429}}')
        elif model == "refuses-fields" and "ignore_eos" in body:
            self.answer(400, b'{"error": {"message": "Unrecognized request argument supplied: ignore_eos"}}')
        elif model == "silent":
            pass
        elif model == "slow-headers":
            self.transport.write(b"HTTP/1.1 20")
        elif model == "not-http":
            self.transport.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        elif not body.get("stream"):
            usage = {"prompt_tokens": self.n_prompt(body), "completion_tokens": 1}
            self.answer(200, json.dumps({"choices": [{"text": "x"}], "usage": usage}).encode())
        else:
            framing = b"Connection: close" if model == "close" else b"Transfer-Encoding: chunked"
            self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n%s\r\n\r\n" % framing)
            stream = self.flood(body, is_chat) if model == "flood" else self.stream(body, model, at, is_chat)
            self.streaming = asyncio.ensure_future(stream)

    async def flood(self, body, is_chat):
        chunk = b"data: %s\n\n" % chunk_of("flood", 0, is_chat).encode()
        chunk = b"%x\r\n%s\r\n" % (len(chunk), chunk)
        for number in range(wanted(body)):
            self.transport.write(chunk)
            if number % 4 == 3:
                await asyncio.sleep(0)
        usage = {"prompt_tokens": self.n_prompt(body), "completion_tokens": wanted(body)}
        self.event(json.dumps({"choices": [], "usage": usage}), "flood")
        self.event("[DONE]", "flood")
        self.end("flood")

    async def stream(self, body, model, at, is_chat):
        loop = asyncio.get_running_loop()
        self.log["running"] += 1
        n_tokens = 0 if model == "no-tokens" else wanted(body)
        per_chunk = 2 if model == "paired" else 1
        writes = []
        if model == "role-first":
            self.event(json.dumps({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}), model)
        for number in range(n_tokens // per_chunk):
            due = at + self.options["ttft_ms"] / 1000 + number * self.options["itl_ms"] / 1000
            await asyncio.sleep(max(0.0, due - loop.time()))
            if number == 2 and model in BAD:
                self.log["running"] -= 1
                return BAD[model](self)
            writes.append(loop.time())
            self.event(chunk_of(model, number, is_chat), model)
        if model != "no-usage":
            usage = {"prompt_tokens": self.n_prompt(body), "completion_tokens": n_tokens}
            self.event(json.dumps({"choices": [], "usage": usage}), model)
        self.event("[DONE]", model)
        self.end(model)
        self.log["running"] -= 1
        if len(self.log["ttft_ms"]) >= self.options.get("dies_after", 1 << 30):
            os._exit(1)
        if writes:
            self.log["ttft_ms"].append(1000 * (writes[0] - at))
            self.log["gaps_ms"].append([1000 * (b - a) for a, b in itertools.pairwise(writes)])
        return None

    def event(self, text, model):
        data = b"data: %s\n\n" % text.encode()
        if model == "comments":
            data = b": keep-alive\r\n\r\nevent: message\r\nid: 7\r\n" + data.replace(b"\n\n", b"\r\n\r\n")
        if model == "close":
            self.transport.write(data)
            return
        pieces = [data[n : n + 1] for n in range(len(data))] if model == "bytewise" else [data]
        framed = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
        for n in range(0, len(framed), 7 if model == "odd-frames" else len(framed)):
            self.transport.write(framed[n : n + 7] if model == "odd-frames" else framed)

    def end(self, model):
        if model == "close":
            self.transport.close()
        else:
            self.transport.write(b"0\r\n\r\n")

    def answer(self, status, body):
        self.transport.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body))


BAD = {
    "cut": lambda server: server.transport.abort(),
    "stall": lambda server: None,
    "malformed": lambda server: (server.event("{broken", ""), server.end("")),
    "in-stream": lambda server: (server.event('{"error": {"message": "engine died"}}', ""), server.end("")),
}


def chunk_of(model, number, is_chat):
    """The JSON of one chunk, in the odd ways of some servers."""
    text = "x" * 10_000_000 if model == "huge" and number == 1 else TEXT
    if model == "reasoning":
        call = {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}
        choice = {"index": 0, "delta": {"reasoning_content": text} if number < 2 else call}
    elif is_chat:
        choice = {"index": 0, "delta": {"content": text}}
    else:
        choice = {"index": 0, "text": text}
    choices = [] if model == "empty-choices" else [choice]
    kind = "chat.completion.chunk" if is_chat else "text_completion"
    return json.dumps({"id": "cmpl-1", "object": kind, "model": "truth", "choices": choices}, ensure_ascii=False)


def wanted(body):
    """How many tokens a request asks for; other clients say it in other words."""
    return int(body.get("max_tokens") or body.get("max_completion_tokens") or 16)


def metrics(log):
    count, total = len(log["ttft_ms"]), sum(log["ttft_ms"]) / 1000
    lines = [f"vllm:time_to_first_token_seconds_sum {total}", f"vllm:time_to_first_token_seconds_count {count}"]
    lines += [f"vllm:request_queue_time_seconds_sum {0.05 * count}", f"vllm:request_queue_time_seconds_count {count}"]
    lines += [f"vllm:num_requests_running {log['running']}", "vllm:num_requests_waiting 0"]
    hits = log["prefix_cache_hits_per_request"] * count
    return "\n".join(
        [*lines, f'vllm:prefix_cache_hits_total{{engine="0"}} {hits}', f"vllm:prefix_cache_queries_total {100 * count}"]
    ).encode()


async def serve(options):
    hits = options.get("prefix_cache_hits", 0)
    log = {"ttft_ms": [], "gaps_ms": [], "bodies": [], "asked_at": [], "running": 0, "started_at": 0.0}
    log["prefix_cache_hits_per_request"] = hits
    loop = asyncio.get_running_loop()
    context = None
    if "certificate" in options:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(options["certificate"], options["key"])
    server = await loop.create_server(lambda: Truth(options, log), "127.0.0.1", 0, backlog=1024, ssl=context)
    print(server.sockets[0].getsockname()[1], flush=True)
    ended = loop.create_future()
    loop.add_reader(sys.stdin, lambda: sys.stdin.buffer.read1() or ended.done() or ended.set_result(None))
    await ended


if __name__ == "__main__":
    asyncio.run(serve(json.loads(sys.argv[1])))
