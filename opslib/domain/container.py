"""Whether a command line runs its engine inside a container: that is recognised and said, and never changed."""

import posixpath
from collections.abc import Sequence

from opslib.domain.states import Value

_RUNTIMES = ("docker", "podman", "nerdctl")
# fmt: off
_WITH_VALUE = {  # options of `run`
    "-e", "--env", "--env-file", "-v", "--volume", "--mount", "-p", "--publish", "--name", "--gpus", "--device",
    "--network", "--net", "--ipc", "--shm-size", "--ulimit", "-u", "--user", "-w", "--workdir", "--runtime",
    "--entrypoint", "-l", "--label", "--memory", "-m", "--cpus", "--restart", "--hostname", "-h", "--cgroups",
    "--sdnotify", "--security-opt", "--cap-add", "--log-driver", "--log-opt", "--pull", "--add-host", "--pid",
    "--cidfile",
}
# fmt: on


class Container(Value):
    """A container that a unit runs: the program, the image, and whether the client leaves it behind (`--detach`)."""

    runtime: str
    image: str = ""
    is_detached: bool = False

    @property
    def words(self) -> str:
        """In short: "docker (vllm/vllm-openai:v0.15.1)"."""
        return f"{self.runtime} ({self.image})" if self.image else self.runtime


def container_of(argv: Sequence[str]) -> Container | None:
    """The container that a unit's command line runs; None where it runs the engine itself.

    >>> container_of("/usr/bin/docker run --rm --gpus all vllm/vllm-openai --model m".split()).words
    'docker (vllm/vllm-openai)'
    >>> container_of(["/opt/vllm/bin/vllm", "serve", "/srv/docker/run"]) is None
    True
    """
    programs = [posixpath.basename(word) for word in argv]
    if len(programs) > 1 and programs[0] in {"env", "sudo"}:
        return container_of(argv[1:])
    if not programs or programs[0] not in _RUNTIMES:
        return None
    if "run" not in argv:  # `docker start -a NAME`, `docker compose up`
        return Container(runtime=programs[0], is_detached=bool({"-d", "--detach"} & set(argv)))
    words = iter(argv[argv.index("run") + 1 :])
    is_detached, image = False, ""
    for word in words:
        if not word.startswith("-"):
            image = word
            break
        name, equals, value = word.partition("=")
        is_detached |= name in {"-d", "--detach"} and value != "false"
        is_detached |= not name.startswith("--") and "d" in name[1:] and name not in _WITH_VALUE  # -dit
        if name in _WITH_VALUE and not equals:
            next(words, None)
    return Container(runtime=programs[0], image=image, is_detached=is_detached)
