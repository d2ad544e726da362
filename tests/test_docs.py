"""The pages under docs/: complete indexes, and links that lead somewhere."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def test_every_decision_is_in_the_index():
    """docs/decisions/README.md names each page there once."""
    named = re.findall(r"\]\(([a-z-]+\.md)\)", (DOCS / "decisions/README.md").read_text())
    assert sorted(named) == sorted(path.name for path in (DOCS / "decisions").glob("*.md") if path.name != "README.md")


def test_links_between_pages_lead_somewhere():
    """Every relative link of a page under docs/ names something that exists."""
    for page in DOCS.rglob("*.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
