//! The hub and its cache, with a local hub server.

use std::time::Instant;

use super::server::{Fault, HubServer, Repo};
use super::*;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const OLD: &str = "89abcdef0123456789abcdef0123456789abcdef";

fn repo(files: BTreeMap<String, Vec<u8>>) -> Repo {
    Repo { id: "org/model", commit: COMMIT, revisions: &["main"], files }
}

/// A server with one complete model, and options that point at it.
fn hub(tmp: &TempDir) -> (HubServer, Options) {
    let server = HubServer::start(vec![repo(model_files())], None);
    let options = Options { endpoint: server.endpoint.clone(), ..options(tmp) };
    (server, options)
}

fn blobs(options: &Options) -> Vec<String> {
    tree(&options.hub_cache.join("models--org--model/blobs"))
}

#[track_caller]
fn assert_same_as_served(dir: &Path) {
    assert_eq!(tree(dir), WANTED);
    for (name, bytes) in model_files().iter().filter(|(name, _)| WANTED.contains(&name.as_str())) {
        assert_eq!(&fs::read(dir.join(name)).unwrap(), bytes, "{name}");
    }
}

#[test]
fn model_is_downloaded_once_then_read_from_cache() {
    let tmp = TempDir::new().unwrap();
    let (server, options) = hub(&tmp);
    let progress = RecordedProgress::default();
    let files = resolve(&hub_ref("org/model"), &options, &progress).unwrap();
    assert_same_as_served(&files.dir);
    assert!(matches!(&files.origin, Origin::Hub { commit, .. } if commit == COMMIT));
    assert!(files.origin.to_string().contains("org/model@01234567 downloaded from http://127.0.0.1"));
    assert!(progress.lines().contains("begin model.safetensors"));
    assert!(*progress.1.lock().unwrap() >= WEIGHTS as u64);
    assert!(blobs(&options).iter().all(|name| !name.contains("incomplete")));
    assert!(server.seen().iter().all(|seen| !seen.path.contains("bin") && !seen.path.contains("onnx")));

    drop(server);
    for offline in [false, true] {
        let again = resolve(&hub_ref("org/model"), &Options { offline, ..options.clone() }, &()).unwrap();
        assert_eq!(again.dir, files.dir);
        assert_eq!(again.origin, Origin::HubCache { repo: "org/model".to_owned(), commit: COMMIT.to_owned() });
    }
}

#[test]
fn tokenizer_is_fetched_without_the_weights() {
    let tmp = TempDir::new().unwrap();
    let (server, options) = hub(&tmp);
    let dir = resolve_tokenizer(&hub_ref("org/model"), &options, &()).unwrap();
    assert!(dir.join("tokenizer.json").is_file());
    assert!(server.seen().iter().all(|seen| !seen.path.contains("safetensors")), "{:?}", server.seen());
    // From the cache, offline; and the model itself is still fetched whole.
    let offline = Options { offline: true, ..options.clone() };
    assert_eq!(resolve_tokenizer(&hub_ref("org/model"), &offline, &()).unwrap(), dir);
    assert!(resolve(&hub_ref("org/model"), &offline, &()).is_err());
    assert_same_as_served(&resolve(&hub_ref("org/model"), &options, &()).unwrap().dir);
    // A folder without weights, and one without a tokenizer.
    let bare = TempDir::new().unwrap();
    let local = Reference::Dir(bare.path().to_owned());
    assert!(resolve_tokenizer(&local, &options, &()).is_err());
    fs::write(bare.path().join("tokenizer.json"), "{}").unwrap();
    assert_eq!(resolve_tokenizer(&local, &options, &()).unwrap(), bare.path());
}

#[test]
fn offline_mode_sends_no_requests() {
    let tmp = TempDir::new().unwrap();
    let (server, options) = hub(&tmp);
    let options = Options { offline: true, ..options };
    expect_error(resolve(&hub_ref("org/model"), &options, &()), &["org/model@main", "offline", "HF_HUB_OFFLINE"]);
    assert!(server.seen().is_empty());
    assert!(!options.hub_cache.exists());
}

#[test]
fn revisions_are_cached_separately() {
    let tmp = TempDir::new().unwrap();
    let mut old = model_files();
    old.insert("vocab.txt".to_owned(), b"old".to_vec());
    let id = "org/model";
    let server = HubServer::start(
        vec![repo(model_files()), Repo { id, commit: OLD, revisions: &["v1", "refs/pr/1"], files: old }],
        None,
    );
    let options = Options { endpoint: server.endpoint.clone(), ..options(&tmp) };
    let get = |text: &str| resolve(&hub_ref(text), &options, &()).unwrap();
    let vocab = |text: &str| fs::read(get(text).dir.join("vocab.txt")).unwrap();
    assert_eq!(vocab("org/model@v1"), b"old");
    assert_ne!(vocab("org/model"), b"old");
    assert_eq!(vocab("org/model@refs/pr/1"), b"old");
    // A commit needs no ref; and the weights of both are one blob, fetched once.
    assert_eq!(vocab(&format!("org/model@{OLD}")), b"old");
    assert_eq!(server.seen().iter().filter(|seen| seen.cdn && seen.path.contains("/model/model.safe")).count(), 1);
    let refs = options.hub_cache.join("models--org--model/refs");
    assert_eq!(tree(&refs), ["main", "refs/pr/1", "v1"]);
    assert_eq!(fs::read_to_string(refs.join("v1")).unwrap(), OLD);
    expect_error(resolve(&hub_ref("org/model@nope"), &options, &()), &["org/model@nope", "404", "revision"]);
}

#[test]
fn interrupted_download_resumes() {
    let tmp = TempDir::new().unwrap();
    let (server, options) = hub(&tmp);
    // Within one call: the second request starts where the first broke off.
    server.fault("/cdn/org/model/model.safe", Fault::DropAfter(100_000), 1);
    assert_same_as_served(&resolve(&hub_ref("org/model"), &options, &()).unwrap().dir);
    let ranges: Vec<_> = server
        .seen()
        .into_iter()
        .filter(|seen| seen.path.contains("/cdn/org/model/model.s"))
        .map(|s| s.range)
        .collect();
    assert_eq!(ranges, [None, Some("bytes=100000-".to_owned())]);

    // Across calls: the partial file stays, and nothing incomplete is under a final name.
    let tmp = TempDir::new().unwrap();
    let (server, options) = hub(&tmp);
    server.fault("/cdn/org/model/model.safe", Fault::DropAfter(50_000), 4);
    expect_error(resolve(&hub_ref("org/model"), &options, &()), &["model.safetensors", "200000 bytes", "again"]);
    let partial: Vec<_> = blobs(&options).into_iter().filter(|name| name.ends_with(".incomplete")).collect();
    assert_eq!(partial.len(), 1);
    assert_eq!(tree(&options.hub_cache.join("models--org--model/refs")), [""; 0]);
    let progress = RecordedProgress::default();
    assert_same_as_served(&resolve(&hub_ref("org/model"), &options, &progress).unwrap().dir);
    assert_eq!(server.seen().last().unwrap().range.as_deref(), None);
    assert!(server.seen().iter().any(|seen| seen.range.as_deref() == Some("bytes=200000-")));
    assert!(blobs(&options).iter().all(|name| !name.contains("incomplete")));
}

#[test]
fn download_restarts_without_ranges_or_with_bad_partial_files() {
    let tmp = TempDir::new().unwrap();
    let (server, options) = hub(&tmp);
    server.fault("/cdn/org/model/model.safe", Fault::DropAfter(1000), 1);
    server.fault("/cdn/org/model/model.safe", Fault::IgnoreRange, 1);
    assert_same_as_served(&resolve(&hub_ref("org/model"), &options, &()).unwrap().dir);

    // A partial file that is too long, and one of the right length with wrong bytes.
    for (length, fine) in [(WEIGHTS + 5, true), (WEIGHTS, false)] {
        let blob = fs::canonicalize(
            options.hub_cache.join("models--org--model/snapshots").join(COMMIT).join("model.safetensors"),
        );
        let blob = blob.unwrap();
        fs::remove_file(&blob).unwrap();
        let partial = blob.with_extension("incomplete");
        fs::write(&partial, vec![1; length]).unwrap();
        let result = resolve(&hub_ref("org/model"), &options, &());
        assert_eq!(result.is_ok(), fine);
        assert!(!partial.exists());
        assert_same_as_served(&resolve(&hub_ref("org/model"), &options, &()).unwrap().dir);
    }
}

#[test]
fn corrupt_downloads_are_rejected_and_deleted() {
    for fault in [Fault::WrongBytes, Fault::Endless] {
        let tmp = TempDir::new().unwrap();
        let (server, options) = hub(&tmp);
        server.fault("/cdn/org/model/model.safe", fault, 1);
        expect_error(
            resolve(&hub_ref("org/model"), &options, &()),
            &["model.safetensors", "expected", "found", "try again"],
        );
        assert!(blobs(&options).iter().all(|name| !name.contains("incomplete")), "{:?}", blobs(&options));
        assert!(
            !tree(&options.hub_cache)
                .iter()
                .any(|name| name.ends_with("/model.safetensors") && !name.contains("Dense"))
        );
        assert_same_as_served(&resolve(&hub_ref("org/model"), &options, &()).unwrap().dir);
    }
    // A small file has no known hash, but it has a length.
    let tmp = TempDir::new().unwrap();
    let (server, options) = hub(&tmp);
    server.fault("resolve/0123456789abcdef0123456789abcdef01234567/tokenizer.json", Fault::DropAfter(10), 9);
    expect_error(resolve(&hub_ref("org/model"), &options, &()), &["tokenizer.json", "broke off"]);
    assert!(blobs(&options).iter().all(|name| !name.contains("incomplete")));
}

#[test]
fn token_is_sent_only_to_the_hub() {
    let tmp = TempDir::new().unwrap();
    let server = HubServer::start(vec![repo(model_files())], Some("hf_test"));
    let options = Options { endpoint: server.endpoint.clone(), ..options(&tmp) };
    let error = expect_error(resolve(&hub_ref("org/model"), &options, &()), &["401", "RepoNotFound", "HF_TOKEN"]);
    assert!(matches!(error, HubError::Refused { .. }));
    let wrong = Options { token: Token::new("hf_wrong"), ..options.clone() };
    let error = expect_error(resolve(&hub_ref("org/model"), &wrong, &()), &["401"]);
    assert!(!error.to_string().contains("hf_wrong"));
    let options = Options { token: Token::new("hf_test"), ..options };
    assert_same_as_served(&resolve(&hub_ref("org/model"), &options, &()).unwrap().dir);
    let (cdn, own): (Vec<_>, Vec<_>) = server.seen().into_iter().partition(|seen| seen.cdn);
    assert!(!cdn.is_empty() && cdn.iter().all(|seen| seen.authorization.is_none()));
    assert!(own.iter().any(|seen| seen.authorization.as_deref() == Some("Bearer hf_test")));
    let odd = Options { token: Token::new("a\u{7f}b\nc"), ..options.clone() };
    expect_error(resolve(&hub_ref("org/other"), &odd, &()), &["HF_TOKEN"]);
}

#[test]
fn unreachable_hub_fails_within_timeouts() {
    let tmp = TempDir::new().unwrap();
    let started = Instant::now();
    expect_error(
        resolve(&hub_ref("org/model"), &options(&tmp), &()),
        &["cannot reach http://127.0.0.1", "HF_ENDPOINT"],
    );

    let (server, options) = hub(&tmp);
    let timeouts = Timeouts { connect: Duration::from_millis(500), idle: Duration::from_millis(500) };
    let options = Options { timeouts, ..options };
    server.fault("/api/", Fault::Hang, 1);
    expect_error(resolve(&hub_ref("org/model"), &options, &()), &["cannot reach", "timeout"]);
    server.fault("/cdn/org/model/model.safe", Fault::Stall(1000), 9);
    expect_error(resolve(&hub_ref("org/model"), &options, &()), &["model.safetensors", "broke off at 4000", "timeout"]);
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());

    for endpoint in ["ftp://x", "nonsense", "", "http://", "https://user:secret@host"] {
        let error = resolve(&hub_ref("org/new"), &Options { endpoint: endpoint.to_owned(), ..options.clone() }, &());
        let error = expect_error(error, &["hub endpoint"]);
        assert!(!error.to_string().contains("secret"));
    }
}

#[test]
fn invalid_hub_responses_are_errors() {
    let tmp = TempDir::new().unwrap();
    let (server, options) = hub(&tmp);
    let get = || resolve(&hub_ref("org/model"), &options, &());
    server.fault("/api/", Fault::Status(500), 1);
    expect_error(get(), &["org/model@main", "status 500", "later"]);
    server.fault("/api/", Fault::Status(403), 1);
    expect_error(get(), &["403", "terms"]);
    server.fault("/cdn/", Fault::Status(503), 1);
    let error = expect_error(get(), &["redirect to", "503"]);
    assert!(!error.to_string().contains("signature"));
    for etag in ["../../../evil", "", ".", "a/b"] {
        server.fault("/config.json", Fault::Etag(etag), 1);
        expect_error(get(), &["no usable ETag"]);
    }
    expect_error(resolve(&hub_ref("org/absent"), &options, &()), &["org/absent", "404"]);

    // Names and commits that would lead out of the cache.
    let id = "org/evil";
    let mut files = model_files();
    files.insert("tokenizer/../../../../../x.json".to_owned(), Vec::new());
    files.insert("tokenizer\\..\\x.json".to_owned(), Vec::new());
    let evil = HubServer::start(
        vec![
            Repo { id, commit: COMMIT, revisions: &["main"], files },
            Repo { id: "org/sha", commit: "../../../../x", revisions: &["main"], files: model_files() },
        ],
        None,
    );
    let options = Options { endpoint: evil.endpoint.clone(), ..options.clone() };
    expect_error(resolve(&hub_ref("org/evil"), &options, &()), &["leads outside"]);
    expect_error(resolve(&hub_ref("org/sha"), &options, &()), &["an invalid commit"]);
    assert_eq!(fs::read_dir(tmp.path()).unwrap().count(), 1);
}

#[test]
fn pickles_are_rejected_before_download() {
    let tmp = TempDir::new().unwrap();
    let mut files = model_files();
    files.retain(|name, _| ![".safetensors", ".bin", ".onnx"].iter().any(|end| name.ends_with(end)));
    files.insert("model.ckpt".to_owned(), noise(11));
    let server = HubServer::start(vec![repo(files)], None);
    let options = Options { endpoint: server.endpoint.clone(), ..options(&tmp) };
    expect_error(resolve(&hub_ref("org/model"), &options, &()), &["only model.ckpt", "can run any code", "revision"]);
    assert_eq!(server.seen().len(), 1);
    assert!(!options.hub_cache.exists());
}

/// Python's AutoModel fetches no modules.json: the cached files are usable, but only the hub knows
/// whether they are complete.
#[test]
fn incomplete_cache_is_completed_or_noted() {
    let tmp = TempDir::new().unwrap();
    let (server, options) = hub(&tmp);
    let folder = options.hub_cache.join("models--org--model");
    let mut cached = model_files();
    cached.retain(|name, _| ["config.json", "model.safetensors", "tokenizer.json"].contains(&name.as_str()));
    write_files(&folder.join("snapshots").join(COMMIT), &cached);
    fs::create_dir_all(folder.join("refs")).unwrap();
    fs::write(folder.join("refs/main"), COMMIT).unwrap();

    let progress = RecordedProgress::default();
    let offline = Options { offline: true, ..options.clone() };
    let files = resolve(&hub_ref("org/model"), &offline, &progress).unwrap();
    assert!(matches!(files.origin, Origin::HubCache { .. }));
    assert!(progress.lines().contains("may lack files of the model: modules.json"), "{}", progress.lines());
    server.fault("/api/", Fault::Status(502), 1);
    let progress = RecordedProgress::default();
    resolve(&hub_ref("org/model"), &options, &progress).unwrap();
    assert!(progress.lines().contains("502") && progress.lines().contains("may lack"), "{}", progress.lines());
    assert_same_as_served(&resolve(&hub_ref("org/model"), &options, &()).unwrap().dir);
    assert!(!server.seen().iter().any(|seen| seen.path.contains("/model/model.safetensors")));
    // Missing files of the repository are recorded where Python records them.
    assert_eq!(tree(&folder.join(".no_exist")), [format!("{COMMIT}/config_sentence_transformers.json")]);
}

#[test]
fn unwritable_hub_cache_is_an_error() {
    let tmp = TempDir::new().unwrap();
    let (_server, options) = hub(&tmp);
    fs::write(&options.hub_cache, "a file").unwrap();
    expect_error(
        resolve(&hub_ref("org/model"), &options, &()),
        &["cannot create", "hub/models--org--model", "HF_HUB_CACHE"],
    );
}

/// `/dev/full` as the partial file: every write fails as on a full disk.
#[cfg(target_os = "linux")]
#[test]
fn full_disk_is_an_error_and_partial_file_is_removed() {
    let tmp = TempDir::new().unwrap();
    let (server, options) = hub(&tmp);
    let hash: String = {
        use sha2::Digest;
        sha2::Sha256::digest(noise(WEIGHTS)).iter().map(|byte| format!("{byte:02x}")).collect()
    };
    let blobs = options.hub_cache.join("models--org--model/blobs");
    let partial = blobs.join(format!("{hash}.incomplete"));
    fs::create_dir_all(&blobs).unwrap();
    std::os::unix::fs::symlink("/dev/full", &partial).unwrap();
    let error =
        expect_error(resolve(&hub_ref("org/model"), &options, &()), &["cannot write", &hash, "free some space"]);
    assert!(matches!(error, HubError::Disk { .. }));
    assert!(partial.symlink_metadata().is_err());
    assert_eq!(server.seen().iter().filter(|seen| seen.path.contains("/cdn/org/model/model")).count(), 1);
    assert_same_as_served(&resolve(&hub_ref("org/model"), &options, &()).unwrap().dir);
}

#[test]
fn concurrent_calls_download_once() {
    let tmp = TempDir::new().unwrap();
    let (server, options) = hub(&tmp);
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| assert_same_as_served(&resolve(&hub_ref("org/model"), &options, &()).unwrap().dir));
        }
    });
    assert_eq!(server.seen().iter().filter(|seen| seen.path.contains("/cdn/org/model/model.s")).count(), 1);
    assert!(blobs(&options).iter().all(|name| !name.contains("incomplete")));
}
