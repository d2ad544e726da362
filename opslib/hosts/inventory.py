"""The hosts an operator has named, read from hosts.toml."""

import difflib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from opslib.domain.host import HostSettings
from opslib.domain.problems import GOOD_MATCH, nearest
from opslib.domain.states import Value
from opslib.errors import BadParameter, UnknownName, reason_of


class Inventory(Value):
    """The named hosts, and the file that names them."""

    hosts: Mapping[str, HostSettings] = {}
    path: str | None = None  # None: there is no hosts.toml

    def settings(self, alias: str) -> HostSettings:
        """The entry of this alias; raises UnknownName with the nearest alias and the file that was read."""
        if alias in self.hosts:
            return self.hosts[alias]
        if self.path is None:
            raise UnknownName(f"there is no host {alias!r}: no hosts.toml was found", hint=f"write one ({_PLACES})")
        raise UnknownName(f"there is no host {alias!r} in {self.path}", hint=_nearest(alias, self.hosts, "hosts there"))


_PLACES = "$OPSLIB_HOSTS, ./hosts.toml or ~/.config/opslib/hosts.toml, with [hosts.ALIAS] and an address"


def inventory_path() -> Path | None:
    """The hosts.toml that counts here: $OPSLIB_HOSTS, ./hosts.toml, ~/.config/opslib/hosts.toml; None without any."""
    named = os.environ.get("OPSLIB_HOSTS")
    if named:
        return Path(named).expanduser()
    places = (Path("hosts.toml"), Path("~/.config/opslib/hosts.toml").expanduser())
    return next((place for place in places if place.is_file()), None)


def load_inventory(path: Path | None = None) -> Inventory:
    """The inventory of `path`, or of the first hosts.toml found; empty when there is none.

    Raises BadParameter for a file that is not there, is no TOML, or holds an unknown field or a wrong type.
    """
    path = path or inventory_path()
    if path is None:
        return Inventory()
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadParameter(f"cannot read {path}: {reason_of(error)}", hint="see $OPSLIB_HOSTS") from error
    except tomllib.TOMLDecodeError as error:
        raise BadParameter(f"{path} is no TOML: {error}") from error
    unknown = [key for key in document if key != "hosts"]
    tables = document.get("hosts", {})
    if unknown or not isinstance(tables, dict):
        what = f"unknown table [{unknown[0]}]" if unknown else "`hosts` is no table"
        raise BadParameter(f"{path}: {what}", hint="hosts are tables named [hosts.ALIAS]")
    return Inventory(hosts={alias: _settings(alias, table, path) for alias, table in tables.items()}, path=str(path))


def _settings(alias: str, table: Any, path: Path) -> HostSettings:
    if not isinstance(table, dict):
        raise BadParameter(f"{path}: [hosts.{alias}] is no table", hint='write [hosts.ALIAS] and address = "..."')
    known = [name for name in HostSettings.model_fields if name != "alias"]
    for key in table:  # before the types: a misspelt key is also one that is missing
        if key not in known:
            raise BadParameter(f"{path}: [hosts.{alias}]: unknown key {key!r}{nearest(key, known)}")
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in table.items()}
    try:
        return HostSettings.model_validate({**given, "alias": alias}, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise BadParameter(f"{path}: [hosts.{alias}] {field}: {first['msg']}") from error


def _nearest(name: str, known: Mapping[str, object], what: str) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=GOOD_MATCH)
    return f"did you mean {close[0]!r}?" if close else f"{what}: {', '.join(known) or 'none'}"
