"""A unit as systemd reads it: its own file and the drop-ins, and which of them a change belongs into."""

import posixpath
from collections.abc import Callable

from opslib.domain.container import Container, container_of
from opslib.domain.states import Value
from opslib.domain.unit_file import UnitFile, parse_unit_file
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

        A file that a package brought, or that is a template's for many instances, isn't touched: a drop-in takes its
        command over, in the same wording. Raises Refused for an engine in a container and where a drop-in has cleared
        the command, UnexpectedAnswer where no file sets ExecStart=.
        """
        if self.container:
            raise Refused(
                f"{self.unit} runs its engine in {self.container.words}, which this kit doesn't change",
                hint="change the unit by hand, or let it run vllm itself",
            )
        part = self._ruling(key)
        if not self._is_shared(part):
            return UnitPart(path=part.path, text=change(part.text))
        changed = parse_unit_file(change(part.text))
        line = f"{key}={changed.value('Service', key)}\n"
        if key == "ExecStart":  # a second one would be another command: the empty one takes the first back
            line = f"ExecStart=\n{changed.command_text}"
        # Drop-ins of all directories are read in the order of their names, systemd.unit(5).
        name = posixpath.basename(part.path)
        is_later = name.endswith(".conf") and name >= _DROP_IN
        name = f"{name.removesuffix('.conf')}.opslib.conf" if is_later else _DROP_IN
        return UnitPart(path=f"{self.unit_dir}/{self.unit}.d/{name}", text=f"[Service]\n{line}")

    def _ruling(self, key: str) -> UnitPart:
        """The file whose word on `key` counts; of several commands, that of the engine."""
        counted: list[UnitPart] = []
        for part in self.parts:
            if (is_set := _sets(part, key)) or _clears(part, key):
                counted = [*([] if _clears(part, key) else counted), *([part] if is_set else [])]
                cleared = "" if is_set or counted else part.path
        if key == "ExecStart" and not counted:
            if any(_sets(part, key) for part in self.parts):
                raise Refused(f"{cleared} clears the ExecStart= of {self.unit}", hint="give it a command in that file")
            raise UnexpectedAnswer(f"{self.unit} has no {key}=")
        engines = [part for part in counted if key == "ExecStart" and parse_unit_file(part.text).serve_arguments]
        ruling = engines or counted or [part for part in self.parts if part.text][:1]
        if not ruling:
            raise UnexpectedAnswer(f"{self.unit} has no {key}=")
        return ruling[-1]

    def _is_shared(self, part: UnitPart) -> bool:
        """Whether a package overwrites the file, or other instances of a template have it as well."""
        is_instance = "@" in self.unit and "@." not in self.unit
        return part.path.startswith(_VENDOR) or (is_instance and "@." in part.path)

    def with_engine_flag(self, name: str, value: str | None) -> UnitPart:
        """The file that holds the command, with one engine flag set (None: a flag without a value)."""
        return self.changed(lambda text: parse_unit_file(text).with_engine_flag(name, value).render())

    def without_engine_flag(self, name: str) -> UnitPart:
        """The file that holds the command, without one engine flag."""
        return self.changed(lambda text: parse_unit_file(text).without_engine_flag(name).render())


def _sets(part: UnitPart, key: str) -> bool:
    return parse_unit_file(part.text).value("Service", key) is not None


def _clears(part: UnitPart, key: str) -> bool:
    entries = parse_unit_file(part.text).entries
    return any((entry.section, entry.key, entry.value) == ("Service", key, "") for entry in entries)
