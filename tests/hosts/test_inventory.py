"""hosts.toml is read strictly, and what is wrong in it is named."""

import subprocess
import sys
from pathlib import Path

import pytest

from opslib.domain.host import HostSettings
from opslib.errors import BadParameter, UnknownName
from opslib.hosts.inventory import load_inventory

GOOD = """
[hosts.gpu-a]
address = "gpu-a.example"
user = "ops"
port = 2222
labels = ["h20", "lab"]
environment = { HF_HUB_OFFLINE = "1" }

[hosts.here]
address = "local"
"""

MISTAKES = {
    "unknown key, near": ('[hosts.a]\nadress = "y"', "unknown key 'adress'; did you mean address?"),
    "unknown key, far": ('[hosts.a]\naddress = "x"\nzzzz = 1', "known: address, port"),
    "number as a text": ('[hosts.a]\naddress = "x"\nport = "22"', "port: Input should be a valid integer"),
    "text as a number": ('[hosts.a]\naddress = "x"\nuser = 7', "user: Input should be a valid string"),
    "switch as a text": ('[hosts.a]\naddress = "x"\nsudo = "yes"', "sudo"),
    "no UTF-8": ('[hosts.a]\naddress = "\udcff"', "it is not UTF-8 text"),
    "missing address": ("[hosts.a]\nport = 22", "address: Field required"),
    "wrong type": ('[hosts.a]\naddress = "x"\nport = "many"', "port: Input should be a valid integer"),
    "no jump host": ('[hosts.a]\naddress = "x"\nproxy_jump = "a b"', "proxy_jump: String should match"),
    "unknown scope": ('[hosts.a]\naddress = "x"\nscope = "mine"', "scope: Input should be 'system' or 'user'"),
    "unknown table": ('[host.a]\naddress = "x"', "unknown table [host]"),
    "no table": ('hosts = "a"', "`hosts` is no table"),
    "entry is no table": ('[hosts]\na = "x"', "[hosts.a] is no table"),
    "a port that is none": ('[hosts.a]\naddress = "x"\nport = 99999\n', "[hosts.a] port: Input should be less than"),
    "no TOML": ("[hosts.a", "is no TOML"),
}


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    path = tmp_path / "hosts.toml"
    path.write_text(GOOD)
    return path


def test_entries_become_settings(toml: Path) -> None:
    """Each table is a host, its name the alias."""
    settings = load_inventory(toml).settings("gpu-a")
    assert (settings.alias, settings.address, settings.user, settings.port) == ("gpu-a", "gpu-a.example", "ops", 2222)
    assert settings.labels == ("h20", "lab")
    assert settings.environment == {"HF_HUB_OFFLINE": "1"}


@pytest.mark.parametrize(("text", "said"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_named(toml: Path, text: str, said: str) -> None:
    """A mistake is refused with the file, the place and the nearest right name."""
    toml.write_text(text, errors="surrogateescape")
    with pytest.raises(BadParameter) as caught:
        load_inventory(toml)
    assert str(toml) in str(caught.value)
    assert said in str(caught.value)


def test_an_unknown_alias_offers_the_nearest(toml: Path) -> None:
    """A misspelt alias names the nearest one and the file; a strange one lists what there is."""
    inventory = load_inventory(toml)
    with pytest.raises(UnknownName, match="did you mean 'gpu-a'") as caught:
        inventory.settings("gpua")
    assert str(toml) in str(caught.value)
    with pytest.raises(UnknownName, match="gpu-a, here"):
        inventory.settings("zzz")


def test_the_file_is_found(toml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """$OPSLIB_HOSTS comes first, then ./hosts.toml, then ~/.config/opslib/hosts.toml; none is an empty inventory."""
    home, here = tmp_path / "home", tmp_path / "here"
    here.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("OPSLIB_HOSTS", raising=False)
    monkeypatch.chdir(here)
    assert load_inventory().path is None
    with pytest.raises(UnknownName, match="was found"):
        load_inventory().settings("gpu-a")
    configured = home / ".config" / "opslib" / "hosts.toml"
    configured.parent.mkdir(parents=True)
    configured.write_text('[hosts.config]\naddress = "x"')
    assert list(load_inventory().hosts) == ["config"]
    (here / "hosts.toml").write_text('[hosts.cwd]\naddress = "x"')
    assert list(load_inventory().hosts) == ["cwd"]
    monkeypatch.setenv("OPSLIB_HOSTS", str(toml))
    assert list(load_inventory().hosts) == ["gpu-a", "here"]


def test_a_named_file_must_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """$OPSLIB_HOSTS naming no file is a mistake, not an empty inventory."""
    monkeypatch.setenv("OPSLIB_HOSTS", str(tmp_path / "absent.toml"))
    with pytest.raises(BadParameter, match="OPSLIB_HOSTS"):
        load_inventory()


def test_the_inventory_needs_no_fabric() -> None:
    """Reading the inventory imports no SSH library."""
    code = "import sys, opslib.hosts.inventory; sys.exit(bool({'fabric', 'paramiko'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_key_is_documented() -> None:
    """The page on hosts.toml has a row for each key that an entry may have, and for no other."""
    page = (Path(__file__).parents[2] / "docs" / "hosts.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    keys = {word.strip(" `") for row in rows for word in row.split(",")}
    assert keys == set(HostSettings.model_fields) - {"alias"}


@pytest.mark.parametrize("row", ['HF_TOKEN = "hunter22"', 'A = "hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345"'])
def test_inventory_holds_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: str) -> None:
    """A secret in hosts.toml is refused without being repeated: it would land in a unit that everybody may read."""
    (tmp_path / "hosts.toml").write_text(f'[hosts.a]\naddress = "x"\n[hosts.a.environment]\n{row}\n')
    monkeypatch.setenv("OPSLIB_HOSTS", str(tmp_path / "hosts.toml"))
    with pytest.raises(BadParameter, match="holds a secret") as caught:
        load_inventory()
    assert "hunter22" not in str(caught.value)
    assert "AbCdEf" not in str(caught.value)
