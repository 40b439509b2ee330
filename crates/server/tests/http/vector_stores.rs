//! Vector stores.

use crate::common::{Running, config, serve};
use crate::files::{serve_in, upload};
use sconce_testkit::wait_until;
use serde_json::{Value, json};

const TEXTS: [(&str, &str); 3] = [
    ("cats.txt", "The cat sat on the mat. A kitten sleeps in the sun."),
    ("stars.md", "# Stars\n\nA telescope shows the planets and the moon."),
    ("money.txt", "The stock market fell today. Prices rose."),
];

fn store_of(server: &Running, body: &Value) -> String {
    server.post("/v1/vector_stores", body).ok()["id"].as_str().unwrap().to_owned()
}

fn wait_completed(server: &Running, store: &str) -> Value {
    wait_until("the files are indexed", || {
        server.get(&format!("/v1/vector_stores/{store}")).ok()["status"] == json!("completed")
    });
    server.get(&format!("/v1/vector_stores/{store}")).ok()
}

fn search(server: &Running, store: &str, body: &Value) -> Value {
    server.post(&format!("/v1/vector_stores/{store}/search"), body).ok()
}

/// The files of the passages, best first. The tiny model reads 16 tokens, so a file has several.
fn names(found: &Value) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for name in found["data"].as_array().unwrap().iter().map(|hit| hit["filename"].as_str().unwrap()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

#[test]
fn files_are_indexed_found_and_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve_in(dir.path());
    let ids: Vec<String> = TEXTS.iter().map(|(name, text)| upload(&server, name, text)).collect();
    let body = json!({"name": "notes", "file_ids": ids, "metadata": {"team": "a"}, "description": "d"});
    let created = server.post("/v1/vector_stores", &body).ok();
    assert_eq!((&created["object"], &created["name"]), (&json!("vector_store"), &json!("notes")));
    assert_eq!((&created["metadata"], &created["embedding_model"]), (&json!({"team": "a"}), &json!("st-prompts")));
    let store = created["id"].as_str().unwrap();
    let done = wait_completed(&server, store);
    let counts = json!({"in_progress": 0, "completed": 3, "failed": 0, "cancelled": 0, "total": 3});
    assert_eq!(done["file_counts"], counts);
    assert!(done["usage_bytes"].as_u64() > Some(100));
    let query = json!({"query": "stock market", "max_num_results": 2});
    let found = search(&server, store, &query);
    assert_eq!(
        (&found["object"], &found["search_query"]),
        (&json!("vector_store.search_results.page"), &json!(["stock market"]))
    );
    let best = &found["data"][0];
    assert_eq!((&best["filename"], &best["file_id"]), (&json!("money.txt"), &json!(ids[2])));
    let passage = best["content"][0]["text"].as_str().unwrap();
    assert_eq!(best["content"], json!([{"type": "text", "text": passage}]));
    assert!(passage.contains("stock") && TEXTS[2].1.contains(passage), "{passage}");
    assert_eq!(found["data"].as_array().unwrap().len(), 2);
    drop(server);
    let server = serve_in(dir.path());
    assert_eq!(search(&server, store, &query)["data"], found["data"]);
    let mut again = server.get(&format!("/v1/vector_stores/{store}")).ok();
    again["last_active_at"] = done["last_active_at"].clone();
    assert_eq!(again, done);
}

#[test]
fn stores_are_listed_changed_and_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve_in(dir.path());
    let ids: Vec<String> = (0..3).map(|i| store_of(&server, &json!({"name": i.to_string()}))).collect();
    let page = server.get("/v1/vector_stores?limit=2").ok();
    assert_eq!(
        (&page["data"][0]["id"], &page["data"][1]["id"], &page["has_more"]),
        (&json!(ids[2]), &json!(ids[1]), &json!(true))
    );
    let path = format!("/v1/vector_stores/{}", ids[0]);
    let expires_after = json!({"anchor": "last_active_at", "days": 7});
    let changed =
        server.post(&path, &json!({"name": "n", "metadata": {"k": "v"}, "expires_after": expires_after})).ok();
    assert_eq!(
        (&changed["name"], &changed["metadata"], &changed["expires_after"]),
        (&json!("n"), &json!({"k": "v"}), &expires_after)
    );
    assert_eq!(changed["expires_at"].as_u64().unwrap() - changed["last_active_at"].as_u64().unwrap(), 7 * 86_400);
    let changed = server.post(&path, &json!({"expires_after": null})).ok();
    assert_eq!((&changed["name"], &changed["expires_at"]), (&json!("n"), &Value::Null));
    for (body, param) in [
        (json!({"expires_after": {"anchor": "created_at", "days": 7}}), "expires_after"),
        (json!({"expires_after": {"anchor": "last_active_at", "days": 0}}), "expires_after"),
        (json!({"metadata": {"k": "v".repeat(513)}}), "metadata"),
        (json!({"name": "n".repeat(513)}), "name"),
    ] {
        for path in [path.as_str(), "/v1/vector_stores"] {
            let reply = server.post(path, &body);
            assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!(param)), "{body}");
        }
    }
    let deleted = server.send("DELETE", &path, &[], "").ok();
    assert_eq!(deleted, json!({"id": ids[0], "object": "vector_store.deleted", "deleted": true}));
    assert_eq!((server.get(&path).status, server.send("DELETE", &path, &[], "").status), (404, 404));
    assert_eq!(server.get("/v1/vector_stores").ok()["data"].as_array().unwrap().len(), 2);
    assert!(!dir.path().join("vector_stores").join(&ids[0]).exists());
    let unknown = server.post("/v1/vector_stores", &json!({"file_ids": ["file-x"]}));
    assert_eq!((unknown.status, &unknown.json()["error"]["param"]), (404, &json!("file_id")));
    let unknown = server.post("/v1/vector_stores", &json!({"embedding_model": "gpt-9"}));
    assert_eq!((unknown.status, &unknown.json()["error"]["param"]), (404, &json!("embedding_model")));
    assert_eq!(server.get("/v1/vector_stores").ok()["data"].as_array().unwrap().len(), 2);
}

#[test]
fn attributes_filter_searches_and_can_be_changed() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve_in(dir.path());
    let store = store_of(&server, &json!({}));
    let files = format!("/v1/vector_stores/{store}/files");
    let mut ids = Vec::new();
    for (i, (name, text)) in TEXTS.iter().enumerate() {
        let id = upload(&server, name, text);
        let attributes = json!({"year": 2020 + i, "even": i % 2 == 0, "who": "ann"});
        let file = server.post(&files, &json!({"file_id": id, "attributes": attributes})).ok();
        assert_eq!((&file["object"], &file["attributes"]), (&json!("vector_store.file"), &attributes));
        ids.push(id);
    }
    wait_completed(&server, &store);
    let filtered = |filters: Value| {
        let found = search(&server, &store, &json!({"query": "the cat", "filters": filters}));
        let mut names: Vec<String> = names(&found).into_iter().map(str::to_owned).collect();
        names.sort();
        names
    };
    let compare = |kind: &str, key: &str, value: Value| json!({"type": kind, "key": key, "value": value});
    assert_eq!(filtered(compare("eq", "year", json!(2021))), ["stars.md"]);
    assert_eq!(filtered(compare("gte", "year", json!(2021))), ["money.txt", "stars.md"]);
    let both = json!({"type": "and", "filters": [compare("eq", "even", json!(true)), compare("in", "year", json!([2020, 2021]))]});
    assert_eq!(filtered(both), ["cats.txt"]);
    assert_eq!(filtered(compare("ne", "who", json!("ann"))), [""; 0]);
    let one = format!("{files}/{}", ids[0]);
    let changed = server.post(&one, &json!({"attributes": {"year": 1999.5}})).ok();
    assert_eq!(changed["attributes"], json!({"year": 1999.5}));
    assert_eq!(filtered(compare("lt", "year", json!(2000))), ["cats.txt"]);
    assert_eq!(filtered(compare("ne", "who", json!("ann"))), ["cats.txt"]);
    let found = search(&server, &store, &json!({"query": "kitten"}));
    let cats = found["data"].as_array().unwrap().iter().find(|hit| hit["filename"] == "cats.txt").unwrap();
    assert_eq!(cats["attributes"], json!({"year": 1999.5}));
    assert_eq!(server.post(&one, &json!({})).status, 400);
    let many: serde_json::Map<String, Value> = (0..17).map(|i| (i.to_string(), json!(i))).collect();
    assert_eq!(server.post(&one, &json!({"attributes": many})).status, 400);
    let content = server.get(&format!("{one}/content")).ok();
    assert_eq!(content["data"], json!([{"type": "text", "text": TEXTS[0].1}]));
    // Detached: not found any more, but still uploaded. Deleted: gone from the store too.
    let detached = server.send("DELETE", &one, &[], "").ok();
    assert_eq!(detached, json!({"id": ids[0], "object": "vector_store.file.deleted", "deleted": true}));
    assert_eq!((server.get(&one).status, server.get(&format!("/v1/files/{}", ids[0])).status), (404, 200));
    assert!(!names(&search(&server, &store, &json!({"query": "kitten"}))).contains(&"cats.txt"));
    server.send("DELETE", &format!("/v1/files/{}", ids[1]), &[], "").ok();
    assert_eq!(names(&search(&server, &store, &json!({"query": "telescope"}))), ["money.txt"]);
    assert_eq!(server.get(&files).ok()["data"].as_array().unwrap().len(), 1);
}

#[test]
fn chunks_have_the_length_that_was_asked_for_within_the_models() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve_in(dir.path());
    let id = upload(&server, "long.txt", &"The cat sat on the mat. ".repeat(200));
    let store = store_of(&server, &json!({}));
    let files = format!("/v1/vector_stores/{store}/files");
    let attach = |sizes: Value| {
        server.post(&files, &json!({"file_id": id, "chunking_strategy": {"type": "static", "static": sizes}}))
    };
    for sizes in [
        json!({"max_chunk_size_tokens": 99, "chunk_overlap_tokens": 0}),
        json!({"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 51}),
    ] {
        let reply = attach(sizes);
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("chunking_strategy")));
    }
    attach(json!({"max_chunk_size_tokens": 4096, "chunk_overlap_tokens": 2048})).ok();
    wait_completed(&server, &store);
    let used = server.get(&format!("{files}/{id}")).ok()["chunking_strategy"]["static"].clone();
    let tokens = used["max_chunk_size_tokens"].as_u64().unwrap();
    assert!((1..4096).contains(&tokens) && used["chunk_overlap_tokens"].as_u64().unwrap() <= tokens / 2, "{used}");
    let found = search(&server, &store, &json!({"query": "cat", "max_num_results": 50}));
    assert!(found["data"].as_array().unwrap().len() > 1);
}

#[test]
fn batches_attach_files_and_count_them() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve_in(dir.path());
    let mut ids: Vec<String> = TEXTS.iter().map(|(name, text)| upload(&server, name, text)).collect();
    ids.push(upload(&server, "photo.png", "not an image"));
    let store = store_of(&server, &json!({}));
    let batches = format!("/v1/vector_stores/{store}/file_batches");
    let batch = server.post(&batches, &json!({"file_ids": ids, "attributes": {"a": 1}})).ok();
    assert_eq!((&batch["object"], &batch["file_counts"]["total"]), (&json!("vector_store.files_batch"), &json!(4)));
    let path = format!("{batches}/{}", batch["id"].as_str().unwrap());
    wait_completed(&server, &store);
    let done = server.get(&path).ok();
    let counts = json!({"in_progress": 0, "completed": 3, "failed": 1, "cancelled": 0, "total": 4});
    assert_eq!((&done["status"], &done["file_counts"]), (&json!("completed"), &counts));
    let failed = server.get(&format!("{path}/files?filter=failed")).ok();
    assert_eq!((&failed["data"][0]["id"], failed["data"].as_array().unwrap().len()), (&json!(ids[3]), 1));
    assert_eq!(failed["data"][0]["last_error"]["code"], "unsupported_file");
    assert_eq!(server.get(&format!("{path}/files?limit=2")).ok()["has_more"], json!(true));
    // Nothing is left to cancel.
    assert_eq!(server.send("POST", &format!("{path}/cancel"), &[], "").ok(), done);
    let own = json!({"files": [{"file_id": ids[0], "attributes": {"a": 2}}, {"file_id": ids[1]}]});
    server.post(&batches, &own).ok();
    wait_completed(&server, &store);
    let filters = json!({"type": "eq", "key": "a", "value": 2});
    assert_eq!(names(&search(&server, &store, &json!({"query": "cat", "filters": filters}))), ["cats.txt"]);
    for body in [
        json!({}),
        json!({"file_ids": []}),
        json!({"file_ids": ids, "files": []}),
        json!({"files": [{"file_id": ids[0]}], "attributes": {}}),
    ] {
        assert_eq!(server.post(&batches, &body).status, 400, "{body}");
    }
    assert_eq!(server.get(&format!("{batches}/vsfb_x")).status, 404);
}

#[test]
fn a_cancelled_batch_stops_and_its_files_are_not_found() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve_in(dir.path());
    let text = "The cat sat on the mat, and the stock market fell. ".repeat(20_000);
    let ids: Vec<String> = (0..3).map(|i| upload(&server, &format!("{i}.txt"), &text)).collect();
    let store = store_of(&server, &json!({}));
    let batches = format!("/v1/vector_stores/{store}/file_batches");
    let batch = server.post(&batches, &json!({"file_ids": ids})).ok();
    let path = format!("{batches}/{}", batch["id"].as_str().unwrap());
    let cancelled = server.send("POST", &format!("{path}/cancel"), &[], "").ok();
    assert_eq!((&cancelled["status"], &cancelled["file_counts"]["in_progress"]), (&json!("cancelled"), &json!(0)));
    assert!(cancelled["file_counts"]["cancelled"].as_u64() > Some(0));
    let small = upload(&server, "small.txt", "A kitten.");
    server.post(&format!("/v1/vector_stores/{store}/files"), &json!({"file_id": small})).ok();
    wait_completed(&server, &store);
    assert!(names(&search(&server, &store, &json!({"query": "kitten"}))).contains(&"small.txt"));
    assert_eq!(server.get(&path).ok()["status"], "cancelled");
}

#[test]
fn searches_are_ranked_cut_and_checked() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve_in(dir.path());
    let ids: Vec<String> = TEXTS.iter().map(|(name, text)| upload(&server, name, text)).collect();
    let store = store_of(&server, &json!({"file_ids": ids}));
    wait_completed(&server, &store);
    for ranker in ["auto", "default-2024-11-15", "none"] {
        let found = search(&server, &store, &json!({"query": "stock market", "ranking_options": {"ranker": ranker}}));
        let scores: Vec<f64> =
            found["data"].as_array().unwrap().iter().map(|hit| hit["score"].as_f64().unwrap()).collect();
        assert!(scores.len() > 2 && scores.is_sorted_by(|a, b| a >= b), "{ranker}: {scores:?}");
        assert!(scores.iter().all(|score| (0.0..=1.0).contains(score)), "{ranker}: {scores:?}");
        // A number read from JSON may differ from the written one in its last bit.
        let options = json!({"ranker": ranker, "score_threshold": scores[0] - 1e-9});
        let cut = search(&server, &store, &json!({"query": "stock market", "ranking_options": options}));
        assert_eq!(names(&cut)[0], names(&found)[0]);
        assert!(cut["data"].as_array().unwrap().len() < scores.len());
    }
    let both = search(&server, &store, &json!({"query": ["telescope", "kitten"]}));
    assert_eq!(both["search_query"], json!(["telescope", "kitten"]));
    let mut first: Vec<&str> = names(&both)[..2].to_vec();
    first.sort_unstable();
    assert_eq!(first, ["cats.txt", "stars.md"]);
    for (body, param) in [
        (json!({"query": ""}), "query"),
        (json!({"query": []}), "query"),
        (json!({"query": "a", "rewrite_query": true}), "rewrite_query"),
        (json!({"query": "a", "max_num_results": 51}), "max_num_results"),
        (json!({"query": "a", "ranking_options": {"score_threshold": 1.5}}), "ranking_options.score_threshold"),
        (json!({"query": "a", "filters": {"type": "like", "key": "a", "value": "b"}}), "filters"),
    ] {
        let reply = server.post(&format!("/v1/vector_stores/{store}/search"), &body);
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!(param)), "{body}: {reply:?}");
    }
    search(&server, &store, &json!({"query": "a", "rewrite_query": false}));
    let hostile = json!({"query": "'; DROP TABLE files; -- \" NEAR( * AND", "filters": {"type": "eq", "key": "'; --", "value": "x"}});
    assert_eq!(names(&search(&server, &store, &hostile)), [""; 0]);
    assert_eq!(names(&search(&server, &store_of(&server, &json!({})), &json!({"query": "a"}))), [""; 0]);
}

#[test]
fn indexing_goes_on_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve_in(dir.path());
    let text = "The cat sat on the mat, and the stock market fell. ".repeat(2_000);
    let ids: Vec<String> = (0..4).map(|i| upload(&server, &format!("{i}.txt"), &text)).collect();
    let store = store_of(&server, &json!({"file_ids": ids}));
    drop(server);
    let server = serve_in(dir.path());
    assert_eq!(wait_completed(&server, &store)["file_counts"]["completed"], 4);
}

#[test]
fn models_that_do_not_embed_texts_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let data_dir = Some(dir.path().into());
    let server = serve(&["task-classify"], sconce_server::Config { data_dir, ..config() });
    let reply = server.post("/v1/vector_stores", &json!({}));
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("embedding_model")));
}
