"""Pseudonyms for a record that is passed on: each host, address and user has one name, the same wherever it stands."""

import ipaddress
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_KEPT = {"", "root", "local", "localhost", "rehearsal", "nobody", "ops"}  # nobody's in particular
_HOST_KEYS = {"host", "hostname", "_HOSTNAME", "controller", "alias", "address"}
_USER_KEYS = {"user", "login", "owner"}
_IPV4 = re.compile(r"(?<![\w.-])(?:\d{1,3}\.){3}\d{1,3}(?![\w.-])")
_IPV6 = re.compile(r"(?<![\w:.])(?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{0,4}(?![\w:.])")
_HOME = re.compile(r"/home/([a-z_][a-z0-9_-]{0,31})(?=/|\b)")
_SSH = re.compile(r"\b([a-z_][a-z0-9_-]{0,31})@([A-Za-z0-9][A-Za-z0-9.-]{1,253})\b(?!\.service)")
_SHORT = 3  # a shorter name is replaced only where it stands alone


def pseudonyms_for(facts: Any, texts: Iterable[str]) -> dict[str, str]:
    """The pseudonym of each host and user that a record's facts and texts name, and of each address in the texts.

    Loopback addresses, `root`, `localhost` and the rehearsal host stay: they are nobody's in particular.
    """
    hosts, users, addresses = dict[str, None](), dict[str, None](), dict[str, None]()
    _collect(facts, hosts, users)
    for text in texts:
        _collect_lines(text, hosts, users)
        users.update(dict.fromkeys(_HOME.findall(text)))
        for user, host in _SSH.findall(text):
            if user in users or host in hosts:
                users[user] = hosts[host] = None
        addresses.update(dict.fromkeys(_addresses(text)))
    named = {"host": hosts, "user": users, "address": addresses}
    pairs: dict[str, str] = {}
    for kind, names in named.items():
        fresh = [
            name
            for name in names
            if _is_somebody(name) and name not in pairs and (kind == "address" or not _is_address(name))
        ]
        pairs |= {name: f"{kind}-{number}" for number, name in enumerate(fresh, start=1)}
    return pairs


def with_pseudonyms(text: str, pairs: Mapping[str, str]) -> str:
    """The text with every name replaced, the longest first, only where it stands as a word of its own.

    >>> with_pseudonyms("ada@gpu-07 (10.1.2.3) is not gpu-070", {"gpu-07": "host-1", "ada": "user-1"})
    'user-1@host-1 (10.1.2.3) is not gpu-070'
    """
    if not pairs:
        return text
    forms = [_form(name) for name in sorted(pairs, key=len, reverse=True)]
    return re.sub("|".join(forms), lambda match: pairs[match[0]], text)


def _form(name: str) -> str:
    beside = "A-Za-z0-9_" if len(name) >= _SHORT else r"A-Za-z0-9_.\-"
    return rf"(?<![{beside}]){re.escape(name)}(?![{beside}])"


def _is_somebody(name: str) -> bool:
    return name not in _KEPT and not name.startswith("rehearsal") and not name.isdigit()


def _collect(value: Any, hosts: dict[str, None], users: dict[str, None]) -> None:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if isinstance(item, str) and key in _HOST_KEYS:
                hosts[item] = None
            elif isinstance(item, str) and key in _USER_KEYS:
                users.update(dict.fromkeys(re.split(r" \((?:sudo )?by |\)", item)))
            elif key == "hosts" and isinstance(item, list):
                hosts.update(dict.fromkeys(str(one) for one in item))
            else:
                _collect(item, hosts, users)
    elif isinstance(value, list | tuple):
        for item in value:
            _collect(item, hosts, users)


def _collect_lines(text: str, hosts: dict[str, None], users: dict[str, None]) -> None:
    """What a JSON text, or each line of one, names."""
    for part in (text, *text.splitlines()):
        if part[:1] in "{[" and part:
            try:
                _collect(json.loads(part), hosts, users)
            except (ValueError, RecursionError):
                continue


def _addresses(text: str) -> Iterator[str]:
    for found in (*_IPV4.findall(text), *_IPV6.findall(text)):
        if _is_address(found):
            address = ipaddress.ip_address(found)
            if not (address.is_loopback or address.is_unspecified):
                yield found


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
