"""One JupyterLab, one browser and one deploy by hand for all browser tests."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.rig.skip import or_skip

VIEWPORT = {"width": 1280, "height": 1000}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A running JupyterLab over a copy of the notebooks."""
    from tests.browser.lab import running_lab

    with or_skip(running_lab(tmp_path_factory.mktemp("lab"))) as running:
        yield running


@pytest.fixture(scope="module")  # ends with the module: its event loop would forbid asyncio.run to others
def browser(lab: Any) -> Iterator[Any]:
    """Headless Chromium."""
    from playwright.sync_api import expect

    from tests.browser.lab import chromium

    expect.set_options(timeout=20_000)
    with chromium() as running:
        yield running


@pytest.fixture
def open_notebook(lab: Any, browser: Any) -> Iterator[Any]:
    """Opens a notebook in a page of its own; its kernel ends with the test."""
    with _opener(lab, browser) as opener:
        yield opener


@contextmanager
def _opener(lab: Any, browser: Any) -> Iterator[Any]:
    from tests.browser.lab import NotebookPage

    contexts = []

    def opener(path: str, *, kernel: bool = True) -> Any:
        context = browser.new_context(viewport=VIEWPORT)
        context.set_default_timeout(30_000)
        contexts.append(context)
        if not kernel:
            context.route(re.compile("/api/(sessions|kernels)"), lambda route: route.abort())
        return NotebookPage(lab, context.new_page(), path, kernel=kernel)

    try:
        yield opener
    finally:
        for context in contexts:
            context.close()
        lab.end_kernels()


@pytest.fixture(scope="module")
def deployed(lab: Any, browser: Any) -> Path:
    """`90-deploy` on sampler-oom, cell by cell as a person runs it; gives the record's folder."""
    with _opener(lab, browser) as opener:
        book = opener("notebooks/90-deploy.ipynb")
        book.run('host = "rehearsal"')
        book.run("parameter_form(")
        book.type_in("apply_remedies", "[]")
        book.type_in("benchmark_repeats", "1")  # nothing is compared here, and a busy machine is not what is tested
        book.type_in("concurrency_levels", "[1, 4]")
        book.choose("consent", "ask")
        for source in ("begin_run(", "verify_download(run)", "plan_memory(run)", "plan_unit(run)"):
            book.run(source)
        book.answer("await confirm(run)", "Apply")
        for source in ("install(run)", "await launch(run)", "investigate(run)"):
            book.run(source)
        book.answer("await remedy(run)", "Apply")
        for source in ("await relaunch(run)", "await benchmark(run)", "outcome(run)"):
            book.run(source)
        book.save()
        return lab.kept_record("90-deploy")
