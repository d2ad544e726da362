"""One secret planted wherever a run could come across it: it is in no byte of the record, and the rest is intact."""

import base64
import hashlib
import json
import shutil
from pathlib import Path
from urllib.parse import quote

import nbformat
import pytest

from opslib.app.headless import run_headless
from opslib.hosts import open_host
from opslib.records.pdf import find_chromium
from opslib.records.seal import verify_record
from opslib.rehearsal.server import start_rehearsal
from opslib.workflow.install import RELOAD
from opslib.workflow.launch import start_unit
from tests.trust.canary import leaks

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
KNOWN = "Zaunkönig+4711/geheim & so?"  # behind a reference: needs escaping wherever it is written
HOSTS = "rotkehlchen-0815-nur-auf-dem-host"  # in the unit's file and in the journal only
PATTERN = "hf_" + "RohrdommelRohrdommelRohrdommel42"  # known to nobody, but it looks like a token
DIGEST = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
COMMIT = "3b18e512dba79e4c8300dd08aeb37f8e728b8dad"
UNIT = """[Unit]
Description=a unit that tells its secrets
[Service]
Environment=API_TOKEN={secret}
ExecStart=/bin/sh -c 'echo "starting with {secret}"; echo "ValueError: bad key {secret}" >&2; exit 1'
"""
# each cell shows the secret in one way; the last one raises
CELLS = [
    'import os, base64, urllib.parse; secret = os.environ["CANARY_TOKEN"]; print(secret); print(repr(secret))',
    "print(base64.b64encode(('user:' + secret).encode()).decode(), urllib.parse.quote(secret), urllib.parse.quote_plus(secret))",
    "import pandas; pandas.set_option('display.max_colwidth', None); pandas.DataFrame({'token': [secret], 'n': [1]})",
    "import ipywidgets; box = ipywidgets.VBox([ipywidgets.Text(value=secret), ipywidgets.HTML(f'<b>{secret}</b>')]); box",
    "from IPython.display import HTML, JSON, Markdown, display; display(JSON({secret: [secret]}), Markdown(secret), HTML(secret))",
    """import io; from matplotlib.figure import Figure; figure = Figure(); figure.suptitle(secret)
svg, png = io.StringIO(), io.BytesIO()
figure.savefig(svg, format='svg', metadata={'Title': secret}); figure.savefig(png, format='png', metadata={'Title': secret})
from IPython.display import SVG, Image
display(SVG(svg.getvalue()), Image(png.getvalue(), metadata={'note': secret}))""",
    "import plotly.graph_objects as go; display(go.Figure(layout={'title': secret}).to_dict())",
    "plain = Figure(); plain.suptitle('figures'); good = io.BytesIO(); plain.savefig(good, format='png', metadata={'Software': None}); Image(good.getvalue())",
    f"print('{DIGEST} {COMMIT} {PATTERN}')",
    "run.tell('line', secret, section='x'); run.folder.add_evidence('a.log', ('x' + secret).encode()); run.folder.write_json('a.json', {secret: secret})",
    "run.folder.add_evidence('b.log', base64.encodebytes(('x' * 50 + secret * 3).encode()))",
    "import sys; sys.stderr.write(secret + '\\n'); os.system('echo \"$CANARY_TOKEN\"')",
    "raise RuntimeError('with ' + secret)",
]


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """A rehearsal host with a unit whose file and journal hold a secret."""
    root = tmp_path_factory.mktemp("host")
    with start_rehearsal("healthy") as rehearsal:
        settings = rehearsal.settings
        host = open_host(settings)
        text = UNIT.format(secret=HOSTS)
        host.write_file(f"{settings.unit_dir}/vllm-canary.service", text.encode(), sudo=True)
        host.run(RELOAD, sudo=True)
        start_unit(host, "vllm-canary")
        host.close()
        fields = settings.model_dump(exclude={"alias"}, exclude_none=True, exclude_defaults=True)
        lines = [f"{name} = {json.dumps(value)}" for name, value in fields.items()]
        (root / "hosts.toml").write_text("[hosts.practice]\n" + "\n".join(lines) + "\n")
        yield root / "hosts.toml"


@pytest.fixture(scope="module")
def place(tmp_path_factory, told):
    """Runbooks of which one has cells that show the secret, and an environment that holds it."""
    patch = pytest.MonkeyPatch()
    root = tmp_path_factory.mktemp("canary")
    shutil.copytree(NOTEBOOKS, root / "notebooks")
    book = nbformat.read(root / "notebooks/40-investigate-crash.ipynb", 4)
    book.metadata["note"] = KNOWN
    book.cells.insert(1, nbformat.v4.new_markdown_cell("![x](attachment:x)", attachments={"x": {"text/plain": KNOWN}}))
    begin = next(at for at, cell in enumerate(book.cells) if "begin_run(" in cell.source)
    at = next(at for at, cell in enumerate(book.cells) if at > begin and "investigate(run)" in cell.source)
    book.cells[at + 1 :] = [nbformat.v4.new_code_cell(cell) for cell in CELLS]
    nbformat.write(book, root / "notebooks/40-investigate-crash.ipynb")
    patch.setenv("OPSLIB_NOTEBOOKS", str(root / "notebooks"))
    patch.setenv("OPSLIB_HOSTS", str(told))
    patch.setenv("CANARY_TOKEN", KNOWN)
    if find_chromium():
        patch.setenv("OPSLIB_RECORD_PDF", "1")
    yield root
    patch.undo()


@pytest.fixture(scope="module")
def record(place):
    """The record of investigating that unit, with every way of showing a secret, ended by an exception that names it."""
    given = {"host": "practice", "unit": "vllm-canary", "invocation": ""}
    return run_headless("40-investigate-crash", given, runs_dir=place / "runs").folder


@pytest.mark.parametrize("secret", [KNOWN, HOSTS, PATTERN], ids=["behind a reference", "on the host only", "a pattern"])
def test_planted_secret_is_in_no_byte_of_the_record(record, secret):
    """Notebook, page, PDF, facts, events, evidence, logs: none gives it back, plain, escaped, URL-encoded or in base64."""
    assert leaks(record, secret) == []


def test_the_channels_were_really_used(record):
    """What was planted has left its mark: each place where the secret stood says that something was taken out."""
    notebook = json.loads((record / "notebook.ipynb").read_text())
    shown = [json.dumps(cell.get("outputs", [])) for cell in notebook["cells"] if cell["cell_type"] == "code"][
        -len(CELLS) :
    ]
    silent = [CELLS[at][:60] for at, text in enumerate(shown) if "[redacted:" not in text]
    assert [cell[:14] for cell in silent] == ["plain = Figure", "run.tell('line", "run.folder.add"]
    assert "[redacted:known]" in json.dumps(notebook["metadata"]["note"])
    assert "[redacted:known]" in json.dumps([cell.get("attachments") for cell in notebook["cells"]])
    assert "[redacted:known]" in json.dumps(notebook["metadata"]["widgets"])
    assert "starting with [redacted:" in next(record.glob("evidence/*/journal.jsonl")).read_text()
    assert "API_TOKEN=[redacted:" in next(record.glob("evidence/*/unit.txt")).read_text()
    assert (record / "record.pdf").is_file() == bool(find_chromium())
    for name in ("record.html", "events.jsonl", "evidence/a.log", "evidence/b.log", "a.json", "kernel.log"):
        assert "[redacted:" in (record / name).read_text(), name


def test_what_is_no_secret_is_intact(record):
    """Digests, commit ids and pictures stay as they were; what was kept beside has the digests that its manifest says."""
    notebook = json.loads((record / "notebook.ipynb").read_text())
    text = json.dumps(notebook)
    assert DIGEST in text
    assert COMMIT in text
    pictures = [
        output["data"]["image/png"]
        for cell in notebook["cells"]
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    whole = [picture for picture in pictures if "[redacted" not in picture]
    assert base64.b64decode(whole[-1]).endswith(b"IEND\xaeB`\x82")
    assert whole[-1].strip()[:40] in (record / "record.html").read_text()
    for manifest in record.glob("evidence/*/manifest.json"):
        for row in json.loads(manifest.read_text())["files"]:
            if row["file"]:
                content = (manifest.parent / row["file"]).read_bytes()
                assert (hashlib.sha256(content).hexdigest(), len(content)) == (row["sha256"], row["bytes"])
    assert verify_record(record).alterations == ()


def test_secret_of_a_parameter_is_in_no_byte(place, monkeypatch):
    """A secret that a deploy hands to the engine (by reference) is on the host, and nowhere in the record."""
    given = {"host": "practice", "environment": {"HF_TOKEN": "env:CANARY_TOKEN"}, "consent": "given"}
    monkeypatch.delenv("OPSLIB_RECORD_PDF", raising=False)
    result = run_headless("30-launch", given, runs_dir=place / "runs")
    assert result.exit_code == 0, result.outcome
    assert leaks(result.folder, KNOWN) == []
    assert json.loads((result.folder / "record.json").read_text())["parameters"]["environment"] == {
        "HF_TOKEN": "env:CANARY_TOKEN"
    }


def test_the_search_finds_what_it_looks_for(tmp_path):
    """Each way of writing a secret is found where it stands, so that finding none means something."""
    written = {
        "plain": KNOWN,
        "URL-encoded": quote(KNOWN, safe=""),
        "in JSON": json.dumps(f"a {KNOWN}"),
        "in JSON, twice": json.dumps(json.dumps(KNOWN)),
        "base64": base64.b64encode(f"ab{KNOWN}".encode()).decode(),
        "in HTML": KNOWN.replace("&", "&amp;"),
    }
    for how, text in written.items():
        (tmp_path / "a").write_text(text)
        assert any(how in found for found in leaks(tmp_path, KNOWN)), how
    (tmp_path / "a").write_bytes(base64.encodebytes((50 * "x" + KNOWN).encode()))
    assert leaks(tmp_path, KNOWN)
