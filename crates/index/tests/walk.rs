//! What a walk finds, and what it must never open.

use std::fs;
use std::path::Path;

use sconce_index::read::Format;
use sconce_index::walk::{Found, SkipReason, Walk, WalkEntry, WalkOptions, is_secret_name};
use tempfile::TempDir;

fn folder(files: &[(&str, &str)]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, content) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    dir
}

fn walk(roots: &[&Path], options: WalkOptions) -> (Vec<Found>, Vec<(String, SkipReason)>) {
    let (mut found, mut skipped) = (Vec::new(), Vec::new());
    for entry in Walk::new(roots, options).unwrap() {
        match entry {
            WalkEntry::Found(file) => found.push(file),
            WalkEntry::Skipped(file) => {
                skipped.push((file.path.file_name().unwrap().to_string_lossy().into_owned(), file.reason));
            }
        }
    }
    (found, skipped)
}

fn names(found: &[Found]) -> Vec<String> {
    found.iter().map(|file| file.relative.to_string_lossy().replace('\\', "/")).collect()
}

#[test]
fn files_come_in_order_with_their_formats() {
    let dir = folder(&[
        ("b/two.rs", "fn main() {}"),
        ("a.md", "# A"),
        ("b/one.html", "<p>"),
        ("c", "plain text without an ending"),
        ("d", "<!DOCTYPE html><p>"),
        ("e.csv", "a,b"),
    ]);
    let (found, skipped) = walk(&[dir.path()], WalkOptions::default());
    assert_eq!(names(&found), ["a.md", "b/one.html", "b/two.rs", "c", "d", "e.csv"]);
    let formats: Vec<Format> = found.iter().map(|file| file.format).collect();
    assert_eq!(formats[0], Format::Markdown);
    assert_eq!(formats[1], Format::Html);
    assert!(matches!(formats[2], Format::Code(_)));
    assert_eq!(formats[3], Format::Text);
    assert_eq!(formats[4], Format::Html);
    assert_eq!(formats[5], Format::Csv);
    assert!(skipped.is_empty(), "{skipped:?}");
    assert!(found.iter().all(|file| file.path.is_absolute() && file.size > 0 && file.modified_ns > 0));
}

#[test]
fn hidden_and_ignored_files_are_left_out() {
    let dir = folder(&[
        (".gitignore", "*.log\n/build/\n"),
        ("kept.txt", "x"),
        ("noise.log", "x"),
        ("build/out.txt", "x"),
        (".hidden/a.txt", "x"),
        (".git/config", "x"),
    ]);
    let (found, _) = walk(&[dir.path()], WalkOptions::default());
    assert_eq!(names(&found), ["kept.txt"]);
    let (found, _) = walk(&[dir.path()], WalkOptions { hidden: true, ignore_files: false });
    assert_eq!(names(&found), [".gitignore", ".hidden/a.txt", "build/out.txt", "kept.txt", "noise.log"]);
}

#[test]
fn secrets_and_binary_files_are_reported() {
    let dir = folder(&[
        ("id_rsa", "x"),
        ("server.pem", "x"),
        ("data.xyz", "a\0b"),
        ("photo.png", "x"),
        ("a.txt", "x"),
        ("key", "-----BEGIN PRIVATE KEY-----\nabc"),
    ]);
    let (found, mut skipped) = walk(&[dir.path()], WalkOptions { hidden: true, ignore_files: true });
    assert_eq!(names(&found), ["a.txt"]);
    skipped.sort_by(|a, b| a.0.cmp(&b.0));
    let reasons: Vec<(&str, &SkipReason)> = skipped.iter().map(|(name, reason)| (name.as_str(), reason)).collect();
    assert_eq!(
        reasons,
        [
            ("data.xyz", &SkipReason::Binary),
            ("id_rsa", &SkipReason::Secret),
            ("key", &SkipReason::Secret),
            ("photo.png", &SkipReason::Binary),
            ("server.pem", &SkipReason::Secret),
        ]
    );
}

#[test]
fn secret_names() {
    for name in [
        ".env",
        ".env.local",
        "ID_RSA",
        "id_ed25519.bak",
        "a.KEY",
        "x.tfstate.backup",
        "credentials.json",
        ".netrc",
        ".env_prod",
        "prod.env",
    ] {
        assert!(is_secret_name(name), "{name}");
    }
    for name in ["id_rsa.pub", "credentials.md", "environment.txt", "keys.rs", "secrets.html", "key"] {
        assert!(!is_secret_name(name), "{name}");
    }
}

#[test]
fn a_missing_root_is_an_error() {
    let dir = folder(&[]);
    let error = Walk::new(&[dir.path().join("absent")], WalkOptions::default()).err().unwrap();
    assert!(error.to_string().contains("absent"), "{error}");
}

#[test]
fn overlapping_roots_give_each_file_once() {
    let dir = folder(&[("a/b.txt", "x"), ("c.txt", "x")]);
    let inner = dir.path().join("a");
    let (found, _) = walk(&[&inner, dir.path(), &inner.join("b.txt")], WalkOptions::default());
    assert_eq!(names(&found), ["b.txt", "c.txt"]);
}

#[test]
fn a_root_may_be_a_file() {
    let dir = folder(&[("a.txt", "x"), ("b.txt", "x")]);
    let (found, _) = walk(&[&dir.path().join("b.txt")], WalkOptions::default());
    assert_eq!(names(&found), ["b.txt"]);
}

#[cfg(unix)]
mod unix {
    use super::*;
    use std::os::unix::fs::symlink;

    fn fifo(path: &Path) {
        assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
    }

    #[test]
    fn links_are_not_followed() {
        let outside = folder(&[("secret.txt", "x"), ("sub/other.txt", "x")]);
        let dir = folder(&[("a.txt", "x"), ("sub/b.txt", "x")]);
        symlink(outside.path().join("secret.txt"), dir.path().join("file_out.txt")).unwrap();
        symlink(outside.path().join("sub"), dir.path().join("folder_out")).unwrap();
        symlink(dir.path().join("a.txt"), dir.path().join("file_in.txt")).unwrap();
        symlink("..", dir.path().join("sub/loop")).unwrap();
        symlink("nowhere", dir.path().join("broken")).unwrap();
        let (found, skipped) = walk(&[dir.path()], WalkOptions::default());
        assert_eq!(names(&found), ["a.txt", "sub/b.txt"]);
        let reason = |name: &str| skipped.iter().find(|(n, _)| n == name).map(|(_, reason)| reason.clone());
        assert_eq!(reason("file_out.txt"), Some(SkipReason::LinkOutside));
        assert_eq!(reason("folder_out"), Some(SkipReason::LinkOutside));
        assert_eq!(reason("file_in.txt"), Some(SkipReason::LinkInside));
        assert_eq!(reason("loop"), Some(SkipReason::LinkInside));
        assert!(matches!(reason("broken"), Some(SkipReason::Unreadable(_))));
    }

    #[test]
    fn a_root_in_a_linked_folder_is_not_walked_twice() {
        let dir = folder(&[("real/docs/a.txt", "x"), ("real/docs/sub/b.txt", "x")]);
        symlink(dir.path().join("real"), dir.path().join("link")).unwrap();
        let roots = [dir.path().join("link/docs"), dir.path().join("real/docs/sub")];
        let (found, skipped) = walk(&[&roots[0], &roots[1]], WalkOptions::default());
        assert_eq!((names(&found), skipped.len()), (vec!["a.txt".to_string(), "sub/b.txt".to_string()], 0));
    }

    #[test]
    fn a_link_as_root_is_followed() {
        let dir = folder(&[("sub/b.txt", "x")]);
        let link = dir.path().join("link");
        symlink(dir.path().join("sub"), &link).unwrap();
        let (found, skipped) = walk(&[&link], WalkOptions::default());
        assert_eq!((names(&found), skipped.len()), (vec!["b.txt".to_string()], 0));
    }

    /// Opening a FIFO blocks until somebody writes to it, so this test would not end.
    #[test]
    fn a_fifo_is_never_opened() {
        let dir = folder(&[("a.txt", "x"), ("sub/b.txt", "x"), ("other/c.txt", "x")]);
        fifo(&dir.path().join("pipe.txt"));
        fifo(&dir.path().join("pipe"));
        fifo(&dir.path().join("sub/.gitignore"));
        let (found, skipped) = walk(&[dir.path()], WalkOptions::default());
        assert_eq!(names(&found), ["a.txt", "other/c.txt"]);
        assert_eq!(skipped.iter().filter(|(_, reason)| *reason == SkipReason::Special).count(), 2);
        assert!(skipped.iter().any(|(name, reason)| name == "sub" && matches!(reason, SkipReason::IgnoreFile(_))));
        fifo(&dir.path().join(".ignore"));
        let (found, skipped) = walk(&[dir.path()], WalkOptions::default());
        assert!(found.is_empty() && matches!(skipped[..], [(_, SkipReason::IgnoreFile(_))]), "{skipped:?}");
        // The ignore files of folders above count too.
        let other = dir.path().join("other");
        let (found, skipped) = walk(&[&other], WalkOptions::default());
        assert!(found.is_empty() && matches!(skipped[..], [(_, SkipReason::IgnoreFile(_))]), "{skipped:?}");
        let (found, _) = walk(&[&other], WalkOptions { ignore_files: false, ..WalkOptions::default() });
        assert_eq!(names(&found), ["c.txt"]);
    }

    #[test]
    fn an_ignore_file_of_a_gigabyte_is_not_read() {
        let dir = folder(&[("sub/b.txt", "x"), ("a.txt", "x")]);
        fs::File::create(dir.path().join("sub/.gitignore")).unwrap().set_len(1 << 30).unwrap();
        let (found, skipped) = walk(&[dir.path()], WalkOptions::default());
        assert_eq!(names(&found), ["a.txt"]);
        assert!(matches!(&skipped[..], [(name, SkipReason::IgnoreFile(_))] if name == "sub"), "{skipped:?}");
    }
}
