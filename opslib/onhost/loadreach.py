"""Whether a URL leads to its server, and whether that speaks what the URL says: HTTP, or HTTP over TLS."""

import asyncio
import ssl
from typing import TYPE_CHECKING

from opslib.onhost.exchange import NO_TLS, Failure

if TYPE_CHECKING:
    from opslib.onhost.loadlevel import Load

FIRST_ANSWER_S = 3.0
BAD_REQUEST = 400  # what nginx and Go answer to plain HTTP on a port of TLS; uvicorn closes without a byte


async def failure_to_reach(load: "Load") -> Failure:
    """Why no request would reach the URL's server, None where one does: an address may be mistyped, a unit's not.

    The class is that of the connection (`connect`, `tls`), or `no_tls` and `only_tls` where the URL's scheme is the
    other one.
    """
    connection = load.connection()
    try:
        failure = await connection.reach()
        if failure is not None:
            return ("no_tls", failure[1]) if failure[1].startswith(NO_TLS) else failure
        if load.context is not None:
            return None
        exchange = await connection.ask("GET", load.path("/v1/models"), timeout_s=FIRST_ANSWER_S)
    finally:
        connection.close()
    is_odd = exchange.status == BAD_REQUEST or (exchange.error is not None and exchange.error[0] == "cut")
    if is_odd and await _shakes_hands(load.address, load.port):
        return "only_tls", "the server speaks TLS there, and no plain HTTP"
    return None


async def _shakes_hands(address: str, port: int) -> bool:
    """Whether TLS is spoken there, whoever's certificate it is; nothing is sent over it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(address, port, ssl=context), FIRST_ANSWER_S)
    except (OSError, asyncio.TimeoutError):
        return False
    writer.close()
    return True
