"""A runbook's parameters as a form made from their schema; what is typed stands in the notebook's namespace at once."""

import os
import re
from collections.abc import MutableMapping
from typing import Any

import yaml

from opslib.app.given import read_value
from opslib.app.screen import Live, Screen
from opslib.domain.parameters import schema_of, validate_parameters
from opslib.errors import BadParameter
from opslib.views.parameters import bounds_of, field_note, form_status, parameters_table
from opslib.views.shown import Shown

_shown: dict[str, "ParameterForm"] = {}  # the form on the screen by runbook; a kernel has one notebook


def parameter_form(runbook: str, namespace: MutableMapping[str, Any]) -> None:
    """Show the form of `runbook` over the parameters in a notebook's `namespace` (pass `globals()`).

    Headless nobody fills it in, and nothing is shown: the parameters cell rules.
    """
    if os.environ.get("OPSLIB_HEADLESS"):
        return
    form = ParameterForm(runbook, namespace)
    _shown[runbook] = form
    form.show()


def settle_form(runbook: str) -> None:
    """Put the values that a run starts with in place of the form, so that they stay in the file."""
    form = _shown.pop(runbook, None)
    if form is not None:
        form.settle()


class ParameterForm:
    """One field per parameter; a wrong value is refused beside its field, and again by `begin_run`."""

    def __init__(self, runbook: str, namespace: MutableMapping[str, Any]) -> None:
        self.runbook = runbook
        self.namespace = namespace
        self.schema: dict[str, Any] = schema_of(runbook).model_json_schema()["properties"]
        self.before = {name: namespace[name] for name in self.schema if name in namespace}
        self._screen = Screen()
        self._widget: Any = None

    @property
    def values(self) -> dict[str, Any]:
        """The parameters as they stand in the notebook."""
        return {name: self.namespace[name] for name in self.before}

    def problems(self) -> dict[str, str]:
        """What is wrong with the values, by parameter; empty when a run may start."""
        try:
            validate_parameters(self.runbook, self.values)
        except BadParameter as error:
            lines = [line.partition(":") for line in str(error).splitlines()]
            return {re.split(r"[.\[]", name)[0]: sentence.strip() for name, _, sentence in reversed(lines)}
        return {}

    def type_in(self, name: str, text: str) -> None:
        """Take over what was typed into a field; a text that is no value stands there as it is, and is refused."""
        if not text.strip() and _is_optional(self.schema[name]):
            self.namespace[name] = None
            return
        try:
            self.namespace[name] = read_value(self.runbook, name, text)
        except BadParameter:
            self.namespace[name] = text

    def static(self) -> Shown:
        """The values as a table that needs no kernel."""
        return parameters_table(self.runbook, self.values, self.before, self.schema)

    def show(self) -> None:
        """Show the fields; nothing waits for them."""
        self._widget = _widget(self)
        self._screen.paint(Live(self._widget, f"the form of {self.runbook} (live in JupyterLab only)"))

    def settle(self) -> None:
        """End the form: its values stay, as a table."""
        self._screen.paint(self.static())
        if self._widget is not None:
            self._widget.close()


def _is_optional(field: dict[str, Any]) -> bool:
    return any(part.get("type") == "null" for part in field.get("anyOf", ()))


def typed(value: Any) -> str:
    """A value as one would type it into a field or after `-p name=`.

    >>> typed([0, 1]), typed(None), typed("0.15"), typed({"A": "env:B"})
    ('[0, 1]', '', '0.15', '{A: env:B}')
    """
    if value is None or isinstance(value, str):
        return value or ""
    return yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("...\n").strip()


def _widget(form: ParameterForm) -> Any:
    """The form's widgets: name, field, and beside it what it means or why its value is refused."""
    from ipywidgets import HTML, GridBox, Layout, VBox  # noqa: PLC0415 - only where somebody looks

    notes: dict[str, Any] = {}
    status = HTML()

    def refresh() -> None:
        problems = form.problems()
        for name, note in notes.items():
            note.value = field_note(form.schema[name]["description"], bounds_of(form.schema[name]), problems.get(name))
        status.value = form_status(form.before, form.values, problems)

    def on_change(name: str, text: str) -> None:
        form.type_in(name, text)
        refresh()

    cells = []
    for name in form.before:
        notes[name] = HTML()
        cells += [HTML(f"<code>{name}</code>"), _field(form, name, on_change), notes[name]]
    refresh()
    columns = Layout(
        grid_template_columns="max-content minmax(180px, 260px) minmax(200px, 1fr)",
        grid_gap="0 12px",
        align_items="center",
    )
    return VBox([GridBox(cells, layout=columns), status])


def _field(form: ParameterForm, name: str, on_change: Any) -> Any:
    from ipywidgets import Dropdown, Layout, Text  # noqa: PLC0415 - only where somebody looks

    value, choices = form.namespace[name], form.schema[name].get("enum")
    layout = Layout(width="auto", margin="1px 0")
    if choices and value in choices:
        field = Dropdown(options=choices, value=value, layout=layout)
    else:
        hint = "not set" if _is_optional(form.schema[name]) else ""
        field = Text(typed(value), continuous_update=False, placeholder=hint, layout=layout)
    field.add_class(f"opslib-field-{name}")
    field.observe(lambda change: on_change(name, change["new"]), "value")
    return field
