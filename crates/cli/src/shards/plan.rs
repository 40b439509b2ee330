//! Divides inputs into shards, and finds the columns that the outputs keep.

use super::parquet_input::{footer, local};
use crate::Failure;
use crate::input::{FileFormat, MAX_ROW_BYTES, no_field};
use crate::parquet_file::{Layout, ParquetRows, layout};
use crate::row::{Columns, FieldType, Fields};
use sconce_shards::{Digest, InputFile, InputStore, LineSplitter, Listed, Part, Shard, SplitLimits, footer_digest};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;

/// Bytes of a shard of lines, beyond which it takes no further line.
const SHARD_BYTES: u64 = 256 << 20;

/// Fields of the input that are used.
pub(crate) struct Needed {
    /// The field with the text.
    pub(super) field: String,
    /// The field with the second text of a pair.
    pub(super) pair_field: Option<String>,
    /// Those that the output keeps.
    pub(super) keep: Vec<String>,
}

impl Needed {
    /// The fields with texts.
    fn texts(&self) -> impl Iterator<Item = &str> {
        [self.field.as_str()].into_iter().chain(self.pair_field.as_deref())
    }

    /// All fields.
    pub(super) fn columns(&self) -> Vec<&str> {
        self.texts().chain(self.keep.iter().map(String::as_str)).collect()
    }
}

/// Inputs, shards, and columns of the outputs.
pub(super) struct Plan {
    pub(super) inputs: Vec<InputFile>,
    pub(super) shards: Vec<Shard>,
    pub(super) columns: Columns,
}

/// The format of an input: lines of JSON objects, or Parquet.
pub(super) fn is_parquet(file: &Listed) -> Result<bool, Failure> {
    match FileFormat::of(Path::new(&file.name), false) {
        FileFormat::Parquet => Ok(true),
        FileFormat::Jsonl => Ok(false),
        _ => Err(format!("{}: shards are made of .jsonl and .parquet files; convert it first", file.name).into()),
    }
}

/// What identifies the inputs, as far as it can be told without reading all of them.
pub(super) fn identify(inputs: &InputStore, files: &[Listed]) -> Result<Vec<InputFile>, Failure> {
    let identify = |file: &Listed| -> Result<InputFile, Failure> {
        let digest = match (&file.etag, is_parquet(file)?) {
            (Some(etag), _) => Digest::Etag(etag.clone()),
            (None, true) => footer_digest(&footer(inputs, file)?),
            (None, false) => Digest::Parts,
        };
        Ok(InputFile { name: file.name.clone(), size: file.size, rows: 0, digest })
    };
    files.iter().map(identify).collect()
}

/// Divides all inputs. Files of lines are read once; of Parquet files the footer is enough.
pub(super) fn plan(inputs: &InputStore, files: &[Listed], needed: &Needed, rows: u64) -> Result<Plan, Failure> {
    let mut identified = identify(inputs, files)?;
    let (mut shards, mut columns) = (Vec::new(), Columns::default());
    let mut seen = BTreeSet::new();
    for (number, file) in files.iter().enumerate() {
        let before = shards.len();
        if is_parquet(file)? {
            plan_parquet(&mut shards, &mut columns, &PlannedFile { inputs, file, number, needed, rows })?;
            seen.extend(needed.keep.iter().cloned());
        } else {
            let planned = PlannedFile { inputs, file, number, needed, rows };
            plan_lines(&mut shards, &mut columns, &mut seen, &planned)?;
        }
        identified[number].rows = shards[before..].iter().map(|shard: &Shard| shard.rows).sum();
    }
    if let Some(name) = needed.keep.iter().find(|name| !seen.contains(*name)) {
        return Err(format!("--keep {name}: no row of the input has such a field").into());
    }
    if shards.is_empty() {
        return Err("the input files have no rows".into());
    }
    Ok(Plan { inputs: identified, shards, columns })
}

/// A file to be divided.
struct PlannedFile<'a> {
    inputs: &'a InputStore,
    file: &'a Listed,
    number: usize,
    needed: &'a Needed,
    rows: u64,
}

fn plan_parquet(shards: &mut Vec<Shard>, columns: &mut Columns, of: &PlannedFile<'_>) -> Result<(), Failure> {
    let copy = local(of.inputs, of.file, 0..0, &[])?;
    let needed = of.needed;
    let texts: Vec<&str> = needed.texts().collect();
    let layout = layout(copy.path(), &of.file.name)?;
    for (name, flag) in texts.iter().zip(["--field", "--pair-field"]) {
        check_column(&layout, name, flag, of.file)?;
    }
    needed.keep.iter().try_for_each(|name| check_column(&layout, name, "--keep", of.file))?;
    // Columns that are not text are refused.
    ParquetRows::open(copy.path(), Some(&texts)).map_err(|e| {
        let why = e.to_string();
        why.replace(&copy.path().display().to_string(), &of.file.name)
    })?;
    if !needed.keep.is_empty() {
        let kept = layout.columns.iter().filter(|column| needed.keep.iter().any(|name| name == column.name()));
        columns.add_parquet(kept.cloned().collect(), &of.file.name)?;
    }
    let (mut start, mut first_row, mut rows) = (0, 1, 0);
    for (i, group) in layout.groups.iter().enumerate() {
        rows += group.rows;
        let is_last = i + 1 == layout.groups.len();
        if rows >= of.rows || is_last {
            if rows > 0 {
                let part = Part::RowGroups { start, end: i + 1 };
                shards.push(Shard { input: of.number, first_row, rows, part });
            }
            (start, first_row, rows) = (i + 1, first_row + rows, 0);
        }
    }
    Ok(())
}

fn check_column(layout: &Layout, name: &str, flag: &str, file: &Listed) -> Result<(), Failure> {
    if layout.columns.iter().any(|column| column.name() == name) {
        return Ok(());
    }
    let names = layout.columns.iter().map(|column| column.name());
    Err(format!("{}: {}", file.name, no_field(name, names, flag)).into())
}

fn plan_lines(
    shards: &mut Vec<Shard>,
    columns: &mut Columns,
    seen: &mut BTreeSet<String>,
    of: &PlannedFile<'_>,
) -> Result<(), Failure> {
    let PlannedFile { inputs, file, number, needed, rows } = of;
    // The columns that are kept must have types that hold every value.
    let line = if needed.keep.is_empty() { 0 } else { MAX_ROW_BYTES };
    let mut fields = Fields::default();
    if !needed.keep.is_empty() {
        fields = std::mem::take(columns.fields(&file.name)?);
        for name in &needed.keep {
            fields.add_field(name, None).map_err(|why| format!("--keep: {why}"))?;
        }
    }
    let mut failed = None;
    let on_line = |line_number: u64, line: &[u8]| {
        // A line that is not an object is a bad row, which its shard reports.
        let Ok(mut object) = serde_json::from_slice::<Map<String, Value>>(line) else { return };
        object.retain(|name, _| needed.keep.contains(name));
        seen.extend(object.keys().cloned());
        if let Err(why) = fields.add(&object) {
            failed.get_or_insert_with(|| format!("{}:{line_number}: {why}", file.name));
        }
    };
    let limits = SplitLimits { rows: *rows, bytes: SHARD_BYTES, line };
    let mut splitter = LineSplitter::new(limits, on_line);
    let mut from = inputs.open(file, 0..file.size)?;
    let mut buffer = vec![0; 1 << 20];
    loop {
        let count = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(format!("{}: {e}", file.name).into()),
        };
        splitter.feed(&buffer[..count]);
    }
    let (parts, size) = splitter.finish();
    if let Some(why) = failed {
        return Err(why.into());
    }
    if size != file.size {
        return Err(format!("{}: it changed while it was read; its inputs must stay as they are", file.name).into());
    }
    if !needed.keep.is_empty() {
        *columns = Columns::Fields(fields);
    }
    shards.extend(parts.into_iter().map(|part| Shard {
        input: *number,
        first_row: part.first_row,
        rows: part.rows,
        part: Part::Bytes { start: part.start, end: part.end, sha256: part.sha256 },
    }));
    Ok(())
}

/// Columns as the manifest records them.
pub(super) fn record_columns(columns: &Columns) -> Value {
    match columns {
        Columns::Fields(fields) => json!({"fields": fields.recorded()}),
        Columns::Parquet(types, _) => {
            json!({"parquet": types.iter().map(|column| column.name()).collect::<Vec<_>>()})
        }
    }
}

/// The columns that a manifest records. Types of Parquet columns are those of the first input.
pub(super) fn recorded_columns(recorded: &Value, inputs: &InputStore, files: &[Listed]) -> Result<Columns, Failure> {
    if let Some(fields) = recorded.get("fields") {
        let fields: Vec<(String, Option<FieldType>)> = serde_json::from_value(fields.clone())?;
        return Ok(Columns::Fields(Fields::from_recorded(fields)?));
    }
    let names: Vec<String> = serde_json::from_value(recorded["parquet"].clone())?;
    let Some(first) = files.first() else { return Ok(Columns::default()) };
    let layout = layout(local(inputs, first, 0..0, &[])?.path(), &first.name)?;
    let kept = layout.columns.into_iter().filter(|column| names.iter().any(|name| name == column.name()));
    Ok(Columns::Parquet(kept.collect(), first.name.clone()))
}
