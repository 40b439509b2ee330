//! The manual pages in docs/man match the command line.

use std::path::Path;
use std::process::Command;

#[test]
fn manual_pages_are_current() {
    let committed = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/man"));
    let generated = tempfile::tempdir().expect("a temporary directory");
    let target = if std::env::var_os("SCONCE_BLESS").is_some() { committed } else { generated.path() };
    let status = Command::new(env!("CARGO_BIN_EXE_sconce")).args(["man", "--dir"]).arg(target).status().expect("runs");
    assert!(status.success());
    let mut pages = 0;
    for entry in std::fs::read_dir(target).expect("pages").flatten() {
        let want = std::fs::read_to_string(entry.path()).expect("a page");
        let have = std::fs::read_to_string(committed.join(entry.file_name())).unwrap_or_default();
        let page = entry.file_name();
        assert!(
            have == want,
            "docs/man/{} is out of date: run `SCONCE_BLESS=1 cargo test -p sconce --test docs`",
            page.display()
        );
        pages += 1;
    }
    assert!(pages > 8, "{pages} pages");
    assert_eq!(std::fs::read_dir(committed).expect("docs/man").count(), pages, "docs/man has a page without a command");
}

#[test]
fn completions_name_commands_and_flags_in_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let out = Command::new(env!("CARGO_BIN_EXE_sconce")).args(["completions", shell]).output().expect("runs");
        let text = String::from_utf8(out.stdout).expect("text");
        assert!(out.status.success() && text.contains("similarity") && text.contains("batch-tokens"), "{shell}");
    }
}
