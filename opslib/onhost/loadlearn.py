"""What a server understands, found out by a short request before the load: its endpoint, the fields that it refuses."""

from typing import Callable

from opslib.onhost.exchange import Exchange
from opslib.onhost.loadlevel import Load, read

CHAT = "/v1/chat/completions"
# In the order in which they are left out where a server refuses without a name: what only vLLM knows goes first.
OPTIONAL_FIELDS = ("ignore_eos", "stream_options", "temperature", "max_tokens")
_N_WORDS, _N_TOKENS = 16, 4
_MAX_TRIES = 10
_REFUSALS = (400, 422)
_ABSENT = (404, 405, 501)


async def learn(load: Load, timeout_s: Callable[[], float]) -> None:
    """Finds the request that this server answers; where none is found everything stays as it was.

    A field that is named in a refusal is left out (max_tokens: asked under its newer name), one after the other where
    none is named; a server without /v1/completions is asked for a chat, unless the URL names the endpoint.
    """
    options, inputs = load.options, load.inputs
    before = options["endpoint"], list(inputs.dropped)
    connection = load.connection()
    for _ in range(_MAX_TRIES):
        body = inputs.short_body(_N_WORDS, _N_TOKENS)
        exchange = await connection.ask("POST", load.path(options["endpoint"]), body, timeout_s=timeout_s())
        if read(exchange).error is None:
            connection.close()
            return
        if not _change(load, exchange):
            break
    connection.close()
    options["endpoint"], inputs.dropped = before


def _change(load: Load, exchange: Exchange) -> bool:
    """Ask otherwise next time; False where there is nothing left to change."""
    said = exchange.body_text if exchange.error is None else ""
    is_text = not load.options["endpoint"].endswith("/chat/completions")
    is_unknown = exchange.status in _ABSENT or (exchange.status in _REFUSALS and "ompletions" in said)
    if load.may_chat and is_text and is_unknown:
        load.options["endpoint"] = CHAT
        return True
    left = [name for name in OPTIONAL_FIELDS if name not in load.inputs.dropped]
    if exchange.status not in _REFUSALS or not left:
        return False
    load.inputs.dropped += [name for name in left if name in said] or left[:1]
    return True
