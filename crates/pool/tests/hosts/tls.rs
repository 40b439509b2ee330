//! Certificates of servers on other hosts.

use crate::common::remote::{FakeHost, FakeState};
use crate::common::{Running, TestHost};
use axum::http::StatusCode;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use sconce_pool::{Config, ConfigError, PoolFile};
use std::path::Path;
use std::sync::Arc;

struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its private key.
struct Certificate {
    certificate: CertificateDer<'static>,
    key: KeyPair,
}

impl Authority {
    fn new(name: &str) -> Authority {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn issue(&self, name: &str, last_year: i32) -> Certificate {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_string()]).unwrap();
        (params.not_before, params.not_after) = (date_time_ymd(2000, 1, 1), date_time_ymd(last_year, 1, 1));
        let certificate = params.signed_by(&key, &self.0).unwrap().der().clone();
        Certificate { certificate, key }
    }

    fn write(&self, path: &Path) {
        std::fs::write(path, self.0.pem()).unwrap();
    }
}

impl Certificate {
    fn config(&self) -> Arc<ServerConfig> {
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(self.key.serialize_der()));
        let builder = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        Arc::new(builder.with_single_cert(vec![self.certificate.clone()], key).unwrap())
    }

    fn host(&self) -> FakeHost {
        FakeHost::start(FakeState::new("a", &["m"]), "127.0.0.1:0", Some(self.config()))
    }

    fn fingerprint(&self) -> String {
        sconce_api::trust::Fingerprint::of(&self.certificate).to_string()
    }
}

#[track_caller]
fn accepted(host: &TestHost, toml: &str) {
    let pool = host.run(toml);
    pool.ready(1);
    let (status, body) = pool.chat("m", "hi");
    assert_eq!((status, &body["host"]), (StatusCode::OK, &"a".into()), "{body}");
}

/// Why the certificate is refused.
#[track_caller]
fn refused(host: &TestHost, toml: &str) -> String {
    let pool: Running = host.run(toml);
    let failed = pool.wait("the host to be refused", |p| p.worker("m@a").filter(|w| w["state"] == "failed"));
    let (status, body) = pool.chat("m", "hi");
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{body}");
    failed["why"].as_str().unwrap().to_string()
}

#[test]
fn pinned_certificate_is_accepted_and_no_other() {
    let (authority, host) = (Authority::new("ours"), TestHost::new());
    // Neither its name nor its dates matter.
    let certificate = authority.issue("other.example", 2001);
    let a = certificate.host();
    accepted(&host, &a.toml("'m'", &format!("pin = 'sha256:{}'", certificate.fingerprint())));
    let other = authority.issue("127.0.0.1", 2999);
    let why = refused(&host, &a.toml("'m'", &format!("pin = '{}'", other.fingerprint())));
    assert!(why.contains(&certificate.fingerprint()) && why.contains(&other.fingerprint()), "{why}");
}

#[test]
fn certificates_of_an_authority_are_checked_for_name_and_dates() {
    let (authority, stranger, host) = (Authority::new("ours"), Authority::new("theirs"), TestHost::new());
    authority.write(&host.path("ca.pem"));
    let ca = "ca = 'ca.pem'";
    let a = authority.issue("127.0.0.1", 2999).host();
    accepted(&host, &a.toml("'m'", ca));
    for (certificate, wanted) in [
        (authority.issue("127.0.0.1", 2001), "expired"),
        (authority.issue("other.example", 2999), "name"),
        (authority.issue("127.0.0.2", 2999), "name"),
        (stranger.issue("127.0.0.1", 2999), "issuer"),
    ] {
        let a = certificate.host();
        let why = refused(&host, &a.toml("'m'", ca));
        let is_named = why.to_lowercase().contains(wanted);
        assert!(
            is_named && why.contains("invalid peer certificate") && why.contains("`ca` or `pin`"),
            "{wanted}: {why}"
        );
    }
    // A server without TLS is none with a valid certificate.
    let plain = FakeHost::new("a", &["m"]);
    let why = refused(&host, &plain.toml("'m'", ca).replace("http://", "https://"));
    assert!(why.contains("a does not answer"), "{why}");
}

#[test]
fn file_of_authorities_must_have_some() {
    let host = TestHost::new();
    let error = |ca: &str| -> String {
        let path = host.path("pool.toml");
        let toml = format!("[[host]]\nurl = 'https://a.example'\nmodels = ['m']\nca = '{ca}'\n");
        std::fs::write(&path, toml).unwrap();
        let read: Result<PoolFile, ConfigError> = PoolFile::read(&path);
        Config::new(read.unwrap(), "sconce".into(), |_| host.path("state")).unwrap_err()
    };
    std::fs::write(host.path("empty.pem"), "no certificate\n").unwrap();
    assert!(error("nowhere.pem").contains("nowhere.pem"));
    assert!(error("empty.pem").contains("no certificate"), "{}", error("empty.pem"));
}

/// The certificates of the system are read once by a process, and `SSL_CERT_FILE` replaces them on
/// Linux.
#[cfg(target_os = "linux")]
#[test]
fn authorities_of_the_system_are_the_default() {
    let dir = tempfile::tempdir().unwrap();
    let (authority, file) = (Authority::new("the system's"), dir.path().join("system.pem"));
    authority.write(&file);
    let certificate = authority.issue("127.0.0.1", 2999);
    let (der, key) = (dir.path().join("certificate.der"), dir.path().join("key.der"));
    std::fs::write(&der, &certificate.certificate).unwrap();
    std::fs::write(&key, certificate.key.serialize_der()).unwrap();
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["tls::trusts_the_system", "--exact", "--ignored", "--nocapture"]);
    child.env("SSL_CERT_FILE", &file).env("FAKE_TLS", dir.path());
    let out = child.output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && text.contains("1 passed"), "{text}");
}

/// Not a test: a part of the one above, in a process of its own.
#[cfg(target_os = "linux")]
#[test]
#[ignore = "runs in a process of its own"]
fn trusts_the_system() {
    let Some(dir) = std::env::var_os("FAKE_TLS").map(std::path::PathBuf::from) else { return };
    let key = std::fs::read(dir.join("key.der")).unwrap();
    let certificate = Certificate {
        certificate: std::fs::read(dir.join("certificate.der")).unwrap().into(),
        key: KeyPair::try_from(key).unwrap(),
    };
    let (a, host) = (certificate.host(), TestHost::new());
    accepted(&host, &a.toml("'m'", ""));
    let other = Authority::new("theirs").issue("127.0.0.1", 2999).host();
    let why = refused(&host, &other.toml("'m'", ""));
    assert!(why.contains("invalid peer certificate") && why.contains("SSL_CERT_FILE"), "{why}");
}
