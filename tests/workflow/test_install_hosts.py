"""The same installation on the rehearsal host and on a real Debian, as root and through sudo."""

import json
import time

import pytest

from opslib.domain.unit_file import render_exec_start
from opslib.errors import Refused
from opslib.workflow.facts import gather_identity, gather_listeners, gather_unit_status
from opslib.workflow.install import apply_plan, plan_install, read_unit_text, undo, unit_text_for
from opslib.workflow.unit_files import gather_unit_files, plan_flag, refuse_bad_flag
from opslib.workflow.verify import verify_checkpoint
from tests.conftest import opened

HOSTS = (
    "rehearsal",
    pytest.param("realhost", marks=pytest.mark.realhost),
    pytest.param("realhost-ops", marks=pytest.mark.realhost),
)
WORDS = [
    '{"a": "b c"}',
    "100%",
    "$HOME ${X} $$",
    "it's",
    'say "x"',
    ";",
    "#no",
    "",
    "a\nb\tc",
    "back\\slash",
    "größe 漢",
    "%h %%",
]
ARGV_WRITER = "import json,sys; open(sys.argv[1],'w').write(json.dumps(sys.argv[2:]))"


@pytest.fixture(scope="module", params=HOSTS)
def host(request):
    """Each kind of host whose units may be changed."""
    if request.param == "rehearsal":
        settings = request.getfixturevalue("rehearsal").settings
    else:
        debian = request.getfixturevalue("debian")
        settings = debian.settings if request.param == "realhost" else debian.ops_settings
    with opened(settings) as opened_host:
        yield opened_host


def install(host, unit, text):
    return apply_plan(host, plan_install(host, unit=unit, unit_text=text))


def test_who_answers_is_known_in_one_round_trip(host):
    """A real boot id and the login that the settings name."""
    who = gather_identity(host)
    assert len(who.boot_id) == 36
    assert who.asked_at.utcoffset().total_seconds() == 0


def test_a_unit_nobody_installed_is_not_found(host):
    """`systemctl show` exits 0; LoadState tells."""
    assert not gather_unit_status(host, "opslib-never-there").is_installed
    assert gather_listeners(host, 59999) == ()


def test_an_installed_unit_is_loaded_changed_and_taken_back(host):
    """Install, change by one flag, undo both: systemd agrees after each, and nothing is left."""
    text = unit_text_for(
        host, unit="opslib-try", model_path="/srv/m", flags=["--port", "8000"], gpus=[0], required_free_gib=1
    )
    first = install(host, "opslib-try", text)
    assert first.state == "ok", first.steps
    status = gather_unit_status(host, "opslib-try")
    assert (status.is_installed, status.need_daemon_reload, status.active_state) == (True, False, "inactive")
    assert plan_install(host, unit="opslib-try", unit_text=text).steps == ()
    second = apply_plan(host, plan_flag(host, "opslib-try", "--max-num-seqs", "256"))
    assert "--max-num-seqs 256" in read_unit_text(host, "opslib-try")
    undo(host, second)
    assert read_unit_text(host, "opslib-try") == text
    undo(host, first)
    assert not gather_unit_status(host, "opslib-try").is_installed


FRAGMENT = "# by hand\n[Service]\nExecStart=/usr/bin/vllm   serve /srv/a --port 8000\nRestart=no\n"
DROP_IN = "[Service]\n# ours since May\nExecStart=\nExecStart=/usr/bin/vllm serve '/srv/a b' \\\n   --port=8001 --dtype auto\n"
IN_DOCKER = "[Service]\nExecStart=/usr/bin/docker run --rm --gpus all vllm/vllm-openai:v0.15.1 --model a --port 8000\n"


def test_a_unit_of_somebody_else_is_changed_by_one_flag(host):
    """The drop-in that rules the command gets the flag, systemd runs it with that; all other bytes stay."""
    sudo, unit = host.settings.has_sudo, "opslib-theirs"
    path, folder = f"{host.settings.unit_dir}/{unit}.service", f"{host.settings.unit_dir}/{unit}.service.d"
    assert host.run(("mkdir", "--parents", "--mode=0755", folder), sudo=sudo).is_success
    host.write_file(path, FRAGMENT.encode(), sudo=sudo)
    host.write_file(f"{folder}/local.conf", DROP_IN.encode(), sudo=sudo)
    assert host.run(("systemctl", "daemon-reload"), sudo=sudo).is_success
    report = apply_plan(host, plan_flag(host, unit, "--max-num-seqs", "64"))
    assert report.state == "ok", report.steps
    files = gather_unit_files(host, unit)
    assert [part.path for part in files.parts] == [path, f"{folder}/local.conf"]
    assert files.parts[0].text == FRAGMENT
    assert files.parts[1].text.replace("--max-num-seqs 64", "").split() == DROP_IN.split()
    assert files.merged.serve_arguments == ("/srv/a b", "--port=8001", "--max-num-seqs", "64", "--dtype", "auto")
    shown = host.run(("systemctl", "show", "--property=ExecStart", "--", f"{unit}.service")).text
    assert "--max-num-seqs 64" in shown
    assert "/usr/bin/vllm   serve" not in shown


def test_a_flag_that_the_installed_engine_would_refuse_is_refused(host):
    """A misspelt flag and a value that can't be read are refused before anything is planned; a good one is not."""
    unit = "opslib-flags"
    text = f"[Service]\nExecStart={host.settings.vllm} serve /srv/a --port 8000\n"
    assert install(host, unit, text).state == "ok"
    with pytest.raises(Refused, match=r"no flag --max-num-sequences; did you mean --max-num-seqs\?"):
        refuse_bad_flag(host, unit, "--max-num-sequences", "64")
    with pytest.raises(Refused, match="--max-num-seqs=many: invalid"):
        refuse_bad_flag(host, unit, "--max-num-seqs", "many")
    refuse_bad_flag(host, unit, "--max-num-seqs", "64")
    assert read_unit_text(host, unit) == text


def test_an_engine_in_a_container_is_said_and_not_changed(host):
    """Docker is recognised: a change of a flag is refused, and nothing is written."""
    assert install(host, "opslib-docker", IN_DOCKER).state == "ok"
    assert gather_unit_files(host, "opslib-docker").container.words == "docker (vllm/vllm-openai:v0.15.1)"
    with pytest.raises(Refused, match="docker"):
        plan_flag(host, "opslib-docker", "--max-num-seqs", "64")
    assert read_unit_text(host, "opslib-docker") == IN_DOCKER


def test_arguments_reach_the_program_byte_equal(host):
    """How systemd itself reads the quoted ExecStart: JSON, %, $, ;, #, quotes, newlines, non-ASCII."""
    target = f"/tmp/opslib-argv-{int(time.time() * 1000)}.json"
    argv = ["/usr/bin/env", "python3", "-c", ARGV_WRITER, target, *WORDS]
    text = f"[Service]\nType=oneshot\n{render_exec_start(argv)}"
    report = install(host, "opslib-argv", text)
    started = host.run(("systemctl", "start", "opslib-argv.service"), sudo=host.settings.sudo, timeout_s=30)
    assert started.is_success, started.error_text
    content = host.read_file(target, sudo=host.settings.sudo)
    host.run(("rm", "--force", target), sudo=host.settings.sudo)
    undo(host, report)
    assert json.loads(content) == WORDS


def test_a_broken_unit_is_found_by_asking_again(host):
    """Nothing that cannot run is loaded; writing the file alone proves nothing."""
    report = install(host, "opslib-broken", "[Service]\nType=exec\n")
    undo(host, report)
    assert report.state == "critical"
    assert "LoadState" in report.steps[-1].detail


def test_a_missing_model_is_a_critical_report(host):
    """The on-host program runs everywhere, and a wrong path is one sentence."""
    assert verify_checkpoint(host, "/srv/models/opslib-never-there").state == "critical"
