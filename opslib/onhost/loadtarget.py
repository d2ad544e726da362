"""Where a load goes: the server that its options name, the paths on it, its CA and its key."""

import os
import re
import ssl
from typing import Any, Dict, Tuple
from urllib.parse import quote, urlsplit


class Refused(Exception):  # noqa: N818 - nothing was asked yet
    """The arguments can't be used: nothing was sent."""


def place_of(options: Dict[str, Any]) -> Tuple[str, int, str, bool]:
    """Address, port, base path and whether TLS is spoken; raises Refused for a URL that is none."""
    if not options["url"]:
        address = options["address"] or os.environ.get("OPSLIB_LOOPBACK") or "127.0.0.1"
        return address, int(options["port"]), "", False
    parts = urlsplit(options["url"])
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Refused("%s is no http:// or https:// URL" % options["url"])
    is_tls = parts.scheme == "https"
    try:
        port = parts.port or (443 if is_tls else 80)
    except ValueError as error:
        raise Refused("%s: %s" % (options["url"], error)) from error
    if options["ca_file"] and not is_tls:
        raise Refused("a CA file is for https://, and %s is spoken without TLS" % options["url"])
    try:
        address = parts.hostname if parts.hostname.isascii() else parts.hostname.encode("idna").decode("ascii")
    except UnicodeError as error:
        raise Refused("%s names no host: %s" % (options["url"], error)) from error
    return address, port, quote(parts.path.rstrip("/"), safe="/%:@!$&'()*+,;="), is_tls


def base_paths(path: str) -> Tuple[str, str, str]:
    """Of a URL's path: what /metrics lies under, what the API's parts lie under, and an endpoint that it names itself.

    A path with a version in it is an API's base, as OpenAI's own client takes it; any other has /v1 below it.

    >>> base_paths("/llm"), base_paths("/llm/v1"), base_paths("/v1beta/openai")
    (('/llm', '/llm/v1', ''), ('/llm', '/llm/v1', ''), ('', '/v1beta/openai', ''))
    >>> base_paths("/v1/chat/completions")
    ('', '/v1', '/v1/chat/completions')
    """
    endpoint = ""
    for name in ("/chat/completions", "/completions"):
        if path.endswith(name):
            path, endpoint = path[: -len(name)], "/v1" + name
            break
    version = re.search(r"/v[0-9][^/]*(/|$)", path)
    if version is None:
        return path, path if endpoint else path + "/v1", endpoint
    return path[: version.start()], path, endpoint


def tls_context(ca_file: str) -> ssl.SSLContext:
    """TLS that checks certificates against this CA, or the system's; raises Refused for a file that holds none."""
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except OSError as error:
        raise Refused("the CA file %s can't be used: %s" % (ca_file, error)) from error


def secret_of(reference: str) -> str:
    """The value behind `env:NAME` or `file:PATH` where this program runs; raises Refused where there is none."""
    kind, _, place = reference.partition(":")
    if kind not in ("env", "file"):  # it may be the key: not to be quoted
        raise Refused("an API key is given as env:NAME or file:PATH, never itself")
    try:
        if kind == "file":
            with open(os.path.expanduser(place), encoding="utf-8") as file:
                value = file.read().strip()
        else:
            value = os.environ.get(place, "")
    except (OSError, ValueError) as error:
        raise Refused("the API key of %s can't be read: %s" % (reference, error)) from error
    if not value or not value.isprintable() or not value.isascii():
        raise Refused("there is no API key behind %s" % reference)
    return value
