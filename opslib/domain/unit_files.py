"""A unit as systemd reads it: its own file and the drop-ins, and which of them a change belongs into."""

from collections.abc import Callable

from opslib.domain.container import Container, container_of
from opslib.domain.states import Value
from opslib.domain.unit_file import UnitFile, parse_unit_file, render_exec_start
from opslib.errors import Refused, UnexpectedAnswer

_VENDOR = ("/usr/lib/", "/lib/", "/run/")  # a package's or a generator's files: overwritten with the next update
_DROP_IN = "50-opslib.conf"


class UnitPart(Value):
    """One file of a unit."""

    path: str
    text: str


class UnitFiles(Value):
    """All files of a unit in the order in which systemd reads them; later ones rule."""

    unit: str
    parts: tuple[UnitPart, ...]
    unit_dir: str = "/etc/systemd/system"  # where an administrator's files lie

    @property
    def text(self) -> str:
        """All files as one text, which means the same."""
        return "\n".join(part.text.rstrip("\n") + "\n" for part in self.parts)

    @property
    def merged(self) -> UnitFile:
        """The unit that all files together make."""
        return parse_unit_file(self.text)

    @property
    def container(self) -> Container | None:
        """The container that the engine runs in, None where the unit runs it itself."""
        return container_of(self.merged.engine_argv)

    def changed(self, change: Callable[[str], str], *, key: str = "ExecStart") -> UnitPart:
        """The one file that rules `key`, with `change` made to its text; the others stay as they are.

        A file that a package brought isn't touched: a drop-in takes its command over. Raises Refused for an engine
        in a container, UnexpectedAnswer where no file sets ExecStart=.
        """
        if self.container:
            raise Refused(
                f"{self.unit} runs its engine in {self.container.words}, which this kit doesn't change",
                hint="change the unit by hand, or let it run vllm itself",
            )
        ruling = [part for part in self.parts if _sets(part, key)] or [part for part in self.parts if part.text][:1]
        if not ruling:
            raise UnexpectedAnswer(f"{self.unit} has no {key}=")
        part = ruling[-1]
        if not part.path.startswith(_VENDOR):
            return UnitPart(path=part.path, text=change(part.text))
        changed = parse_unit_file(change(part.text))
        line = f"{key}={changed.value('Service', key)}\n"
        if key == "ExecStart":  # a second one would be another command: the empty one takes the first back
            line = f"ExecStart=\n{render_exec_start(changed.engine_argv)}"
        return UnitPart(path=f"{self.unit_dir}/{self.unit}.d/{_DROP_IN}", text=f"[Service]\n{line}")

    def with_engine_flag(self, name: str, value: str | None) -> UnitPart:
        """The file that holds the command, with one engine flag set (None: a flag without a value)."""
        return self.changed(lambda text: parse_unit_file(text).with_engine_flag(name, value).render())

    def without_engine_flag(self, name: str) -> UnitPart:
        """The file that holds the command, without one engine flag."""
        return self.changed(lambda text: parse_unit_file(text).without_engine_flag(name).render())


def _sets(part: UnitPart, key: str) -> bool:
    return parse_unit_file(part.text).value("Service", key) is not None
