"""The chat with SmolLM2, used as a person would."""

import json
import re

from conftest import ask, done, settings, streaming
from playwright.sync_api import expect


def answers(page):
    return page.locator(".message.assistant .text")


def test_an_answer_streams_and_says_what_it_cost(open_page):
    page = open_page()
    settings(page, temperature="0", max_tokens="24")
    ask(page, "Name three colours.")
    expect(answers(page)).to_have_count(1)
    assert len(answers(page).inner_text()) > 10
    stats = page.locator(".message .stats").inner_text()
    assert re.search(r"\d+ tokens · [\d.]+ tokens/s · prompt \d+ tokens", stats) and "context" in stats, stats
    # The second turn has the first as its context; the same prompt is in the cache.
    ask(page, "And three more.")
    expect(answers(page)).to_have_count(2)
    assert "from the cache" in page.locator(".message .stats").last.inner_text()


def test_stop_keeps_what_was_written(open_page):
    page = open_page(script=streaming(["word "] * 3000, every_ms=5))
    page.get_by_label("Message", exact=True).fill("Write a very long story.")
    page.keyboard.press("Enter")
    expect(answers(page)).to_contain_text("word word")
    page.get_by_role("button", name="Stop", exact=True).click()
    done(page)
    assert "stopped" in page.locator(".message .stats").inner_text()
    assert 0 < answers(page).inner_text().count("word") < 3000
    # Escape stops, too.
    page.get_by_label("Message", exact=True).fill("Again.")
    page.keyboard.press("Enter")
    expect(answers(page).nth(1)).to_contain_text("word")
    page.get_by_label("Message", exact=True).press("Escape")
    done(page)


def test_editing_and_regenerating_make_branches(open_page):
    page = open_page()
    settings(page, max_tokens="8", temperature="1")
    ask(page, "Say a word.")
    page.get_by_role("button", name="Regenerate").click()
    done(page)
    branch = page.locator(".message.assistant .branch")
    expect(branch).to_have_text("2 of 2")
    second = answers(page).inner_text()
    page.get_by_role("button", name="Previous branch").click()
    expect(branch).to_have_text("1 of 2")
    page.get_by_role("button", name="Next branch").click()
    assert answers(page).inner_text() == second
    page.get_by_role("button", name="Edit").click()
    page.get_by_label("Edit the message").fill("Say another word.")
    page.get_by_role("button", name="Send as a new branch").click()
    done(page)
    expect(page.locator(".message.user .branch")).to_have_text("2 of 2")
    expect(page.locator(".message.user .text")).to_have_text("Say another word.")
    page.get_by_role("button", name="Previous branch").click()
    expect(page.locator(".message.user .text")).to_have_text("Say a word.")
    page.get_by_role("button", name="Delete this message").first.click()
    expect(page.locator(".message.user .text")).to_have_text("Say another word.")


def test_history_is_kept_exported_imported_and_deleted(open_page, tmp_path):
    page = open_page(script=streaming(["**bold** answer"]))
    ask(page, "First question")
    page.get_by_role("button", name="New chat").click()
    ask(page, "Second question")
    page.reload()
    expect(page.locator(".conversations .open")).to_have_text(["Second question", "First question"])
    expect(answers(page).locator("strong")).to_have_text("bold")
    with page.expect_download() as download:
        page.get_by_role("button", name="Export").click()
    file = tmp_path / "chats.json"
    download.value.save_as(file)
    assert len(json.loads(file.read_text())["conversations"]) == 2
    page.get_by_role("button", name="Delete the chat Second question").click()
    expect(page.locator(".conversations .open")).to_have_text(["First question"])
    page.get_by_role("button", name="Delete all").click()
    expect(page.locator(".conversations .open")).to_have_count(0)
    page.get_by_label("File to import").set_input_files(file)
    expect(page.locator(".conversations .open")).to_have_count(2)
    for text, why in [("{", "not JSON"), ("{}", "no conversations"), (json.dumps({"format": "sconce-chats", "conversations": [{"nodes": [{"id": "a", "role": "user", "parent": "b"}]}]}), "without its context")]:
        page.get_by_label("File to import").set_input_files({"name": "x.json", "mimeType": "application/json", "buffer": text.encode()})
        expect(page.locator(".composer .stats")).to_contain_text(why)
    expect(page.locator(".conversations .open")).to_have_count(2)


def test_a_schema_holds_and_settings_are_checked(open_page):
    page = open_page()
    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 99}}, "required": ["name", "age"], "additionalProperties": False}
    settings(page, schema=json.dumps(schema), temperature="0", max_tokens="60", system="You answer in JSON.")
    ask(page, "A cat as JSON.")
    assert json.loads(answers(page).inner_text()).keys() == {"name", "age"}
    settings(page, schema="{")
    page.get_by_label("Message", exact=True).fill("Again.")
    page.keyboard.press("Enter")
    expect(page.locator(".composer .stats")).to_contain_text("not valid JSON")


def test_a_person_types_the_result_of_a_tool(open_page):
    page = open_page()
    parameters = {"type": "object", "properties": {"city": {"enum": ["Berlin", "Paris"]}}, "required": ["city"], "additionalProperties": False}
    tools = [{"type": "function", "function": {"name": "weather", "description": "The weather of a city", "parameters": parameters}}]
    settings(page, tools=json.dumps(tools), tool_choice="required", temperature="0", max_tokens="60")
    ask(page, "How is the weather in Paris?")
    expect(page.locator(".call-name code").first).to_have_text("weather")
    assert json.loads(page.locator(".call pre").first.inner_text())["city"] in ("Berlin", "Paris")
    settings(page, tool_choice="none")
    for field in page.get_by_label("Result of weather").all():
        field.fill("Sunny, 21 degrees.")
    page.get_by_role("button", name="Send results").click()
    done(page)
    expect(page.locator(".message.tool .text").first).to_have_text("Sunny, 21 degrees.")
    assert len(answers(page).last.inner_text()) > 3


def test_reasoning_is_folded_and_markdown_is_shown(open_page):
    text = "# Title\n\n- a\n- **b**\n  1. c\n\n```python\nprint('x')\n```\n\n| a | b |\n|---|---:|\n| 1 | 2 |\n\n> quote\n\n- [x] done\n\nA [link](https://example.org/) and `code`.\n"
    parts = [{"reasoning_content": "First "}, {"reasoning_content": "think."}] + re.findall(r"(?s).{1,3}", text)
    page = open_page(script=streaming(parts))
    ask(page, "Show me.")
    body = answers(page)
    expect(body.locator("h3")).to_have_text("Title")
    expect(body.locator("> ul > li strong")).to_have_text("b")
    expect(body.locator("ul ol li")).to_have_text("c")
    expect(body.locator("pre")).to_have_text("print('x')")
    expect(body.locator("td.align-right")).to_have_text("2")
    expect(body.locator("blockquote")).to_have_text("quote")
    expect(body.get_by_role("checkbox", name="done")).to_be_checked()
    expect(body.locator("a")).to_have_attribute("href", "https://example.org/")
    expect(body.locator("p > code")).to_have_text("code")
    assert page.locator(".assistant details.reasoning").get_attribute("open") is None
    page.locator(".assistant details.reasoning summary").click()
    expect(page.locator(".assistant .thoughts")).to_have_text("First think.")
    # What was streamed looks the same as what is kept.
    streamed = body.inner_text()
    page.reload()
    expect(body).to_have_count(1)
    assert body.inner_text() == streamed
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    body.locator(".code").get_by_role("button", name="Copy").click()
    assert page.evaluate("navigator.clipboard.readText()") == "print('x')"


def test_a_refused_request_says_why(open_page):
    page = open_page()
    settings(page, stop="a\nb\nc\nd", max_tokens="4")
    page.locator(".settings [name=system]").fill("long " * 9000)
    ask(page, "Hello")
    expect(page.locator(".message .bad")).to_contain_text("token")
