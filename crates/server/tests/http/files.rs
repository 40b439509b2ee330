//! Uploaded files.

use crate::common::{Reply, Running, config, serve};
use sconce_server::{Config, Secret};
use serde_json::{Value, json};
use std::path::Path;

pub(crate) const BOUNDARY: &str = "a-boundary-of-the-form";

/// A server with a model and a data folder.
pub(crate) fn serve_in(dir: &Path) -> Running {
    serve(&["st-prompts"], Config { data_dir: Some(dir.into()), ..config() })
}

/// A form: fields, and files with their names.
pub(crate) fn form(fields: &[(&str, &str)], files: &[(&str, &str, &str)]) -> String {
    let part =
        |head: String, body: &str| format!("--{BOUNDARY}\r\nContent-Disposition: form-data; {head}\r\n\r\n{body}\r\n");
    let fields = fields.iter().map(|(name, value)| part(format!("name=\"{name}\""), value));
    let files = files.iter().map(|(name, file, body)| part(format!("name=\"{name}\"; filename=\"{file}\""), body));
    format!("{}--{BOUNDARY}--\r\n", fields.chain(files).collect::<String>())
}

pub(crate) fn post_form(server: &Running, body: &str) -> Reply {
    let kind = format!("multipart/form-data; boundary={BOUNDARY}");
    server.send("POST", "/v1/files", &[("content-type", &kind)], body)
}

/// Uploads a file and returns its id.
pub(crate) fn upload(server: &Running, name: &str, text: &str) -> String {
    let file = post_form(server, &form(&[("purpose", "assistants")], &[("file", name, text)])).ok();
    file["id"].as_str().unwrap().to_owned()
}

#[test]
fn a_file_comes_back_as_it_was_sent_also_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let text = "line\r\n--not-the-boundary\r\n".repeat(20_000);
    let server = serve_in(dir.path());
    let reply = post_form(&server, &form(&[("purpose", "user_data")], &[("file", "../a \u{e4}.txt", &text)]));
    let file = reply.ok();
    assert_eq!(
        (&file["object"], &file["status"], &file["purpose"]),
        (&json!("file"), &json!("processed"), &json!("user_data"))
    );
    assert_eq!((&file["bytes"], &file["filename"]), (&json!(text.len()), &json!("a \u{e4}.txt")));
    assert!(file["created_at"].as_u64() > Some(1_700_000_000));
    let id = file["id"].as_str().unwrap().to_owned();
    assert!(id.starts_with("file-"));
    drop(server);
    let server = serve_in(dir.path());
    assert_eq!(server.get(&format!("/v1/files/{id}")).ok(), file);
    let content = server.get(&format!("/v1/files/{id}/content"));
    assert_eq!((content.status, content.body.len()), (200, text.len()));
    assert!(content.body == text);
    assert_eq!(content.header("content-disposition"), Some("attachment; filename*=UTF-8''a%20%C3%A4.txt"));
    assert_eq!(
        server.send("DELETE", &format!("/v1/files/{id}"), &[], "").ok(),
        json!({"id": id, "object": "file", "deleted": true})
    );
    for path in [format!("/v1/files/{id}"), format!("/v1/files/{id}/content"), "/v1/files/..%2Flock".into()] {
        let absent = server.get(&path);
        assert_eq!((absent.status, &absent.json()["error"]["type"]), (404, &json!("not_found_error")), "{path}");
    }
    assert_eq!(server.send("DELETE", &format!("/v1/files/{id}"), &[], "").status, 404);
    assert_eq!(std::fs::read_dir(dir.path().join("files")).unwrap().count(), 0);
    assert_eq!(std::fs::read_dir(dir.path().join("incoming")).unwrap().count(), 0);
}

#[test]
fn lists_have_pages_orders_and_purposes() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve_in(dir.path());
    let ids: Vec<String> = (0..5).map(|i| upload(&server, &format!("{i}.txt"), "a")).collect();
    let batch = post_form(&server, &form(&[("purpose", "batch")], &[("file", "b.jsonl", "{}")])).ok();
    let of = |list: &Value| -> Vec<String> {
        list["data"].as_array().unwrap().iter().map(|file| file["id"].as_str().unwrap().to_owned()).collect()
    };
    let all = server.get("/v1/files").ok();
    assert_eq!(
        (of(&all).len(), &of(&all)[0], &all["has_more"]),
        (6, &batch["id"].as_str().unwrap().to_owned(), &json!(false))
    );
    let first = server.get("/v1/files?limit=2&order=asc&purpose=assistants").ok();
    assert_eq!((of(&first), &first["has_more"], &first["last_id"]), (ids[..2].to_vec(), &json!(true), &json!(ids[1])));
    let rest = server.get(&format!("/v1/files?order=asc&purpose=assistants&after={}", ids[1])).ok();
    assert_eq!((of(&rest), &rest["has_more"]), (ids[2..].to_vec(), &json!(false)));
    for (query, param) in
        [("limit=0", "limit"), ("limit=10001", "limit"), ("after=file-x", "after"), ("purpose=x", "purpose")]
    {
        let reply = server.get(&format!("/v1/files?{query}"));
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!(param)), "{query}");
    }
    assert_eq!(server.get("/v1/files?order=up").status, 400);
}

#[test]
fn a_wrong_form_stores_nothing_and_names_the_field() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve_in(dir.path());
    let file = ("file", "a.txt", "a");
    for (fields, files, param) in [
        (vec![], vec![file], "purpose"),
        (vec![("purpose", "assistant")], vec![file], "purpose"),
        (vec![("purpose", "batch_output")], vec![file], "purpose"),
        (vec![("purpose", "batch")], vec![], "file"),
        (vec![("purpose", "batch")], vec![file, file], "file"),
        (vec![("purpose", "batch"), ("expires_after[seconds]", "3600")], vec![file], "expires_after"),
        (
            vec![("purpose", "batch"), ("expires_after[anchor]", "created_at"), ("expires_after[seconds]", "60")],
            vec![file],
            "expires_after",
        ),
        (vec![("purpose", "batch"), ("expires_after[seconds]", "soon")], vec![file], "expires_after[seconds]"),
    ] {
        let reply = post_form(&server, &form(&fields, &files));
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!(param)), "{reply:?}");
    }
    let long = "x".repeat(5_000);
    assert_eq!(post_form(&server, &form(&[("purpose", &long)], &[file])).status, 400);
    let cut = form(&[("purpose", "batch")], &[file]);
    assert_eq!(post_form(&server, &cut[..cut.len() - 20]).status, 400);
    assert_eq!(server.post("/v1/files", &json!({"purpose": "batch"})).status, 415);
    assert_eq!(server.get("/v1/files").ok()["data"], json!([]));
    sconce_testkit::wait_until("unfinished uploads are removed", || {
        std::fs::read_dir(dir.path().join("incoming")).unwrap().count() == 0
    });
    let expiring = [
        ("purpose", "batch"),
        ("expires_after[anchor]", "created_at"),
        ("expires_after[seconds]", "3600"),
        ("color", "red"),
    ];
    let reply = post_form(&server, &form(&expiring, &[file]));
    let file = reply.ok();
    assert_eq!(file["expires_at"].as_u64().unwrap() - file["created_at"].as_u64().unwrap(), 3600);
    assert_eq!(reply.header("x-sconce-ignored"), Some("color"));
}

#[test]
fn web_pages_upload_only_with_leave() {
    let kind = format!("multipart/form-data; boundary={BOUNDARY}");
    let body = form(&[("purpose", "batch")], &[("file", "a.txt", "a")]);
    let send_from = |origin: &str, server: &Running| {
        let head = [("content-type", kind.as_str()), ("origin", origin), ("authorization", "Bearer key")];
        server.send("POST", "/v1/files", &head, &body).status
    };
    let send = |server: &Running| send_from("http://evil.example", server);
    let dir = tempfile::tempdir().unwrap();
    let server = serve_in(dir.path());
    assert_eq!((send(&server), send_from("http://localhost:3000", &server)), (403, 403));
    // The server's own page.
    assert_eq!(send_from("http://localhost", &server), 200);
    drop(server);
    let cors_origins = vec!["http://evil.example".into()];
    let data_dir = Some(dir.path().into());
    assert_eq!(send(&serve(&["st-prompts"], Config { data_dir, cors_origins, ..config() })), 200);
    let (data_dir, api_keys) = (Some(dir.path().into()), vec![Secret::new("key").unwrap()]);
    let server = serve(&["st-prompts"], Config { data_dir, api_keys, ..config() });
    assert_eq!((send(&server), server.get("/v1/files").status), (200, 401));
}

#[test]
fn without_a_data_folder_the_error_names_the_flag() {
    let server = serve(&["st-prompts"], config());
    for reply in [server.get("/v1/files"), post_form(&server, &form(&[("purpose", "batch")], &[("file", "a", "a")]))] {
        let error = &reply.json()["error"];
        assert_eq!((reply.status, &error["code"]), (404, &json!("no_data_dir")));
        assert!(error["message"].as_str().unwrap().contains("--data-dir"), "{error}");
    }
}

#[tokio::test]
async fn two_servers_cannot_share_a_data_folder() {
    let dir = tempfile::tempdir().unwrap();
    let _first = serve_in(dir.path());
    let config = Config { data_dir: Some(dir.path().into()), ..config() };
    let (spec, _model) = crate::common::golden("st-prompts");
    let second = sconce_server::Server::bind(config, vec![spec], sconce_server::Stop::default()).await;
    assert!(second.map(drop).unwrap_err().to_string().contains("another server uses this folder"));
}
