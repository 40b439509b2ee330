//! Unpacks an untrusted archive. Only plain files are written, all under one new directory, and
//! never more bytes than declared; every entry is checked before the first byte is written.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use zip::ZipArchive;

use super::error::disk;
use super::reference::is_safe_relative;
use super::store::{CopyError, copy_to};
use super::{HubError, Progress, Span};

/// Limits of an archive.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    pub(super) entries: usize,
    pub(super) bytes: u64,
    /// Unpacked size over packed size. Text shrinks tenfold and weights hardly at all; deflate's
    /// maximum is about 1000.
    pub(super) ratio: u64,
}

pub(super) const LIMITS: Limits = Limits { entries: 200_000, bytes: 64 << 30, ratio: 200 };

/// Small archives may compress a run of zeros very well.
const RATIO_FLOOR: u64 = 1 << 20;

/// Extensions of code. No model needs code, so it is not unpacked, and nobody can run it by
/// mistake.
const CODE: [&str; 10] = [".py", ".pyc", ".pyo", ".pyx", ".pyd", ".so", ".dll", ".dylib", ".exe", ".pth"];

/// Unpacks everything but code from `archive` into the empty directory `into`.
pub(super) fn unpack(archive: &Path, into: &Path, limits: Limits, progress: &dyn Progress) -> Result<(), HubError> {
    let label = archive.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let refuse = |why: String| HubError::Wheel { wheel: label.clone(), why };
    let broken = |error: &dyn std::fmt::Display| refuse(format!("it is not a sound zip file ({error})"));

    let file = File::open(archive).map_err(disk("read", archive))?;
    let packed = file.metadata().map_err(disk("read", archive))?.len();
    let mut zip = ZipArchive::new(file).map_err(|error| broken(&error))?;
    if zip.len() > limits.entries {
        return Err(refuse(format!("{} entries, over the limit of {}", zip.len(), limits.entries)));
    }

    let mut plan = Vec::new();
    let mut total = 0_u64;
    for index in 0..zip.len() {
        let entry = zip.by_index_raw(index).map_err(|error| broken(&error))?;
        let name = entry.name().map_err(|error| broken(&error))?.into_owned();
        if !is_safe_relative(name.strip_suffix('/').unwrap_or(&name)) {
            return Err(refuse(format!("the entry {name:?} leads outside the archive")));
        }
        // The type bits of a Unix mode; 0 if the archive was made elsewhere.
        match entry.unix_mode().unwrap_or(0) & 0o170_000 {
            0 | 0o100_000 | 0o040_000 => {}
            _ => return Err(refuse(format!("the entry {name:?} is a link or a device, not a file"))),
        }
        if entry.encrypted() {
            return Err(refuse(format!("the entry {name:?} is encrypted")));
        }
        total = total.saturating_add(entry.size());
        if !entry.is_dir() && !is_code(&name) {
            plan.push((index, name, entry.size()));
        }
    }
    let max = limits.bytes.min(packed.saturating_mul(limits.ratio).max(RATIO_FLOOR));
    if total > max {
        return Err(refuse(format!(
            "it would unpack to {total} bytes; the limit for an archive of {packed} bytes is {max}"
        )));
    }

    let _span = Span::begin(progress, &format!("unpacking {label}"), plan.iter().map(|(_, _, size)| size).sum());
    for (index, name, size) in plan {
        let entry = zip.by_index(index).map_err(|error| broken(&error))?;
        let target = into.join(&name);
        if let Some(dir) = target.parent() {
            fs::create_dir_all(dir).map_err(disk("create", dir))?;
        }
        // New files only: two entries of one name, or of names that a file system treats as one,
        // are an attack.
        let mut file = File::create_new(&target).map_err(disk("write", &target))?;
        // Reading past the end also triggers the checksum comparison.
        let read = copy_to(&mut entry.take(size.saturating_add(1)), &mut file, &mut |piece| {
            progress.advance(piece.len() as u64);
        });
        match read {
            Ok(read) if read == size => {}
            Ok(_) => return Err(refuse(format!("the entry {name:?} is not as long as it declares"))),
            Err(CopyError::Read(error)) => return Err(refuse(format!("the entry {name:?} does not unpack ({error})"))),
            Err(CopyError::Write(error)) => return Err(disk("write", &target)(error)),
        }
    }
    Ok(())
}

fn is_code(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    CODE.iter().any(|end| name.ends_with(end)) || name.contains(".so.")
}
