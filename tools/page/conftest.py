"""Fixtures: a browser whose pages must stay silent and at home, and the servers that `run` started."""

import base64
import json
import os
import re
import struct
import zlib
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect, sync_playwright

URL = os.environ["SCONCE_URL"]
LOCKED_URL = os.environ["SCONCE_LOCKED_URL"]
LOCKED_KEY = os.environ["SCONCE_LOCKED_KEY"]
SMALL_URL = os.environ["SCONCE_SMALL_URL"]
PANELS = ["chat", "embeddings", "rerank", "classify", "tag", "images", "search", "models"]
DESKTOP, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
FLAGS = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
--disable-component-update --disable-sync""".split()
# Models are slow on a busy machine.
TIMEOUT_MS = int(os.environ.get("SCONCE_PAGE_TIMEOUT_MS", "60000"))
expect.set_options(timeout=TIMEOUT_MS)
# A request that the server refuses is an error in the console too, whatever the page does.
REFUSED = "Failed to load resource: the server responded with a status of"


@pytest.fixture(scope="session")
def browser():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=os.environ["SCONCE_CHROMIUM"], args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser):
    """Opens a page; at the end, none may have had an error or asked another server for anything."""
    contexts, problems = [], []

    def open_page(panel="chat", url=URL, viewport=DESKTOP, theme="light", script=None):
        context = browser.new_context(viewport=viewport, color_scheme=theme, accept_downloads=True)
        context.set_default_timeout(TIMEOUT_MS)
        contexts.append(context)
        if script:
            context.add_init_script(script)
        page = context.new_page()
        home = urlsplit(url).netloc

        def on_console(message):
            if message.type in ("error", "warning") and not message.text.startswith(REFUSED):
                problems.append(f"console: {message.text}")

        def on_request(request):
            parts = urlsplit(request.url)
            if parts.scheme not in ("data", "blob") and parts.netloc != home:
                problems.append(f"request: {request.url}")

        page.on("console", on_console)
        page.on("pageerror", lambda error: problems.append(f"error: {error}"))
        page.on("request", on_request)
        page.on("dialog", lambda dialog: dialog.accept())
        page.goto(f"{url}/#/{panel}")
        usable(page)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not problems, problems


@pytest.fixture
def axe():
    """Checks a page with axe-core."""
    source = Path(os.environ["SCONCE_AXE"]).read_text()

    def axe(page):
        # Not as a script of the page, which its policy would refuse.
        page.evaluate(source)
        rules = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
        found = page.evaluate("rules => axe.run(document, rules)", rules)["violations"]
        seen = [(rule["id"], [node["html"][:200] for node in rule["nodes"]][:5], rule["nodes"][0]["failureSummary"]) for rule in found]
        assert not seen, seen

    return axe


def usable(page):
    """Waits until the page can be used, and returns after how many milliseconds. Playwright's own
    waiting for a function needs eval, which the page's policy refuses."""
    page.locator("main > h2").wait_for(state="attached")
    return page.evaluate("performance.getEntriesByName('usable')[0].startTime - performance.getEntriesByType('navigation')[0].responseStart")


def go(page, panel, url=URL):
    """Shows another panel."""
    page.goto(f"{url}/#/{panel}")
    page.locator("main > h2", has_text=re.compile(f"^{panel}$", re.IGNORECASE)).wait_for(state="attached")


def ask(page, text):
    """Sends a message and waits for the whole answer."""
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")
    done(page)


def done(page):
    page.locator(".message.assistant[aria-busy]").wait_for(state="detached")
    page.get_by_role("button", name="Send", exact=True).wait_for()


def settings(page, **values):
    """Fills fields of the chat's settings."""
    page.locator(".settings").wait_for(state="attached")
    page.evaluate("document.querySelectorAll('.side:last-child, .settings details').forEach((details) => (details.open = true))")
    for name, value in values.items():
        field = page.locator(f".settings [name={name}]")
        field.select_option(value) if name == "tool_choice" else field.fill(value)


def png(width=16, height=16, colour=(220, 20, 30)):
    """An image of one colour."""
    rows = b"".join(b"\0" + bytes(colour) * width for _ in range(height))

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def data_uri(data):
    return "data:image/png;base64," + base64.b64encode(data).decode()


def streaming(parts, per_frame=1, every_ms=0):
    """A script that answers chat requests with these parts of text, streamed, instead of a model."""
    return """
      const PARTS = %s, PER_FRAME = %d, EVERY = %d;
      const realFetch = window.fetch;
      window.fetch = async (path, options) => {
        if (path !== "/v1/chat/completions") return realFetch(path, options);
        const encoder = new TextEncoder();
        const event = (delta, finish = null) =>
          encoder.encode("data: " + JSON.stringify({ choices: [{ index: 0, delta, finish_reason: finish }] }) + "\\n\\n");
        const body = new ReadableStream({
          async start(controller) {
            let isOver = false;
            options.signal.addEventListener("abort", () => {
              if (!isOver) controller.error(new DOMException("stopped", "AbortError"));
              isOver = true;
            });
            for (let i = 0; i < PARTS.length && !isOver; i += PER_FRAME) {
              for (const part of PARTS.slice(i, i + PER_FRAME)) controller.enqueue(event(typeof part === "string" ? { content: part } : part));
              await new Promise((resolve) => setTimeout(resolve, EVERY));
            }
            if (isOver) return;
            isOver = true;
            controller.enqueue(event({}, "stop"));
            controller.close();
          },
        });
        return new Response(body, { headers: { "content-type": "text/event-stream" } });
      };
    """ % (json.dumps(parts), per_frame, every_ms)
