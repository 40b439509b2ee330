"""Every panel other than the chat, used as a person would; numbers are compared with the API's."""

import os
import re

import pytest
from conftest import LOCKED_KEY, LOCKED_URL, SMALL_URL, URL, data_uri, go, png, streaming, usable
from playwright.sync_api import expect


def post(page, path, body):
    answer = page.request.post(URL + path, data=body)
    assert answer.ok, answer.text()
    return answer.json()


def submit(page):
    page.locator("main button.primary").click()
    page.locator(".result h3").first.wait_for()


def test_similar_texts_are_close(open_page):
    page = open_page("embeddings")
    texts = ["A man is eating food.", "Someone is having a meal.", "The stock market fell today."]
    page.get_by_label("Texts", exact=True).fill("\n".join(texts))
    submit(page)
    vectors = [one["embedding"] for one in post(page, "/v1/embeddings", {"model": "minilm", "input": texts})["data"]]
    shown = [[float(cell.inner_text()) for cell in row.locator("td").all()] for row in page.locator(".heat tbody tr").all()]
    for a, row in zip(vectors, shown):
        for b, value in zip(vectors, row):
            assert abs(sum(x * y for x, y in zip(a, b)) - value) < 0.006
    places = [(float(c.get_attribute("cx")), float(c.get_attribute("cy"))) for c in page.locator(".map circle").all()]
    far = lambda i, j: ((places[i][0] - places[j][0]) ** 2 + (places[i][1] - places[j][1]) ** 2) ** 0.5
    assert far(0, 1) < far(0, 2) and far(0, 1) < far(1, 2), places
    assert {text.text_content() for text in page.locator(".map text").all()} == set(texts)
    assert "tokens" in page.locator(".result .stats").last.inner_text()
    page.get_by_label("Texts", exact=True).fill("alone")
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_role("alert")).to_contain_text("at least two")


def test_documents_are_ranked(open_page):
    page = open_page("rerank")
    documents = ["a b", "c d e", "f"]
    page.get_by_label("Query").fill("a")
    page.get_by_label("Documents").fill("\n".join(documents))
    submit(page)
    expected = post(page, "/v1/rerank", {"model": "reranker", "query": "a", "documents": documents})["results"]
    rows = page.locator(".bars li").all_inner_texts()
    assert len(rows) == 3
    for row, want in zip(rows, expected):
        assert documents[want["index"]] in row and f"{want['relevance_score']:.4f}" in row


def test_labels_of_a_text(open_page):
    page = open_page("classify")
    page.get_by_label("Text", exact=True).fill("a b")
    submit(page)
    best = max(post(page, "/predict", {"model": "classifier", "inputs": "a b"}), key=lambda one: one["score"])
    assert best["label"] in page.locator(".bars li").first.inner_text()
    page.get_by_label("Text", exact=True).fill("word " * 400)
    page.get_by_role("button", name="Classify").click()
    expect(page.get_by_role("alert")).to_contain_text("token")
    page.get_by_label("Cut off texts that are too long").check()
    submit(page)


@pytest.mark.parametrize("model", ["tagger", "gliner"])
def test_entities_are_marked_where_they_are(open_page, model):
    page = open_page("tag")
    page.get_by_label("Model").select_option(model)
    # An emoji is two units in JavaScript and one character of the server.
    text = "😀 ab cd 😀 ef gh"
    page.get_by_label("Text", exact=True).fill(text)
    parameters = {}
    if model == "gliner":
        page.get_by_label("Labels").fill("person, city")
        parameters = {"labels": ["person", "city"]}
    submit(page)
    found = post(page, "/tag", {"model": model, "inputs": text, "parameters": parameters})
    ends, want = 0, []
    for entity in sorted(found, key=lambda one: one["start"]):
        if entity["start"] >= ends:
            want.append(text[entity["start"] : entity["end"]])
            ends = entity["end"]
    shown = page.evaluate("[...document.querySelectorAll('.tagged mark')].map((mark) => mark.firstChild.data)")
    assert shown == want
    without_labels = page.evaluate("(() => { const t = document.querySelector('.tagged').cloneNode(true); t.querySelectorAll('.label').forEach((l) => l.remove()); return t.textContent; })()")
    assert without_labels == text


def test_captions_of_a_dropped_image(open_page):
    page = open_page("images")
    page.get_by_label("Captions").fill("a\nb c\nd")
    page.get_by_label("Cut off texts that are too long").check()
    image = png()
    # Dropped, not chosen.
    page.evaluate(
        """(bytes) => {
          const data = new DataTransfer();
          data.items.add(new File([Uint8Array.from(bytes)], "red.png", { type: "image/png" }));
          document.querySelector(".drop").dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true }));
        }""",
        list(image),
    )
    expect(page.locator(".drop img")).to_be_visible()
    submit(page)
    captions = ["a", "b c", "d"]
    picture = post(page, "/v1/images/embeddings", {"model": "clip", "input": [{"image": data_uri(image)}]})["data"][0]["embedding"]
    texts = [one["embedding"] for one in post(page, "/v1/embeddings", {"model": "clip", "input": captions, "truncate": True})["data"]]
    scores = [sum(a * b for a, b in zip(picture, text)) for text in texts]
    order = sorted(range(3), key=lambda i: -scores[i])
    rows = page.locator(".bars li").all_inner_texts()
    for row, i in zip(rows, order):
        assert row.startswith(captions[i]) and abs(float(row.split()[-1]) - scores[i]) < 1e-3
    page.get_by_label("Image file").set_input_files({"name": "no.png", "mimeType": "image/png", "buffer": b"no image"})
    expect(page.locator(".drop .bad")).to_contain_text("not an image")


def make_store(page, name):
    page.get_by_label("New store").fill(name)
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_label("Vector store", exact=True).locator("option:checked")).to_have_text(name)


def test_search_in_uploaded_files(open_page):
    page = open_page("search")
    make_store(page, "notes of a test")
    files = {"cats.txt": "The cat sat on the mat. A kitten sleeps in the sun.", "stars.md": "# Astronomy\n\nA telescope shows the rings of Saturn."}
    page.get_by_label("Files to index").set_input_files([{"name": name, "mimeType": "text/plain", "buffer": text.encode()} for name, text in files.items()])
    expect(page.locator(".files li")).to_have_count(2)
    expect(page.get_by_text("is being indexed")).to_have_count(0)
    page.get_by_label("Query").fill("Where does the kitten nap?")
    page.get_by_role("button", name="Search", exact=True).click()
    hit = page.locator(".hit").first
    expect(hit.locator("b")).to_have_text("cats.txt")
    expect(hit.locator("mark")).to_have_text(["kitten"])
    page.get_by_role("button", name="Answer with smollm").click()
    expect(page.get_by_role("button", name="Answer with smollm")).to_be_visible()
    expect(page.locator(".asker .text")).not_to_be_empty()
    page.get_by_role("button", name="Delete this store").click()
    expect(page.get_by_label("Vector store", exact=True).locator("option", has_text="notes of a test")).to_have_count(0)


def test_citations_lead_to_their_passages(open_page):
    page = open_page("search", script=streaming(["The kitten sleeps ", "[", "1]. Not [99].", " `[1]`"]))
    make_store(page, "cited")
    page.get_by_label("Files to index").set_input_files({"name": "cats.txt", "mimeType": "text/plain", "buffer": b"A kitten sleeps in the sun."})
    expect(page.locator(".files")).to_contain_text("cats.txt")
    expect(page.get_by_text("is being indexed")).to_have_count(0)
    page.get_by_label("Query").fill("kitten")
    page.get_by_role("button", name="Search", exact=True).click()
    page.get_by_role("button", name="Answer with").click()
    page.get_by_role("button", name="Go to passage 1").first.click()
    expect(page.locator(".hit").first).to_be_focused()
    assert "Not [99]" in page.locator(".asker .text").inner_text()
    page.get_by_role("button", name="Delete this store").click()
    expect(page.get_by_text("Reading the vector stores")).to_have_count(0)


def test_models_show_what_runs_where(open_page):
    page = open_page("models")
    card = page.get_by_role("article", name="minilm", exact=True)
    expect(card.locator(".badge.ready")).to_be_visible()
    post(page, "/v1/embeddings", {"model": "minilm", "input": ["a", "b"]})
    expect(card).to_contain_text(re.compile(r"Really ran: [\d,]+ op calls on cpu fused"))
    card.get_by_text("Plan, op by op").click()
    plan = page.request.get(URL + "/v1/plan?model=minilm").json()
    rows = card.locator(".plan tbody tr")
    expect(rows).to_have_count(len(plan["steps"]))
    for row, step in zip(rows.all(), plan["steps"]):
        cells = row.locator("td").all_inner_texts()
        assert row.locator("th").inner_text() == step["op"] and cells[1:4] == [step["dtype"], step["rung"], str(step["calls"])]
        assert int(cells[4].replace(",", "")) >= step["calls"]
    expect(page.get_by_role("article", name="cpu")).to_contain_text("Doctor")
    # The panel reads again every two seconds, and what is open stays open.
    post(page, "/v1/embeddings", {"model": "minilm", "input": ["c"]})
    expect(page.locator(".chart b").first).not_to_have_text("–")
    expect(rows.first).to_be_visible()


def test_models_are_loaded_and_unloaded(open_page):
    page = open_page("models")
    page.get_by_label("Model", exact=True).fill("minilm")
    page.get_by_label("Name in requests").fill("second")
    page.get_by_label("Format").fill("bf16")
    page.get_by_role("button", name="Load", exact=True).click()
    card = page.get_by_role("article", name="second", exact=True)
    expect(card.locator(".badge")).to_have_text("ready")
    expect(card).to_contain_text("bf16")
    go(page, "embeddings")
    expect(page.get_by_label("Model").locator("option")).to_contain_text(["minilm", "second"])
    go(page, "models")
    card.get_by_role("button", name="Unload second").click()
    expect(card).to_have_count(0)
    page.get_by_label("Model", exact=True).fill("/nowhere/at/all")
    page.get_by_role("button", name="Load", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("there is no such directory")
    page.get_by_label("Model", exact=True).fill(os.path.dirname(__file__))
    page.get_by_label("Name in requests").fill("bad")
    page.get_by_role("button", name="Load", exact=True).click()
    bad = page.get_by_role("article", name="bad", exact=True)
    expect(bad.locator(".badge")).to_have_text("failed")
    expect(bad.locator(".bad").last).not_to_be_empty()
    bad.get_by_role("button", name="Unload bad").click()
    expect(bad).to_have_count(0)


def test_what_is_not_served_says_how_to_start_it(open_page):
    page = open_page("chat", url=SMALL_URL)
    for panel, command in [
        ("chat", "sconce serve -m smollm"),
        ("embeddings", "sconce serve -m minilm"),
        ("rerank", "cross-encoder/"),
        ("classify", "sst-2"),
        ("images", "openai/clip"),
        ("search", "--data-dir"),
    ]:
        go(page, panel, SMALL_URL)
        expect(page.locator(".notice pre")).to_contain_text(command)
    go(page, "tag", SMALL_URL)
    expect(page.get_by_role("button", name="Find entities")).to_be_visible()


def test_the_key_is_asked_for_once(open_page):
    page = open_page("embeddings", url=LOCKED_URL)
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("alert")).to_contain_text("missing API key")
    page.get_by_role("button", name="Try again").click()
    page.get_by_label("API key", exact=True).last.fill("wrong")
    page.get_by_role("button", name="Use this key").click()
    expect(page.locator("#status")).to_contain_text("no key")
    page.get_by_role("button", name="Retry").click()
    expect(page.get_by_text("refused this key")).to_be_visible()
    page.get_by_label("API key", exact=True).last.fill(LOCKED_KEY)
    page.get_by_role("button", name="Use this key").click()
    expect(page.locator("#status")).to_contain_text("1 of 1 models ready")
    submit(page)
    page.reload()
    expect(page.locator("#status")).to_contain_text("1 of 1 models ready")
    assert page.evaluate("JSON.stringify(localStorage)").count(LOCKED_KEY) == 0
    # Another tab does not have it.
    assert open_page("chat", url=LOCKED_URL).get_by_role("button", name="Use this key").is_visible()
