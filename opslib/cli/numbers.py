"""Numbers on the command line: neither infinite nor none at all."""

import math
from typing import Any

import click


class Number(click.FloatRange):
    """A number within bounds; "nan", which no bound holds back, is none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number; click's own error for what is none."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is no number.", param, ctx)
        return number
