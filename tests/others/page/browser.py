"""The page as a process of its own, and a browser that looks at it."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Error, Page, Request, expect, sync_playwright

WAIT_SECONDS = 60.0  # on a busy machine a first page takes seconds
expect.set_options(timeout=1000 * WAIT_SECONDS)
WIDTH, HEIGHT = 1280, 900  # of the browser's window, in pixels
FOR_PERSON = re.compile(r"^For (.*): (\S+)$", re.MULTILINE)
# The shell has no window and takes three quarters of the time of the whole browser.
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "chromium-browser"))), None
)


@dataclass(frozen=True)
class Served:
    """A page that is being served."""

    address: str
    """With the key in it, where it is served to one person."""
    process: subprocess.Popen[str]
    people: dict[str, str] = field(default_factory=dict)
    """The addresses that were printed for people, with their keys."""
    said: str = ""
    """All that it printed before."""

    @property
    def origin(self) -> str:
        place = urlsplit(self.address)
        return f"{place.scheme}://{place.netloc}"

    def of(self, person: str) -> "Served":
        """The same page by the address of a person."""
        return Served(self.people[person], self.process)

    def stop(self) -> tuple[int, str]:
        """Press Ctrl-C; the exit code, and what the command had said besides the address."""
        self.process.send_signal(signal.SIGINT)
        said, _ = self.process.communicate(timeout=WAIT_SECONDS)
        return self.process.returncode, said


@contextmanager
def served(
    environment: Mapping[str, str],
    *arguments: str,
    program: Sequence[str] = ("-m", "trinity_db"),
    folder: Path | None = None,
) -> Iterator[Served]:
    """`trinity-db page` on the store that the environment names, killed at the end if it still runs.

    Args:
        arguments: of the command.
        program: what Python runs in place of the package, with the same arguments.
        folder: in which it works; by itself that of the test.
    """
    # NiceGUI behaves otherwise in a process that it takes for a test.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    process = subprocess.Popen(
        [sys.executable, *program, "page", "--port", "0", *arguments],
        env={**inherited, **environment},
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        said = "".join(takewhile("Press Ctrl-C to end the page.\n".__ne__, process.stdout))
        address = re.search(r"^Open (\S+)\n\Z|^(\S+) is open to .*\n\Z", said, re.MULTILINE)
        assert address is not None, said
        yield Served(address[1] or address[2], process, dict(FOR_PERSON.findall(said)), said)
    finally:
        process.kill()
        process.communicate()


@contextmanager
def chromium() -> Iterator[Browser]:
    """A headless Chromium; skips the test where there is none."""
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed; apt-get install chromium-headless-shell")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Profile:
    """A browser context that tests use one after another, so that the page's files are loaded once."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._context: BrowserContext | None = None

    def context(self) -> BrowserContext:
        """The context, without cookies and open pages; a new one if a test has closed it."""
        if self._context is None:
            self._context = self._browser.new_context(viewport={"width": WIDTH, "height": HEIGHT})
            self._context.on("close", self._forget)
        return self._context

    def leave(self) -> None:
        """Close the pages of a test, and forget what the browser has stored for it."""
        if self._context is None:
            return
        for page in self._context.pages:
            with suppress(Error):  # the server has ended, so there is no page that has a storage
                page.evaluate("localStorage.clear()")
            page.close()
        self._context.clear_cookies()

    def _forget(self, context: BrowserContext) -> None:
        self._context = None


@dataclass
class Visit:
    """A person with a browser of their own, and what went wrong in it."""

    served: Served
    page: Page
    complaints: list[str] = field(default_factory=list)
    requested: list[str] = field(default_factory=list)

    @classmethod
    def begin(cls, browser: Browser, served: Served, width: int = WIDTH) -> "Visit":
        """Open the printed address in a context of its own."""
        return cls.within(browser.new_context(viewport={"width": width, "height": HEIGHT}), served)

    @classmethod
    def within(cls, context: BrowserContext, served: Served) -> "Visit":
        """Open the printed address in a context."""
        context.set_default_timeout(1000 * WAIT_SECONDS)
        visit = cls(served, context.new_page())
        visit.page.on("pageerror", lambda error: visit.complaints.append(str(error)))
        visit.page.on("dialog", lambda dialog: visit.complaints.append(f"dialog {dialog.message}"))
        visit.page.on(
            "console", lambda said: visit.complaints.append(said.text) if said.type == "error" else None
        )
        visit.page.on("request", visit._note)
        visit.page.goto(served.address)
        visit.page.wait_for_selector("h1")
        return visit

    def open(self, path: str) -> Page:
        """Another page by its link."""
        self.page.goto(self.served.origin + path)
        self.page.wait_for_selector("h1")
        return self.page

    def rows(self, caption: str) -> list[list[str]]:
        """What a table says, row by row."""
        table = self.page.get_by_role("region", name=caption, exact=True)
        return [row.locator("th, td").all_inner_texts() for row in table.locator("tbody tr").all()]

    def facts(self) -> dict[str, str]:
        """What the head of a page says."""
        names, values = (self.page.locator(f".facts {tag}").all_inner_texts() for tag in ("dt", "dd"))
        return dict(zip(names, values, strict=True))

    def elsewhere(self) -> list[str]:
        """Requests that left the page's own address."""
        own = (self.served.origin, self.served.origin.replace("http", "ws", 1), "data:", "blob:")
        return [url for url in self.requested if not url.startswith(own)]

    def _note(self, request: Request) -> None:
        self.requested.append(request.url)


def home_of(folder: Path) -> dict[str, str]:
    """An environment whose home is a folder, so that no store of the machine is touched."""
    return {"TRINITY_DB_HOME": str(folder)}
