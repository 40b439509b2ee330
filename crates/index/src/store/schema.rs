//! The tables, and opening the database's file.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::{Connection, OpenFlags, TransactionBehavior};

use crate::error::{Error, Result};

/// "SCNC": marks the file as an index of Sconce.
const APPLICATION_ID: i32 = 0x5343_4e43;
/// The version of the tables.
const VERSION: i32 = 1;

/// Chunks have ids that are never used again (`AUTOINCREMENT`), so that the files of codes, which
/// have ids in them, can never mean other chunks than those they were made of.
///
/// `documents.text` and `documents.layout` come last: a reader of the other columns does not touch
/// the pages of a long text.
const TABLES: &str = "
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE files (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    path TEXT NOT NULL UNIQUE,
    relative TEXT NOT NULL,
    root TEXT,
    size INTEGER NOT NULL,
    modified_ns INTEGER,
    hash BLOB,
    settings TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('done', 'failed', 'skipped')),
    reason TEXT
) STRICT;
CREATE INDEX files_state ON files (state, path);
CREATE TABLE documents (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    file INTEGER NOT NULL REFERENCES files (id),
    row INTEGER,
    title TEXT,
    kind TEXT NOT NULL,
    unit TEXT NOT NULL,
    metadata TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    text TEXT NOT NULL,
    layout TEXT NOT NULL
) STRICT;
CREATE INDEX documents_file ON documents (file);
CREATE TABLE chunks (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    document INTEGER NOT NULL REFERENCES documents (id),
    ordinal INTEGER NOT NULL,
    start INTEGER NOT NULL,
    stop INTEGER NOT NULL,
    place INTEGER,
    heading TEXT,
    hash BLOB NOT NULL,
    tokens INTEGER NOT NULL,
    UNIQUE (document, ordinal)
) STRICT;
CREATE TABLE dense (chunk INTEGER PRIMARY KEY, vector BLOB NOT NULL) STRICT;
CREATE TABLE sparse (chunk INTEGER PRIMARY KEY, vector BLOB NOT NULL) STRICT;
CREATE TABLE sparse_terms (
    term INTEGER NOT NULL,
    chunk INTEGER NOT NULL,
    weight REAL NOT NULL,
    PRIMARY KEY (term, chunk)
) STRICT, WITHOUT ROWID;
CREATE TABLE multi (chunk INTEGER PRIMARY KEY, vectors BLOB NOT NULL) STRICT;
CREATE TABLE pending (
    hash BLOB PRIMARY KEY,
    main BLOB NOT NULL,
    mean BLOB
) STRICT, WITHOUT ROWID;
CREATE TABLE deleted (chunk INTEGER PRIMARY KEY) STRICT;
CREATE TABLE segments (
    name TEXT PRIMARY KEY,
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,
    rows INTEGER NOT NULL,
    info TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE VIRTUAL TABLE full_text USING fts5 (
    title, heading, text,
    content = '', contentless_delete = 1, tokenize = 'porter unicode61 remove_diacritics 2'
);
";

/// Removes the content of all tables. The sequences of ids go on.
pub(super) const CLEAR: &str = "
DELETE FROM meta WHERE key <> 'generation';
DELETE FROM sparse_terms; DELETE FROM sparse; DELETE FROM multi; DELETE FROM dense;
DELETE FROM pending; DELETE FROM deleted; DELETE FROM segments;
DELETE FROM chunks; DELETE FROM documents; DELETE FROM files;
INSERT INTO full_text (full_text) VALUES ('delete-all');
";

/// How long a statement waits for another process.
pub(super) const BUSY: Duration = Duration::from_secs(30);
/// The longest text or blob, in bytes, whatever the file says. A document has at most 256 MiB.
const MAX_LENGTH: i32 = 512 << 20;

fn database(path: &Path, why: impl Into<String>) -> Error {
    Error::Database { path: path.to_owned(), why: why.into() }
}

/// The path of a file beside the database's: `FILE` with an ending.
pub(crate) fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// The files of an index itself, and the folder of its codes; by their paths with and without
/// symbolic links.
pub(crate) fn own_files(database: &Path) -> Vec<PathBuf> {
    let forms = [std::path::absolute(database).ok(), std::fs::canonicalize(database).ok()];
    let endings = ["", "-wal", "-shm", "-journal", ".writer", ".codes"];
    forms.into_iter().flatten().flat_map(|path| endings.map(|ending| beside(&path, ending))).collect()
}

/// Creates the tables, unless they are there. Two processes may do so at the same time.
pub(super) fn create(path: &Path) -> Result<()> {
    if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
        std::fs::create_dir_all(dir).map_err(Error::io(dir))?;
    }
    create_private(path)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = connect(path, flags)?;
    if !is_empty(path, &connection)? {
        return check(path, &connection);
    }
    // Vectors of 384 dimensions waste a quarter of a page of 4 KiB, and a twentieth of 8 KiB.
    connection.execute_batch("PRAGMA page_size = 8192; PRAGMA journal_mode = WAL;")?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    if is_empty(path, &transaction)? {
        transaction.execute_batch(TABLES)?;
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        transaction.pragma_update(None, "user_version", VERSION)?;
    }
    transaction.commit()?;
    check(path, &connection)
}

/// Creates an empty file that only this user reads, if there is none: the index has the texts of
/// files that others may not read. SQLite gives the files beside it the same permissions.
fn create_private(path: &Path) -> Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    match options.open(path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(Error::io(path)(error)),
        _ => Ok(()),
    }
}

/// A connection for reading.
pub(super) fn reader(path: &Path) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = connect(path, flags)?;
    check(path, &connection)?;
    connection.execute_batch("PRAGMA cache_size = -16384;")?;
    Ok(connection)
}

/// A connection for writing. The caller holds the lock.
pub(super) fn writer(path: &Path) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = connect(path, flags)?;
    check(path, &connection)?;
    // NORMAL: a commit survives the end of the process at any moment. After a power failure the last
    // commits may be missing, and the next run does them again.
    connection.execute_batch(
        "PRAGMA synchronous = NORMAL; PRAGMA cache_size = -65536; PRAGMA journal_size_limit = 67108864;
         PRAGMA foreign_keys = OFF;",
    )?;
    Ok(connection)
}

fn connect(path: &Path, flags: OpenFlags) -> Result<Connection> {
    if path.is_dir() {
        return Err(database(path, "is a folder; name the index's file"));
    }
    let connection =
        Connection::open_with_flags(path, flags).map_err(|e| database(path, format!("cannot be opened: {e}")))?;
    connection.busy_timeout(BUSY)?;
    connection.set_prepared_statement_cache_capacity(128);
    distrust(&connection)?;
    Ok(connection)
}

/// The file may come from anyone, for example with a folder that is indexed: nothing in its schema
/// may run, and damaged pages must be noticed.
fn distrust(connection: &Connection) -> Result<()> {
    use DbConfig::{
        SQLITE_DBCONFIG_DEFENSIVE, SQLITE_DBCONFIG_ENABLE_TRIGGER, SQLITE_DBCONFIG_ENABLE_VIEW,
        SQLITE_DBCONFIG_TRUSTED_SCHEMA,
    };
    connection.set_db_config(SQLITE_DBCONFIG_DEFENSIVE, true)?;
    for config in [SQLITE_DBCONFIG_ENABLE_TRIGGER, SQLITE_DBCONFIG_ENABLE_VIEW, SQLITE_DBCONFIG_TRUSTED_SCHEMA] {
        connection.set_db_config(config, false)?;
    }
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, MAX_LENGTH)?;
    connection.set_limit(Limit::SQLITE_LIMIT_ATTACHED, 0)?;
    connection.execute_batch("PRAGMA cell_size_check = ON;")?;
    Ok(())
}

/// Whether the file is new: it has no tables. A process may have been killed after it created the
/// file.
fn is_empty(path: &Path, connection: &Connection) -> Result<bool> {
    let tables = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get::<_, i64>(0));
    Ok(tables.map_err(|e| unreadable(path, e))? == 0)
}

fn unreadable(path: &Path, error: rusqlite::Error) -> Error {
    match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::NotADatabase) => {
            database(path, "is not an index but a file of another kind; name another file")
        }
        Some(rusqlite::ErrorCode::DatabaseCorrupt) => {
            database(path, "is damaged; remove it, and index the files again")
        }
        _ => database(path, format!("cannot be read: {error}")),
    }
}

/// Refuses databases of other programs and of other versions.
fn check(path: &Path, connection: &Connection) -> Result<()> {
    let pragma = |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, i32>(0));
    let id = pragma("application_id").map_err(|e| unreadable(path, e))?;
    if id != APPLICATION_ID {
        return Err(match is_empty(path, connection)? {
            true => database(path, "is empty; index something first"),
            false => database(path, "is a database of another program; name another file"),
        });
    }
    match pragma("user_version")? {
        VERSION => check_schema(path, connection),
        newer if newer > VERSION => {
            Err(database(path, format!("was written by a newer version (format {newer}); update this program")))
        }
        older => Err(database(path, format!("has the old format {older}; remove it, and index the files again"))),
    }
}

/// Tables, indexes, views and triggers: kind, name and SQL, in the order of names.
type Schema = Vec<(String, String, Option<String>)>;

fn schema(connection: &Connection) -> rusqlite::Result<Schema> {
    // More rows than an index has are too many, however many there are.
    let sql = "SELECT type, name, sql FROM sqlite_schema ORDER BY name LIMIT 100";
    let mut find = connection.prepare(sql)?;
    let rows = find.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    rows.collect()
}

/// Refuses a file whose tables are not those of an index. A trigger, a view or a generated column
/// would change what our statements do.
fn check_schema(path: &Path, connection: &Connection) -> Result<()> {
    static OURS: OnceLock<Schema> = OnceLock::new();
    let ours = match OURS.get() {
        Some(ours) => ours,
        None => {
            let empty = Connection::open_in_memory()?;
            empty.execute_batch(TABLES)?;
            let found = schema(&empty)?;
            OURS.get_or_init(|| found)
        }
    };
    let found = schema(connection).map_err(|e| unreadable(path, e))?;
    if found == *ours {
        return Ok(());
    }
    let foreign = found.iter().find(|entry| !ours.contains(entry)).or_else(|| ours.iter().find(|e| !found.contains(e)));
    let name = foreign.map_or("", |(_, name, _)| name.as_str()).escape_debug().to_string();
    let why = format!("does not have the tables of an index (`{name}` differs); remove it, and index the files again");
    Err(database(path, why))
}

/// Refuses a link beside the database: it would decide what is written elsewhere.
fn refuse_link(path: &Path) -> Result<()> {
    match path.symlink_metadata() {
        Ok(found) if found.is_symlink() => Err(database(path, "is a link; remove it")),
        _ => Ok(()),
    }
}

/// Takes the lock of the one writer. The system releases it when the process ends, however it ends.
pub(super) fn lock(path: &Path) -> Result<File> {
    let lock = beside(path, ".writer");
    refuse_link(&lock)?;
    refuse_link(&beside(path, ".codes"))?;
    let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&lock);
    let mut file = open.map_err(Error::io(&lock))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut id = String::new();
            // Not readable on Windows while it is locked.
            let _ = (&mut file).take(20).read_to_string(&mut id);
            let process = match id.trim() {
                "" => "another process".to_owned(),
                id => format!("process {id}"),
            };
            return Err(database(path, format!("{process} is writing to this index; wait until it ends, or stop it")));
        }
        Err(TryLockError::Error(error)) => return Err(Error::Io { path: lock, error }),
    }
    let write = |file: &mut File| {
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(format!("{}\n", std::process::id()).as_bytes())
    };
    write(&mut file).map_err(Error::io(&lock))?;
    Ok(file)
}
