"""`opslib plan`: what an engine will do with GPU memory, before it is started."""

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from opslib.app.catalogue import default_runs_dir
from opslib.app.ledger import read_ledger
from opslib.cli.numbers import Number
from opslib.cli.options import json_option
from opslib.cli.showing import show
from opslib.domain.host import Host, HostSettings
from opslib.domain.memory_ledger import LedgerEntry, calibrate, calibration_note
from opslib.domain.memory_situation import Calibration
from opslib.domain.vllm_flags import parse_serve_arguments
from opslib.errors import BadParameter, UnexpectedAnswer, reason_of
from opslib.hosts.open import LOCAL, open_host
from opslib.workflow.offline_plan import GpuFigures, OfflinePlan, PlanInput, plan_offline

_SIZE = Number(min=0, min_open=True)


@click.command("plan")
@click.option("--checkpoint", metavar="DIR", help="Checkpoint directory, on this machine or on --host.")
@click.option("--host", "alias", metavar="ALIAS", help="Host of the checkpoint and of the GPUs.")
@click.option("--config", type=click.Path(dir_okay=False, exists=True, path_type=Path), help="A config.json.")
@click.option("--weights-bytes", type=click.IntRange(min=1), help="Bytes of the weights [counted from the config].")
@click.option("--gpu-memory-gib", type=_SIZE, help="Memory of each GPU [the host's].")
@click.option("--gpus", "n_gpus", type=click.IntRange(min=1), help="How many GPUs there are [as many as the ranks].")
@click.option("--gpu-name", default="", help="The GPU's name, as nvidia-smi says it.")
@click.option("--free-gib", type=_SIZE, help="What each GPU has free before the launch [all of it].")
@click.option("--engine-version", default="", help='vLLM version, also loose: "0.10", "0.11.x" [the newest known].')
@click.option("--env", "environment", multiple=True, metavar="NAME=VALUE", help="Environment variable of the engine.")
@json_option
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def plan_command(as_json: bool, **given: Any) -> int:
    """Predict weights, KV cache and peaks per GPU for the `vllm serve` FLAGS that follow `--`.

    Exit code 0: fits; 1: tight; 2: does not fit; 4: bad input.
    """
    answer = make_plan(**given)
    show(json.dumps(answer.document(), ensure_ascii=False) if as_json else "\n".join(answer.lines()))
    return answer.plan.state.exit_code


def make_plan(
    *,
    checkpoint: str | None,
    alias: str | None,
    config: Path | None,
    weights_bytes: int | None,
    gpu_memory_gib: float | None,
    n_gpus: int | None,
    gpu_name: str,
    free_gib: float | None,
    engine_version: str,
    environment: tuple[str, ...],
    flags: tuple[str, ...],
) -> OfflinePlan:
    """The plan of a command line; everything that makes no sense is refused by name (BadParameter)."""
    if (checkpoint is None) == (config is None):
        raise BadParameter("either --checkpoint DIR or --config config.json is needed")
    for name, size in (("--gpu-memory-gib", gpu_memory_gib), ("--free-gib", free_gib)):
        if size is not None and not math.isfinite(size):
            raise BadParameter(f"{name} {size}: a size in GiB is needed")
    if engine_version and not re.search(r"\d+\.\d+", engine_version):  # as the newest one it would be planned for
        raise BadParameter(f"--engine-version {engine_version}: expected a version such as 0.15, 0.11.x or 0.1x")
    given = PlanInput(
        flags=flags,
        engine_version=engine_version,
        environment=_environment(environment),
        gpu=GpuFigures(memory_gib=gpu_memory_gib, n_gpus=n_gpus, name=gpu_name, free_gib=free_gib),
        config=_read_config(config) if config else None,
        weights_bytes=weights_bytes,
        checkpoint=checkpoint,
    )
    host = _host(alias, checkpoint)
    entries = read_ledger(default_runs_dir(), alias) if alias else ()
    learnt = calibrate(entries, model=Path(checkpoint or "").name, max_num_seqs=_asked_sequences(flags))
    try:
        planned = plan_offline(host, given, calibration=learnt)
        return planned.model_copy(update={"extra": {**planned.extra, **_ledger(entries, learnt)}})
    except UnexpectedAnswer as error:
        raise BadParameter(error.message, host=error.host, hint=error.hint) from error
    finally:
        if host is not None:
            host.close()


def _asked_sequences(flags: tuple[str, ...]) -> int | None:
    value = parse_serve_arguments(flags).value("--max-num-seqs")
    return value if isinstance(value, int) else None


def _ledger(entries: Sequence[LedgerEntry], learnt: Calibration | None) -> dict[str, Any]:
    """Earlier launches on the host: predicted against actual, and what they taught this plan."""
    if not entries:
        return {}
    told = {"calibration": learnt.model_dump(), "calibrated_by": calibration_note(learnt, entries)} if learnt else {}
    return {"ledger": [entry.model_dump() for entry in entries], **told}


def _host(alias: str | None, checkpoint: str | None) -> Host | None:
    if alias is not None:
        from opslib.app.binding import check_alias, open_bound_host  # noqa: PLC0415 - not for a plan without a host

        check_alias(alias)
        return open_bound_host(alias)
    return open_host(HostSettings(alias="this machine", address=LOCAL)) if checkpoint else None


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadParameter(f"{path} can't be read: {reason_of(error)}") from error
    except (ValueError, RecursionError) as error:
        raise BadParameter(f"{path} is no JSON: {error}") from error
    if not isinstance(config, dict):
        raise BadParameter(f"{path} is no JSON object")
    return config


def _environment(words: tuple[str, ...]) -> dict[str, str]:
    pairs = [word.partition("=") for word in words]
    wrong = [name for name, equals, _ in pairs if not equals or not name]
    if wrong:
        raise BadParameter(f"--env {wrong[0]}: NAME=VALUE is needed")
    return {name: value for name, _, value in pairs}
