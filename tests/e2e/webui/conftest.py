"""A real Chromium, servers for it to visit, and what a person does with the page.

With `PEGBOARD_SCREENSHOTS` set, pictures are kept in the folder that it names.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from pegboard.testing.checkpoints import ByteVocabulary, write_scripted_model

PROMPT_TOKENS = len("<user>hi\n<assistant>")
ATTACK = """## Not *markup* <b>here</b>

<script>window.hit = 1</script><img src=x onerror="window.hit = 2">
[click](javascript:window.hit=3) [data](data:text/html,x) [good](https://example.org/a?b=1)
![picture](https://example.org/x.png) <https://example.org/"onmouseover="window.hit=4>

| a | b |
|---|--:|
| `<i>` | **2** |

```html"><img src=x onerror=window.hit=5>
<iframe srcdoc="<script>parent.hit = 6</script>"></iframe>
```

1. one
   - [x] inner
2. two
"""


class Site:
    """A running server."""

    def __init__(self, url: str, key: str = "") -> None:
        self.url = url
        self.key = key

    def load(self) -> int:
        """Requests that it serves."""
        headers = {"authorization": f"Bearer {self.key}"}
        return int(httpx.get(f"{self.url}/load", headers=headers).json()["server_load"])


class Ui:
    """The page, open in a browser."""

    def __init__(self, page: Any) -> None:
        self.page = page

    def ask(self, text: str) -> Any:
        """Send a message; the answer's element."""
        self.page.fill("#input", text)
        self.page.keyboard.press("Enter")
        return self.page.locator(".assistant").last

    def settle(self) -> None:
        """Wait for the end of the answer."""
        self.page.locator("#send").wait_for(state="visible", timeout=120_000)

    def keep(self, name: str) -> None:
        """A picture, if they are wanted."""
        folder = os.environ.get("PEGBOARD_SCREENSHOTS")
        if folder:
            self.page.screenshot(path=str(Path(folder) / f"{name}.png"))


@pytest.fixture(scope="module")
def browser(repo_root: Path) -> Iterator[Any]:
    """Chromium. Not for longer than a module: Playwright's loop runs as long as it does."""
    sync_api = pytest.importorskip("playwright.sync_api")
    path = repo_root / "scripts" / "fetch_browser.py"
    spec = importlib.util.spec_from_file_location("fetch_browser", path)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    try:
        program = script.fetch()
    except script.BrowserError as error:
        pytest.skip(str(error))
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=str(program))
        yield found
        found.close()


@contextmanager
def serving(model: Path, folder: Path, *options: str) -> Iterator[str]:
    """``pegboard serve`` on a free port; its address once it answers."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    start = [sys.executable, "-Ic", "from pegboard.cli import main; raise SystemExit(main())"]
    command = [*start, "serve", str(model), "--port", str(port), *options]
    url = f"http://127.0.0.1:{port}"
    with (folder / "log").open("w") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            end = time.monotonic() + 300
            while not answers(url):
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < end, "it does not answer"
                time.sleep(0.2)
            yield url
        finally:
            process.terminate()


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture(scope="session")
def real(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The demo model, behind a key."""
    folder, key = tmp_path_factory.mktemp("real"), "a-key-of-the-test"
    options = ("--api-key", key, "--served-model-name", "SmolLM2", "-o", "max_model_len=2048")
    with serving(smollm2_path, folder, *options) as url:
        yield Site(url, key)


@pytest.fixture(scope="session")
def attack() -> str:
    """What the hostile model writes."""
    return ATTACK


@pytest.fixture(scope="session")
def hostile(attack: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A model that answers "hi" with the attack."""
    folder = tmp_path_factory.mktemp("hostile")
    ids = ByteVocabulary().ids(attack.encode())
    model = write_scripted_model(folder / "model", ids, prompt_tokens=PROMPT_TOKENS)
    with serving(model, folder, "-o", "platform=null", "--served-model-name", "scripted") as url:
        yield Site(url)


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Ui]]:
    """Opens the page of a server in a fresh profile. No script may fail, nothing may break the
    policy, and nothing may be asked of another server."""
    contexts, faults = [], []

    def open_page(site: Site, key: str = "", **options: Any) -> Ui:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        contexts.append(context)
        context.set_default_timeout(60_000)
        if key:
            context.add_init_script(f"sessionStorage.setItem('pegboard.key', '{key}')")
        page = context.new_page()
        own = (site.url, f"blob:{site.url}")
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("dialog", lambda dialog: faults.append(f"dialog {dialog.message}"))
        page.on("console", lambda m: faults.append(m.text) if "Security" in m.text else None)
        page.on("request", lambda r: None if r.url.startswith(own) else faults.append(r.url))
        page.goto(f"{site.url}/ui")
        return Ui(page)

    yield open_page
    for context in contexts:
        context.close()
    assert not faults
