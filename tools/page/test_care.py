"""Accessibility, hostile content, size, speed, keyboard, narrow screens."""

import json
import os
import time
from pathlib import Path

import pytest
from conftest import DESKTOP, LOCKED_URL, PANELS, PHONE, SMALL_URL, URL, ask, go, png, settings, streaming, usable
from playwright.sync_api import expect

PAGE = Path(__file__).resolve().parents[2] / "crates/server/page"
RUN = "window.pwned = true"
ATTACKS = [
    f"<script>{RUN}</script>",
    f"<img src=x onerror='{RUN}'>",
    f'"><svg/onload={RUN}>',
    f"<iframe srcdoc='<script>parent.{RUN}</script>'></iframe>",
    f"<a href='javascript:{RUN}'>x</a>",
    f"[x](javascript:{RUN})",
    f"[x](JaVaScRiPt&colon;{RUN})",
    f"[x](java\tscript:{RUN})",
    f"[x](\x01javascript:{RUN})",
    f"[x](data:text/html,<script>{RUN}</script>)",
    "[x](vbscript:x) [y](file:///etc/passwd) [z](/v1/models/unload) [w](//evil.example/x) [v](blob:x)",
    f"<javascript:{RUN}> <data:text/html,x>",
    "![x](https://evil.example/pixel.png) ![](http://evil.example/a?b)",
    f"![x](x\" onerror=\"{RUN})",
    "<link rel=stylesheet href=//evil.example/a.css><style>*{display:none}</style><base href=//evil.example>",
    "<meta http-equiv=refresh content='0;url=//evil.example'>",
    f"```<img src=x onerror={RUN}>\n</code></pre><script>{RUN}</script>\n```",
    f"```html\" onmouseover=\"{RUN}\n<script>{RUN}</script>\n```",
    f"`<img src=x onerror={RUN}>` **<b onclick={RUN}>x</b>**",
    f"| <img src=x onerror={RUN}> | b |\n|---|---|\n| <script>{RUN}</script> | [x](javascript:{RUN}) |",
    f"> - 1. # <object data=javascript:{RUN}>\n- [x] <embed src=//evil.example>",
    f"https://evil.example/<img src=x onerror={RUN}> <https://a.example/\"onclick={RUN}>",
    "&lt;script&gt; &#60;img src=x&#62; \u202e\u0000\ufeff",
    "{{constructor.constructor('alert(1)')()}} ${1+1} <%= 1 %>",
    "# a" + " " * 3000 + "b\n\n```" + " " * 3000 + "`\n\n[a](" + " " * 3000 + "b",
    "[" * 3000 + "*" * 3000 + "`" * 3000 + "> " * 500 + "- " * 500,
]
# Elements that content could only get by markup.
FORBIDDEN = "script, img, iframe, svg, object, embed, link, style, base, meta, video, audio"


def assert_harmless(page, selector):
    assert page.evaluate("window.pwned") is None
    found = page.evaluate("([selector, tags]) => [...document.querySelectorAll(selector)].flatMap((node) => [...node.querySelectorAll(tags)]).map((node) => node.outerHTML)", [selector, FORBIDDEN])
    assert not found, found
    handlers = page.evaluate("(selector) => [...document.querySelectorAll(`${selector} *`)].flatMap((node) => [...node.attributes]).filter(({name}) => name.startsWith('on')).map(({name}) => name)", selector)
    assert not handlers, handlers
    links = page.evaluate("(selector) => [...document.querySelectorAll(`${selector} a`)].map(({protocol, rel, target}) => [protocol, rel, target])", selector)
    for protocol, rel, target in links:
        assert protocol in ("http:", "https:", "mailto:") and "noopener" in rel and target == "_blank"


def test_answers_cannot_inject(open_page):
    for size in (1, 7, 100_000):
        parts = []
        for attack in ATTACKS:
            parts += [attack[i : i + size] for i in range(0, len(attack), size)] + ["\n\n"]
        page = open_page(script=streaming(parts, per_frame=400))
        ask(page, "\n".join(ATTACKS[:6]))
        assert_harmless(page, ".message")
        text = page.locator(".message.assistant .text").inner_text()
        assert "<script>" in text and "onerror" in text, "markup is shown as text"
        # What is kept, the title in the list, and reasoning.
        page.reload()
        expect(page.locator(".message.assistant .text")).to_contain_text("<script>")
        assert_harmless(page, ".chat")


def test_reasoning_calls_and_imports_cannot_inject(open_page):
    call = {"index": 0, "id": ATTACKS[1], "function": {"name": ATTACKS[1], "arguments": json.dumps({"a": ATTACKS[0]})}}
    page = open_page(script=streaming([{"reasoning_content": "".join(ATTACKS)}, {"tool_calls": [call]}]))
    ask(page, "x")
    expect(page.locator(".call-name")).to_contain_text("onerror")
    assert_harmless(page, ".message")
    nodes = [{"id": "a", "parent": None, "role": "user", "content": ATTACKS[1]}, {"id": "b", "parent": "a", "role": "assistant", "content": "\n\n".join(ATTACKS), "model": ATTACKS[1], "error": ATTACKS[1]}]
    chats = {"format": "sconce-chats", "conversations": [{"title": ATTACKS[1], "nodes": nodes, "settings": {"system": ATTACKS[1], "__proto__": {"x": 1}}}]}
    page.get_by_label("File to import").set_input_files({"name": "x.json", "mimeType": "application/json", "buffer": json.dumps(chats).encode()})
    expect(page.locator(".message.assistant .who")).to_contain_text("onerror")
    assert_harmless(page, ".chat")


def test_labels_names_and_documents_cannot_inject(open_page):
    page = open_page("classify")
    page.get_by_label("Text", exact=True).fill("a b")
    page.get_by_role("button", name="Classify").click()
    expect(page.locator(".bars")).to_contain_text("<img src=x onerror")
    assert_harmless(page, ".result")
    go(page, "tag")
    page.get_by_label("Text", exact=True).fill("ab <b>cd</b>")
    page.get_by_role("button", name="Find entities").click()
    expect(page.locator(".tagged")).to_contain_text("</b>")
    assert_harmless(page, ".result")
    go(page, "embeddings")
    page.get_by_label("Texts", exact=True).fill("\n".join(attack.replace("\n", " ")[:60] for attack in ATTACKS[:8]))
    page.get_by_role("button", name="Compare").click()
    page.locator(".map").wait_for()
    assert page.evaluate("window.pwned") is None and page.locator(".map script, .map image, .map foreignObject").count() == 0
    # The name of a model.
    go(page, "models")
    page.get_by_label("Model", exact=True).fill(os.environ["SCONCE_PAGE_MODELS"] + "/task-classify")
    page.get_by_label("Name in requests").fill(ATTACKS[1])
    page.get_by_role("button", name="Load", exact=True).click()
    card = page.get_by_role("article", name=ATTACKS[1])
    expect(card.locator(".badge").first).to_have_text("ready")
    assert_harmless(page, ".cards")
    card.get_by_role("button", name="Unload").click()
    expect(card).to_have_count(0)


def test_files_cannot_inject(open_page):
    page = open_page("search")
    page.get_by_label("New store").fill(ATTACKS[1])
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_label("Vector store", exact=True).locator("option:checked")).to_have_text(ATTACKS[1])
    name = "<img src=x onerror=pwned=1>.txt"
    page.get_by_label("Files to index").set_input_files({"name": name, "mimeType": "text/plain", "buffer": "\n\n".join(["A kitten sleeps.", *ATTACKS[:16]]).encode()})
    expect(page.locator(".files li")).to_contain_text("onerror=pwned")
    expect(page.get_by_text("is being indexed")).to_have_count(0)
    page.get_by_label("Query").fill("kitten <img src=x onerror=pwned=1>")
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.locator(".hit b").first).to_have_text(name)
    assert_harmless(page, ".work")
    page.get_by_role("button", name="Delete this store").click()
    expect(page.locator(".files")).not_to_contain_text("onerror=pwned")
    go(page, "images")
    page.get_by_label("Image file").set_input_files({"name": name, "mimeType": "image/png", "buffer": png()})
    expect(page.locator(".drop .stats")).to_contain_text("onerror")
    assert page.evaluate("window.pwned") is None and page.locator(".drop img").count() == 1


USES = {
    "embeddings": ("Compare", ".heat"),
    "rerank": ("Rank", ".bars"),
}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_axe_finds_nothing_and_nothing_is_too_wide(open_page, axe, theme, viewport):
    markdown = "# A\n\ntext [link](https://example.org) `code`\n\n```py\nx = 1\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n> quote\n\n- [x] done\n\n" + "word" * 100
    script = streaming([{"reasoning_content": "Hm."}, markdown, {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}]}])
    page = open_page(viewport=viewport, theme=theme, script=script)
    ask(page, "Hello " + "x" * 300)
    page.evaluate("document.querySelectorAll('.message details').forEach((details) => (details.open = true))")
    for panel in PANELS:
        go(page, panel)
        if panel in USES:
            page.get_by_role("button", name=USES[panel][0], exact=True).click()
            page.locator(USES[panel][1]).wait_for()
        elif panel == "models":
            page.get_by_text("Plan, op by op").first.click()
            page.locator(".plan").wait_for()
        time.sleep(0.3)
        axe(page)
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= viewport["width"], f"{panel} is {wide} pixels wide"
        main = page.evaluate("(() => { const m = document.querySelector('main'); return m.scrollWidth - m.clientWidth; })()")
        assert main <= 0, f"{panel} scrolls sideways by {main}"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_in_empty_panels_and_dialogs(open_page, axe, theme):
    for url in (SMALL_URL, LOCKED_URL):
        page = open_page(url=url, theme=theme)
        time.sleep(0.5)
        axe(page)
        if url == SMALL_URL:
            for panel in PANELS:
                go(page, panel, url)
                time.sleep(0.5)
                axe(page)


def test_the_theme_can_be_chosen(open_page):
    page = open_page(theme="light")
    background = lambda: page.evaluate("getComputedStyle(document.body).backgroundColor")
    light = background()
    page.get_by_label("Theme").select_option("dark")
    dark = background()
    assert dark != light
    page.reload()
    usable(page)
    assert background() == dark


def test_everything_works_by_keyboard(open_page):
    page = open_page(script=streaming(["An answer."]))
    settings(page)
    page.keyboard.press("Control+Home")
    page.evaluate("document.activeElement.blur()")

    def tab_to(name, most=80):
        for _ in range(most):
            page.keyboard.press("Tab")
            label = page.evaluate("(() => { const a = document.activeElement; return (a.getAttribute('aria-label') || a.labels?.[0]?.textContent || a.textContent || '').trim(); })()")
            if label == name:
                # Where the focus is can be seen.
                assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
                return
        raise AssertionError(f"{name} is not reached by Tab")

    tab_to("Skip to the content")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"
    tab_to("Message")
    page.keyboard.type("One")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("Two")
    page.keyboard.press("Enter")
    expect(page.locator(".message.assistant .text")).to_have_text("An answer.")
    assert page.locator(".message.user .text").inner_text() == "One\nTwo"
    page.reload()
    usable(page)
    tab_to("Embeddings")
    page.keyboard.press("Enter")
    expect(page.get_by_label("Texts", exact=True)).to_be_visible()
    tab_to("Compare")
    page.keyboard.press("Enter")
    page.locator(".heat").wait_for()


def test_the_page_is_small():
    files = [path for path in PAGE.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 250_000
    assert all(len(path.read_text().splitlines()) <= 300 for path in files if path.suffix == ".js")


def test_usable_at_once(open_page):
    page = open_page()
    times = []
    for _ in range(8):
        page.reload()
        times.append(usable(page))
    print("usable after, in ms:", [round(t) for t in times])
    # The goal is 100 ms on an idle machine; tests also run on slow and busy ones.
    assert min(times) < float(os.environ.get("SCONCE_PAGE_USABLE_MS", "1000")), times


SENTENCE = "Some **bold** words, `code`, and a [link](https://example.org/) in a sentence that goes on. "
BOOKS = {
    "sections": "".join(f"## Part {i}\n\n{SENTENCE * 3}\n\n- one\n- two\n\n```js\nlet x = 1;\n```\n\n" for i in range(1000)),
    "paragraph": SENTENCE * 1000,
    "code": "```python\n" + "x = compute(y, z)  # and so on\n" * 3000,
    "list": f"- {SENTENCE}\n" * 1000,
    "table": "| a | b |\n|---|---|\n" + "| some **bold** words | and `code` |\n" * 3000,
}


@pytest.mark.parametrize("book", BOOKS)
def test_ten_thousand_tokens_do_not_slow_the_tab(open_page, book):
    text = BOOKS[book]
    tokens = [text[i : i + 5] for i in range(0, 50_000, 5)]
    page = open_page(script=streaming(tokens, per_frame=10, every_ms=4))
    page.evaluate(
        """() => {
          window.frames_ = [];
          let last = performance.now();
          const tick = (now) => { window.frames_.push(now - last); last = now; requestAnimationFrame(tick); };
          requestAnimationFrame(tick);
        }"""
    )
    begun = time.time()
    ask(page, "Write a book.")
    took = time.time() - begun
    frames = page.evaluate("window.frames_")
    half = len(frames) // 2
    middle = lambda values: sorted(values)[len(values) // 2]
    late = sorted(frames[half:])
    print(f"{book}: {len(tokens)} tokens in {took:.1f} s, {len(frames)} frames, median {middle(frames):.1f} ms, first half {middle(frames[:half]):.1f}, second {middle(late):.1f}, p95 {late[int(len(late) * 0.95)]:.1f}, worst {max(frames):.0f}")
    assert len(tokens) == 10_000 and len(page.locator(".message.assistant .text").inner_text()) > 20_000
    assert middle(late) < 40 and late[int(len(late) * 0.95)] < 120, "frames got slow"
