"""Makes the images of docs/page.md from real answers: screenshots.py FOLDER."""

import os
import sys
import time
from pathlib import Path

from conftest import FLAGS, URL, ask, settings
from playwright.sync_api import sync_playwright


def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=os.environ["SCONCE_CHROMIUM"], args=FLAGS)

        def shot(panel, theme, use):
            context = browser.new_context(viewport={"width": 1200, "height": 760}, color_scheme=theme)
            page = context.new_page()
            page.goto(f"{URL}/#/{panel}")
            page.locator("#status", has_text="ready").wait_for()
            use(page)
            page.evaluate("document.activeElement.blur()")
            page.screenshot(path=folder / f"page-{panel}.png")
            context.close()

        def chat(page):
            settings(page, temperature="0", max_tokens="160")
            page.evaluate("document.querySelectorAll('.settings details').forEach((details, i) => (details.open = i === 0))")
            ask(page, "Write a Python function that adds two numbers, and explain it in one sentence.")

        def models(page):
            page.request.post(f"{URL}/v1/embeddings", data={"model": "minilm", "input": ["A text."] * 8})
            page.get_by_role("article", name="minilm", exact=True).get_by_text("Plan, op by op").click()
            page.locator(".plan").wait_for()
            page.evaluate("document.querySelector('[aria-label=minilm]').scrollIntoView()")
            time.sleep(3)

        shot("chat", "light", chat)
        shot("models", "dark", models)
        browser.close()


main(Path(sys.argv[1]))
