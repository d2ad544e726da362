"""Changes as values: what would be done, how it is checked, how it is undone."""

from opslib.domain.states import Value


class FileChange(Value):
    """A file to be written: its whole new content, and a unified diff against what is there."""

    path: str
    content: str
    mode: int = 0o644
    owner: str | None = None
    diff: str = ""


class Step(Value):
    """One step of a plan: a file change or a command, its check, and its undo."""

    title: str
    file: FileChange | None = None
    command: tuple[str, ...] | None = None
    sudo: bool = True
    check: tuple[str, ...] | None = None  # exits 0 when the step holds
    undo: str = ""  # what an operator would type


class Plan(Value):
    """An ordered change of one host; empty when nothing needs to change."""

    host: str
    title: str
    steps: tuple[Step, ...] = ()

    @property
    def diff(self) -> str:
        """All file diffs, one after the other."""
        return "\n".join(step.file.diff for step in self.steps if step.file and step.file.diff)

    @property
    def shown_diff(self) -> str:
        """The same for reading: a program that is new on the host is named, not quoted."""
        return "\n".join(_shown(step.file) for step in self.steps if step.file and step.file.diff)


def _shown(file: FileChange) -> str:
    if not (file.path.endswith(".py") and file.diff.startswith("--- /dev/null")):
        return file.diff
    return f"+++ {file.path}\n(new: a program of this kit, {len(file.content.splitlines())} lines)"
