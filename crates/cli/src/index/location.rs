//! Where the database of an index is.

use crate::Failure;
use clap::Args;
use std::path::{Path, PathBuf};

/// The folder that holds an index, inside of the folder that it indexes.
const FOLDER: &str = ".sconce";

/// The database in that folder.
const FILE: &str = "index.db";

/// The database.
#[derive(Args, Clone)]
pub(crate) struct DatabaseArgs {
    /// The database of the index. Default: .sconce/index.db, for `index PATH` in the first PATH,
    /// else in the working directory or the nearest folder above that has one.
    #[arg(long, value_name = "FILE", env = "SCONCE_INDEX")]
    pub(crate) db: Option<PathBuf>,
}

impl DatabaseArgs {
    /// The database to read.
    pub(crate) fn existing(&self) -> Result<PathBuf, Failure> {
        match &self.db {
            Some(path) if path.exists() => Ok(path.clone()),
            Some(path) => Err(format!(
                "{}: there is no such database; make it with `sconce index PATH --db {}`",
                path.display(),
                path.display()
            )
            .into()),
            None => {
                let from = std::env::current_dir().map_err(|e| format!("the working directory: {e}"))?;
                nearest(&from).ok_or_else(|| {
                    format!(
                        "no index found: neither {} nor a folder above it has {FOLDER}/{FILE}; make one with `sconce \
                         index PATH`, or name one with --db FILE",
                        from.display()
                    )
                    .into()
                })
            }
        }
    }

    /// The database of an index over `first` and other paths. It need not exist.
    pub(crate) fn of_paths(&self, first: &Path) -> PathBuf {
        self.db.clone().unwrap_or_else(|| {
            let folder = match first.is_file() {
                true => first.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")),
                false => first,
            };
            folder.join(FOLDER).join(FILE)
        })
    }
}

/// The nearest database at or above a folder.
fn nearest(folder: &Path) -> Option<PathBuf> {
    folder.ancestors().map(|folder| folder.join(FOLDER).join(FILE)).find(|path| path.is_file())
}

/// Creates the folder of a database. In a folder `.sconce` it writes a `.gitignore`, so that the
/// index does not become part of a repository.
pub(crate) fn create_folder(database: &Path) -> Result<(), Failure> {
    let Some(folder) = database.parent().filter(|folder| !folder.as_os_str().is_empty()) else { return Ok(()) };
    let failed = |e: std::io::Error| -> Failure { format!("cannot create {}: {e}", folder.display()).into() };
    let is_ours = folder.file_name().is_some_and(|name| name == FOLDER);
    // A folder that is indexed may come from anyone: a link in it must not decide what is written
    // elsewhere.
    if is_ours && folder.symlink_metadata().is_ok_and(|found| found.is_symlink()) {
        return Err(format!("{} is a link; remove it, or name a database with --db FILE", folder.display()).into());
    }
    if is_ours && database.symlink_metadata().is_ok_and(|found| found.is_symlink()) {
        return Err(format!("{} is a link; remove it, or name a database with --db FILE", database.display()).into());
    }
    std::fs::create_dir_all(folder).map_err(failed)?;
    let ignore = folder.join(".gitignore");
    if is_ours && ignore.symlink_metadata().is_err() {
        std::fs::write(ignore, "*\n").map_err(failed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_database_above_is_found() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("a/b/c");
        std::fs::create_dir_all(&inner).unwrap();
        let args = DatabaseArgs { db: None };
        let outer = args.of_paths(root.path());
        assert_eq!(outer, root.path().join(".sconce/index.db"));
        create_folder(&outer).unwrap();
        assert_eq!(std::fs::read_to_string(root.path().join(".sconce/.gitignore")).unwrap(), "*\n");
        // A folder without a database is not an index.
        assert_eq!(nearest(&inner).filter(|path| path.starts_with(root.path())), None);
        std::fs::write(&outer, "").unwrap();
        assert_eq!(nearest(&inner), Some(outer));
        let nearer = args.of_paths(&root.path().join("a"));
        create_folder(&nearer).unwrap();
        std::fs::write(&nearer, "").unwrap();
        assert_eq!(nearest(&inner), Some(nearer));
    }

    #[test]
    fn the_default_of_a_file_is_beside_it() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("a.md");
        std::fs::write(&file, "").unwrap();
        let args = DatabaseArgs { db: None };
        assert_eq!(args.of_paths(&file), root.path().join(".sconce/index.db"));
        let named = DatabaseArgs { db: Some("x.db".into()) };
        assert_eq!(named.of_paths(&file), Path::new("x.db"));
        let absent = DatabaseArgs { db: Some(root.path().join("absent.db")) };
        let error = absent.existing().unwrap_err().to_string();
        assert!(error.contains("absent.db: there is no such database") && error.contains("sconce index"), "{error}");
    }

    #[test]
    fn files_of_the_folder_stay_and_links_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let database = root.path().join(".sconce/index.db");
        create_folder(&database).unwrap();
        std::fs::write(root.path().join(".sconce/.gitignore"), "index.db\n").unwrap();
        create_folder(&database).unwrap();
        assert_eq!(std::fs::read_to_string(root.path().join(".sconce/.gitignore")).unwrap(), "index.db\n");
        // Another folder gets no file of ours.
        create_folder(&root.path().join("other/x.db")).unwrap();
        assert_eq!(std::fs::read_dir(root.path().join("other")).unwrap().count(), 0);
        #[cfg(unix)]
        {
            let hostile = root.path().join("hostile");
            std::fs::create_dir(&hostile).unwrap();
            std::os::unix::fs::symlink(root.path().join("other"), hostile.join(".sconce")).unwrap();
            let error = create_folder(&hostile.join(".sconce/index.db")).unwrap_err().to_string();
            assert!(error.contains("is a link"), "{error}");
            std::fs::remove_file(hostile.join(".sconce")).unwrap();
            std::fs::create_dir(hostile.join(".sconce")).unwrap();
            std::os::unix::fs::symlink(root.path().join("new"), hostile.join(".sconce/index.db")).unwrap();
            let error = create_folder(&hostile.join(".sconce/index.db")).unwrap_err().to_string();
            assert!(error.contains("index.db is a link"), "{error}");
        }
    }
}
