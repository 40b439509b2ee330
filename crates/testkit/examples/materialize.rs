//! Writes goldens as model folders, for tests that are not in Rust: `materialize FOLDER NAME…`.

use std::path::Path;

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let (path, target) = entry.map(|e| (e.path(), to.join(e.file_name())))?;
        if path.is_dir() { copy(&path, &target)? } else { std::fs::copy(&path, &target).map(drop)? }
    }
    Ok(())
}

fn main() -> std::io::Result<()> {
    let mut args = std::env::args().skip(1);
    let folder = args.next().expect("the folder to write to");
    for name in args {
        let dir = sconce_testkit::materialize(&name);
        copy(dir.path(), &Path::new(&folder).join(&name))?;
    }
    Ok(())
}
