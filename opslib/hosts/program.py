"""Join modules of `opslib.onhost` into one program that a host's own Python reads from standard input."""

import ast
import json
import threading
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from opslib.errors import BadParameter

_PACKAGE = "opslib.onhost"
_one_parser = threading.Lock()  # in CPython 3.11 two threads that parse at once break each other's recursion count

# Parsed by whatever Python the host has, so that one that is too old can say so.
BOOT = """\
import json, sys, types
if sys.version_info < (3, 8):
    sys.stderr.write('Python 3.8 or newer is needed, this is %d.%d' % sys.version_info[:2])
    sys.exit(127)
stdin = open(0, 'rb', 0, closefd=False)
def read(n):
    data = b''
    while len(data) < n:
        chunk = stdin.read(n - len(data))
        if not chunk:
            sys.exit(75)
        data += chunk
    return data
bundle = json.loads(read(int(read(10))))
def register(name):
    module = sys.modules[name] = types.ModuleType(name)
    parent, _, child = name.rpartition('.')
    if parent:
        setattr(sys.modules[parent], child, module)
    return module
register('opslib').__path__ = []
register('opslib.onhost').__path__ = []
for name, source in bundle['modules'].items():
    module = register('opslib.onhost.' + name)
    exec(compile(source, 'opslib/onhost/' + name + '.py', 'exec'), module.__dict__)
sys.modules['opslib.onhost.boot'].start(bundle)
"""


def program_vector(python: str) -> list[str]:
    """The argument vector that starts any program (`-I`: nothing in the working directory is imported)."""
    return [python, "-I", "-c", BOOT]


def program_input(main: str, arguments: Mapping[str, object], *, link_timeout_s: float | None = None) -> bytes:
    """What is written to standard input: ten digits of length, then the modules and arguments as JSON.

    `link_timeout_s`: after that long without a byte on standard input the program ends itself.
    Raises BadParameter for a module that does not exist.
    """
    bundle = {
        "modules": {name: _source(name) for name in needed_modules(main)},
        "main": main,
        "arguments": dict(arguments),
        "link_timeout_s": link_timeout_s,
    }
    body = json.dumps(bundle, ensure_ascii=True).encode("ascii")
    return b"%010d" % len(body) + body


@cache
def needed_modules(main: str) -> tuple[str, ...]:
    """The modules of `opslib.onhost` that `main` imports, directly or not, each after those it imports itself.

    >>> needed_modules("supervise")
    ('boot', 'supervise')
    """
    ordered: dict[str, None] = {}

    def visit(name: str, above: tuple[str, ...]) -> None:
        if name in ordered or name in above:
            return
        for imported in _imports(_source(name)):
            visit(imported, (*above, name))
        ordered[name] = None

    visit("boot", ())
    visit(main, ())
    return tuple(ordered)


def _imports(source: str) -> list[str]:
    """Names of the modules of `opslib.onhost` that a source imports, in its order."""
    names: list[str] = []
    with _one_parser:
        tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == _PACKAGE:
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{_PACKAGE}."):
            names.append(str(node.module).removeprefix(f"{_PACKAGE}."))
        elif isinstance(node, ast.Import):
            dotted = (alias.name for alias in node.names)
            names += [name.removeprefix(f"{_PACKAGE}.") for name in dotted if name.startswith(f"{_PACKAGE}.")]
    return names


@cache
def _source(name: str) -> str:
    path = files(_PACKAGE).joinpath(f"{name}.py")
    if not name.isidentifier() or not path.is_file():
        raise BadParameter(f"there is no on-host program {name!r}", hint=f"look into {_PACKAGE.replace('.', '/')}/")
    return path.read_text(encoding="utf-8")
