"""Another client on the host: found in the engine's environment, run level by level, read into the same table."""

import json
import sys

import pytest

from opslib.domain.benchmark_formats import vllm_result
from opslib.errors import BadParameter, UnexpectedAnswer
from opslib.onhost.bench_client import find_client
from opslib.workflow.bench_client import run_client
from tests.domain.test_benchmark_formats import AT, level, report
from tests.fakes import FakeHost

SERVE = """#!{python}
import json, sys
words = sys.argv[1:]
if {is_broken}:
    sys.exit("error: no tokenizer")
value = lambda name: words[words.index(name) + 1]
result = json.loads({result!r})
result.update(max_concurrency=int(value("--max-concurrency")), num_prompts=int(value("--num-prompts")))
result.update(completed=result["num_prompts"])
open(value("--result-dir") + "/" + value("--result-filename"), "w").write(json.dumps(result))
"""


def put_client(path, *, is_broken=False):
    path.parent.mkdir(parents=True, exist_ok=True)
    result = json.dumps(vllm_result(report(), level(), at=AT))
    path.write_text(SERVE.format(python=sys.executable, is_broken=is_broken, result=result))
    path.chmod(0o755)
    return str(path)


def measure(vllm, **changes):
    given = {"port": 8000, "model": "m", "root": "/srv/m", "levels": [1, 8], "deadline_s": 20, **changes}
    return run_client(FakeHost(vllm=vllm), given.pop("client", "vllm"), **given)


def test_vllms_own_client_gives_the_same_table(tmp_path):
    """Each level is asked with its concurrency and number of requests; the report names the program."""
    program = put_client(tmp_path / "bin/vllm")
    found = measure(program, requests_per_stream=3)
    assert [(level.concurrency, level.n_requests) for level in found.levels] == [(1, 4), (8, 24)]
    assert found.levels[0].ttft_ms.p50 == 59.0
    assert program in found.summary


def test_the_native_client_is_taken_where_the_wheel_has_it(tmp_path):
    """`vllm-rs` inside the package, or beside the engine's program, comes before the Python client."""
    program = put_client(tmp_path / "bin/vllm")
    assert find_client("vllm", program) == [program]
    packaged = put_client(tmp_path / "lib/python3.12/site-packages/vllm/vllm-rs")
    assert find_client("vllm", program) == [packaged]
    beside = put_client(tmp_path / "bin/vllm-rs")
    assert find_client("vllm", program) == [beside]


def test_a_failing_client_is_told_in_its_own_words(tmp_path):
    """A client that ends without a result has not measured anything: its last words are the reason."""
    with pytest.raises(UnexpectedAnswer, match="exit status 1: error: no tokenizer"):
        measure(put_client(tmp_path / "vllm", is_broken=True))


def test_a_client_that_is_not_there_is_refused(tmp_path):
    """Without the program nothing is measured, and the sentence says which is missing."""
    with pytest.raises(BadParameter, match="no guidellm client"):
        measure(str(tmp_path / "vllm"), client="guidellm")
