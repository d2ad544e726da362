"""`opslib bench run`: a unit by its runbook, or a URL from this machine."""

import json
from pathlib import Path
from typing import Any

import click

from opslib.cli.options import json_story_option, runs_dir_option
from opslib.cli.showing import show
from opslib.domain.benchmark import BenchmarkLevel
from opslib.domain.parameters import UnitBenchmarkParameters, validate_parameters
from opslib.errors import BadParameter

_CLIENTS = ("opslib", "vllm", "guidellm")


def _numbers(_ctx: click.Context, _option: click.Parameter, text: str | None) -> list[int] | None:
    try:
        return [int(word) for word in text.split(",")] if text else None
    except ValueError:
        raise click.BadParameter(f"{text!r} is no list of numbers, as 1,4,16") from None


@click.command("run")
@click.argument("target", metavar="HOST|URL")
@click.argument("unit", required=False)
@click.option(
    "--levels", "concurrency_levels", metavar="N,N,...", callback=_numbers, help="Streams at once, as 1,4,16,64."
)
@click.option("--max", "max_concurrency", type=int, help="Double from 1 up to this until the service is full.")
@click.option("--repeats", "benchmark_repeats", type=int, help="Times that each level is run [3].")
@click.option("--requests", "requests_per_stream", type=int, help="Requests of each stream [2].")
@click.option("--input-tokens", type=int)
@click.option("--output-tokens", type=int)
@click.option("--deadline", "benchmark_deadline_s", type=int, help="Seconds after which no request is started [600].")
@click.option("--client", type=click.Choice(_CLIENTS), default="opslib", help="A second opinion from that client too.")
@click.option("--model", default="", help="Name that is asked for [what the service names first].")
@click.option("--ca-file", default="", help="CA that the URL's certificate is checked against.")
@click.option("--api-key", default="", help="env:NAME or file:PATH, never the key itself.")
@runs_dir_option("Where the record goes")
@json_story_option
def run_command(
    target: str, unit: str | None, client: str, runs_dir: Path | None, *, as_json: bool, **given: Any
) -> int:
    """Measure UNIT on HOST (from the host itself, with `50-benchmark`), or the endpoint at a URL (from here).

    The record holds the figures as JSON, CSV and in the form of `vllm bench serve --save-result`.

    Exit code 0: measured; 1: with errors, or worse than the last good run; 2: it does not serve; 3: could not find
    out; 4: refused.
    """
    endpoint = {name: given.pop(name) for name in ("model", "ca_file", "api_key")}
    chosen = {name: value for name, value in given.items() if value is not None}
    if endpoint["api_key"] and not endpoint["api_key"].startswith(("env:", "file:")):  # a key must not be repeated here
        raise BadParameter("--api-key: give env:NAME or file:PATH, never the key itself")
    if "://" in target:
        if unit or client != "opslib":
            raise BadParameter("a URL has no unit, and other clients run on a host", hint="opslib bench run HOST UNIT")
        return _run_url(target, chosen, endpoint, runs_dir, as_json=as_json)
    if unit is None:
        raise BadParameter("which unit?", hint=f"opslib bench run {target} UNIT, or a URL")
    if endpoint["model"]:
        chosen["served_model_name"] = endpoint["model"]
    if client != "opslib":
        chosen["second_client"] = client
    return _run_unit(target, unit, chosen, runs_dir, as_json=as_json)


def _run_unit(host: str, unit: str, chosen: dict[str, Any], runs_dir: Path | None, *, as_json: bool) -> int:
    from opslib.app.benching import RUNBOOK, parameters_of_unit  # noqa: PLC0415 - brings numpy
    from opslib.cli.running import tell_run  # noqa: PLC0415

    validate_parameters(RUNBOOK, {"host": host, "unit": unit, **chosen})
    given = {**parameters_of_unit(host, unit), **chosen}
    return tell_run(RUNBOOK, given, runs_dir=runs_dir, as_json=as_json)


def _run_url(
    url: str, chosen: dict[str, Any], endpoint: dict[str, str], runs_dir: Path | None, *, as_json: bool
) -> int:
    from opslib.app.benching import RUNBOOK, measure_url  # noqa: PLC0415 - brings numpy
    from opslib.app.catalogue import default_runs_dir  # noqa: PLC0415
    from opslib.cli.story import Story  # noqa: PLC0415
    from opslib.views.benchmark import BenchmarkView  # noqa: PLC0415

    parameters = validate_parameters(RUNBOOK, chosen)
    assert isinstance(parameters, UnitBenchmarkParameters)
    story = Story(is_quiet_stdout=as_json)

    def tell(level: BenchmarkLevel) -> None:
        story.say(f"{level.name}: {level.output_throughput:,.0f} {level.counted_in}/s")

    measured = measure_url(url, parameters, runs_dir=runs_dir or default_runs_dir(), on_level=tell, **endpoint)
    if as_json:
        document = {**measured.report.model_dump(mode="json"), "url": url, "record": str(measured.folder)}
        show(json.dumps(document, ensure_ascii=False))
    else:
        show(BenchmarkView(measured.report).text)
        show(f"record  {measured.folder}")
    return measured.report.state.exit_code
