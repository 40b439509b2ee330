//! `--ssl-certfile` and `--ssl-keyfile`.

use crate::common::{config, serve};
use hyper::Method;
use rcgen::{CertificateParams, KeyPair};
use sconce_api::client::{Answer, Call, RemoteClients};
use sconce_api::trust::{Fingerprint, Trust};
use sconce_server::{Config, Tls};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

struct Files {
    dir: tempfile::TempDir,
    fingerprint: Fingerprint,
}

impl Files {
    fn new() -> Files {
        let (dir, key) = (tempfile::tempdir().unwrap(), KeyPair::generate().unwrap());
        let certificate = CertificateParams::new(vec!["127.0.0.1".to_string()]).unwrap().self_signed(&key).unwrap();
        std::fs::write(dir.path().join("certificate.pem"), certificate.pem()).unwrap();
        std::fs::write(dir.path().join("key.pem"), key.serialize_pem()).unwrap();
        Files { dir, fingerprint: Fingerprint::of(certificate.der()) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

#[test]
fn server_with_a_certificate_speaks_https_only() {
    let files = Files::new();
    let tls = Tls::read(&files.path("certificate.pem"), &files.path("key.pem")).unwrap();
    let server = serve(&["st-prompts"], Config { tls: Some(tls), ..config() });
    let address = server.address();
    // A client that never shakes hands does not keep others from being served.
    let _silent = TcpStream::connect(address).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = RemoteClients::new(&Trust::Pinned(files.fingerprint)).unwrap().client();
    let get = |url: String| {
        let (within, method) = (Some(Duration::from_secs(60)), Method::GET);
        let call = Call { method, url: &url, key: None, body: None, within, largest: 1 << 20 };
        runtime.block_on(call.send(&client))
    };
    let Answer { status, body } = get(format!("https://{address}/v1/models")).unwrap();
    assert!(status.is_success() && String::from_utf8_lossy(&body.unwrap()).contains("st-prompts"));
    let mut plain = TcpStream::connect(address).unwrap();
    plain.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP/"), "{}", String::from_utf8_lossy(&answer));
    // The same server for a client that pins another certificate.
    let other = RemoteClients::new(&Trust::Pinned(Files::new().fingerprint)).unwrap().client();
    let url = format!("https://{address}/health");
    let call = Call { method: Method::GET, url: &url, key: None, body: None, within: None, largest: 1 << 20 };
    let why = runtime.block_on(call.send(&other)).unwrap_err().why;
    assert!(why.contains("not the pinned"), "{why}");
}

#[test]
fn unusable_certificates_are_refused_with_the_file() {
    let (files, other) = (Files::new(), Files::new());
    let refusal = |certificate: PathBuf, key: PathBuf| Tls::read(&certificate, &key).unwrap_err();
    let (certificate, key) = (files.path("certificate.pem"), files.path("key.pem"));
    assert!(refusal(files.path("missing.pem"), key.clone()).contains("missing.pem"));
    assert!(refusal(key.clone(), key.clone()).contains("no certificate"));
    assert!(refusal(certificate.clone(), certificate.clone()).contains("certificate.pem"));
    let why = refusal(certificate, other.path("key.pem"));
    assert!(why.contains("key.pem"), "a key of another certificate: {why}");
}
