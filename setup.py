"""Makes the package's readme of README.md: relative links and pictures become addresses below `Source`.

Everything else is in pyproject.toml. While [project.urls] has no `Source`, links keep their words alone and
pictures are left out: a package index would show them broken.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup

LINK = re.compile(r"(!?)\[((?:!\[[^\]]*\]\([^)]*\)|[^\]])*)\]\((?!https?:|#|mailto:)([^)\s]+)\)")
HERE = Path(__file__).parent


def readme(text: str, source: str | None) -> str:
    """Return the readme with absolute links."""

    def replace(match: re.Match[str]) -> str:
        is_picture, words, target = match.groups()
        words = LINK.sub(replace, words)
        if source is None:
            return "" if is_picture else words
        return f"{is_picture}[{words}]({source}/{'raw' if is_picture else 'blob'}/main/{target})"

    return LINK.sub(replace, text)


if __name__ == "__main__":
    project = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    setup(
        long_description=readme(
            (HERE / "README.md").read_text(encoding="utf-8"), project.get("urls", {}).get("Source")
        ),
        long_description_content_type="text/markdown",
    )
