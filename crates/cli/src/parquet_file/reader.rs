//! Rows of a Parquet file, read in batches, of the columns that are needed.

use super::footer;
use super::json::object_of;
use super::leaf::{Leaf, Values, count_leaves};
use crate::Failure;
use parquet::basic::{ConvertedType, Type as PhysicalType};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::column::reader::{ColumnReader, get_column_reader};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::schema::types::{Type, TypePtr};
use serde_json::{Map, Value};
use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Once};
use std::thread;

/// Rows of a batch. Large rows make smaller batches.
const BATCH_ROWS: u64 = 512;

/// Bytes of a batch, by the sizes that the file declares.
const BATCH_BYTES: u64 = 32 << 20;

/// Largest page of a column, uncompressed.
const MAX_PAGE_BYTES: usize = 256 << 20;

/// Most values of a repeated column in a batch.
const MAX_BATCH_VALUES: u64 = 1 << 26;

/// Name of the threads on which the `parquet` crate runs. They print no panics, because the crate
/// panics on damaged files.
const READER_THREAD: &str = "parquet reader";

/// The rows of a file, with their origin and share of the file's bytes.
pub(crate) struct ParquetRows {
    reader: SerializedFileReader<File>,
    file: String,
    /// All top-level columns.
    names: Vec<String>,
    /// The columns that are read, and the numbers of their leaves.
    fields: Arc<Vec<TypePtr>>,
    leaves: Vec<usize>,
    /// The next row group, the end of the groups, and what is left of the current one.
    group: usize,
    end_group: usize,
    columns: Vec<ColumnReader>,
    rows_left: u64,
    batch_rows: u64,
    /// Values that repeated columns may still read for the batch.
    budget: Arc<AtomicU64>,
    batch: Arc<Batch>,
    next: usize,
    /// Rows before the batch.
    rows_before: u64,
    bytes_per_row: u64,
    is_over: bool,
}

/// Some rows of a file.
#[derive(Debug, Default)]
struct Batch {
    rows: usize,
    /// Bytes in memory.
    bytes: usize,
    fields: Arc<Vec<TypePtr>>,
    leaves: Vec<Leaf>,
    /// For each leaf and row, the first entry and the first value; and the end of the last row.
    starts: Vec<Vec<(usize, usize)>>,
}

/// One row.
#[derive(Clone, Debug)]
pub(crate) struct ParquetRow {
    batch: Arc<Batch>,
    row: usize,
}

impl ParquetRows {
    /// Opens a file. Only the columns of these names are read, which must be text; `None` means all.
    pub(crate) fn open(path: &Path, only: Option<&[&str]>) -> Result<ParquetRows, Failure> {
        let rows = ParquetRows::open_columns(path, only)?;
        if only.is_some() {
            rows.fields.iter().try_for_each(|f| check_is_text(f)).map_err(|why| format!("{}: {why}", rows.file))?;
        }
        Ok(rows)
    }

    /// Opens some row groups of a file. Only the columns of these names are read.
    pub(crate) fn open_groups(path: &Path, columns: &[&str], groups: Range<usize>) -> Result<ParquetRows, Failure> {
        let mut rows = ParquetRows::open_columns(path, Some(columns))?;
        let all = rows.reader.metadata().row_groups();
        if groups.end > all.len() || groups.start > groups.end {
            return Err(format!("{}: {} row groups, not {} as before", rows.file, all.len(), groups.end).into());
        }
        rows.rows_before = all[..groups.start].iter().map(|group| group.num_rows().max(0).cast_unsigned()).sum();
        (rows.group, rows.end_group) = (groups.start, groups.end);
        Ok(rows)
    }

    fn open_columns(path: &Path, only: Option<&[&str]>) -> Result<ParquetRows, Failure> {
        let file = path.display().to_string();
        let fail = |why: &dyn std::fmt::Display| -> Failure { format!("{file}: {why}").into() };
        let mut opened = File::open(path).map_err(|e| fail(&e))?;
        let metadata = opened.metadata().map_err(|e| fail(&e))?;
        if !metadata.is_file() {
            return Err(fail(&"not a regular file, as Parquet needs"));
        }
        footer::check(&mut opened).map_err(|why| fail(&why))?;
        let reader = guarded(|| SerializedFileReader::new(opened)).map_err(|why| fail(&why))?;
        let about = reader.metadata().file_metadata();
        let schema = about.schema_descr().root_schema();
        let names: Vec<String> = schema.get_fields().iter().map(|f| f.name().to_string()).collect();
        let (mut fields, mut leaves, mut leaf) = (Vec::new(), Vec::new(), 0);
        for field in schema.get_fields() {
            let count = count_leaves(field);
            if only.is_none_or(|only| only.contains(&field.name())) {
                fields.push(field.clone());
                leaves.extend(leaf..leaf + count);
            }
            leaf += count;
        }
        let rows = u64::try_from(about.num_rows()).map_err(|_| fail(&"damaged: a negative number of rows"))?;
        let end_group = reader.num_row_groups();
        Ok(ParquetRows {
            bytes_per_row: metadata.len() / rows.max(1),
            reader,
            file,
            names,
            fields: Arc::new(fields),
            leaves,
            group: 0,
            end_group,
            columns: Vec::new(),
            rows_left: 0,
            batch_rows: BATCH_ROWS,
            budget: Arc::default(),
            batch: Arc::default(),
            next: 0,
            rows_before: 0,
            is_over: false,
        })
    }

    /// Names of all top-level columns.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// Number of the row that was returned last, from 1.
    pub(crate) fn row_number(&self) -> u64 {
        self.rows_before + self.next as u64
    }

    /// Types of the columns that are read.
    pub(crate) fn columns(&self) -> Vec<TypePtr> {
        self.fields.to_vec()
    }

    /// Reads the next batch; `false` at the end.
    fn read_batch(&mut self) -> ParquetResult<bool> {
        self.rows_before += self.batch.rows as u64;
        self.next = 0;
        while self.rows_left == 0 {
            if self.group == self.end_group {
                return Ok(false);
            }
            self.open_group()?;
        }
        let rows = self.rows_left.min(self.batch_rows) as usize;
        let mut batch = Batch { rows, fields: self.fields.clone(), ..Batch::default() };
        for (column, leaf) in self.columns.iter_mut().zip(&self.leaves) {
            self.budget.store(MAX_BATCH_VALUES, Relaxed);
            let descr = self.reader.metadata().file_metadata().schema_descr().column(*leaf);
            let mut leaf = Leaf::new(&descr);
            let read = leaf.read(column, rows)?;
            let starts = (read == rows).then(|| row_starts(&leaf, rows)).flatten();
            let ends_early = || ParquetError::General(format!("column `{}` ends before its rows", descr.path()));
            batch.starts.push(starts.ok_or_else(ends_early)?);
            batch.bytes += leaf.bytes();
            batch.leaves.push(leaf);
        }
        self.rows_left -= rows as u64;
        self.batch = Arc::new(batch);
        Ok(true)
    }

    fn open_group(&mut self) -> ParquetResult<()> {
        let group = self.reader.get_row_group(self.group)?;
        let about = group.metadata();
        self.rows_left = u64::try_from(about.num_rows())?;
        let bytes = self.leaves.iter().map(|i| about.column(*i).uncompressed_size().max(0) as u64).sum::<u64>();
        let row_bytes = (bytes / self.rows_left.max(1)).max(1);
        self.batch_rows = (BATCH_BYTES / row_bytes).clamp(1, BATCH_ROWS);
        let column = |i: &usize| {
            let (pages, descr) = (group.get_column_page_reader(*i)?, about.column(*i).column_descr_ptr());
            let budget = (descr.max_rep_level() > 0).then(|| self.budget.clone());
            Ok(get_column_reader(descr, Box::new(BoundedPages { pages, budget })))
        };
        self.columns = self.leaves.iter().map(column).collect::<ParquetResult<_>>()?;
        self.group += 1;
        Ok(())
    }
}

/// Where the rows of a leaf begin, if it has exactly this many.
fn row_starts(leaf: &Leaf, rows: usize) -> Option<Vec<(usize, usize)>> {
    let (mut starts, mut value) = (Vec::with_capacity(rows + 1), 0);
    for entry in 0..leaf.entries() {
        if leaf.rep(entry) == 0 {
            starts.push((entry, value));
        }
        value += usize::from(leaf.has_value(entry));
    }
    let is_whole = starts.len() == rows && starts.first().is_none_or(|s| s.0 == 0) && value == leaf.values.len();
    starts.push((leaf.entries(), value));
    is_whole.then_some(starts)
}

/// Text is a string or plain bytes.
fn check_is_text(field: &Type) -> Result<(), String> {
    let info = field.get_basic_info();
    let is_text = field.is_primitive()
        && field.get_physical_type() == PhysicalType::BYTE_ARRAY
        && info.repetition() != parquet::basic::Repetition::REPEATED
        && !matches!(info.converted_type(), ConvertedType::DECIMAL | ConvertedType::BSON);
    match (is_text, field.is_primitive()) {
        (true, _) => Ok(()),
        (_, true) => Err(format!("column `{}` is {}, not text", field.name(), field.get_physical_type())),
        _ => Err(format!("column `{}` is nested, not text", field.name())),
    }
}

impl Iterator for ParquetRows {
    type Item = Result<(ParquetRow, String, u64), Failure>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        if self.next == self.batch.rows {
            match guarded(|| self.read_batch()) {
                Ok(true) => {}
                Ok(false) => {
                    self.is_over = true;
                    return None;
                }
                Err(why) => {
                    self.is_over = true;
                    let first = self.rows_before + 1;
                    return Some(Err(format!("{}: in the rows from {first} on: {why}", self.file).into()));
                }
            }
        }
        let row = ParquetRow { batch: self.batch.clone(), row: self.next };
        self.next += 1;
        let origin = format!("{}: row {}", self.file, self.rows_before + self.next as u64);
        Some(Ok((row, origin, self.bytes_per_row)))
    }
}

impl ParquetRow {
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.batch.fields.iter().map(|f| f.name())
    }

    /// A column of strings or bytes; `None` if there is none of this name.
    pub(crate) fn text(&self, name: &str) -> Option<Result<&str, String>> {
        let place = self.batch.fields.iter().position(|f| f.name() == name)?;
        let leaf = self.batch.fields[..place].iter().map(|f| count_leaves(f)).sum::<usize>();
        let read = || -> Result<&str, String> {
            check_is_text(&self.batch.fields[place])?;
            let (entries, values) = self.place(leaf);
            let bytes = match &self.batch.leaves[leaf].values {
                _ if values.is_empty() || entries.is_empty() => {
                    return Err(format!("field `{name}` is null, not a string"));
                }
                Values::Bytes(all) => all[values.start].data(),
                _ => return Err(format!("field `{name}` is not a string")),
            };
            std::str::from_utf8(bytes).map_err(|_| format!("field `{name}` is not UTF-8"))
        };
        Some(read())
    }

    /// All columns as JSON.
    pub(crate) fn object(&self) -> Result<Map<String, Value>, String> {
        object_of(&self.batch.fields, &|leaf| (&self.batch.leaves[leaf], self.place(leaf)))
    }

    /// The row's share of the bytes that it keeps in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.batch.bytes / self.batch.rows.max(1)
    }

    /// Entries and values of the row in a leaf.
    fn place(&self, leaf: usize) -> (Range<usize>, Range<usize>) {
        let starts = &self.batch.starts[leaf];
        let (from, to) = (starts[self.row], starts[self.row + 1]);
        (from.0..to.0, from.1..to.1)
    }

    /// Appends these columns of the row to their leaves; returns their bytes.
    pub(super) fn append_to(&self, columns: &[TypePtr], leaves: &mut [Leaf]) -> Option<usize> {
        let (mut leaves, mut bytes) = (leaves, 0);
        // The row's columns are in the same order, with others between them.
        let mut own = self.batch.fields.iter().scan(0, |next, field| {
            let first = *next;
            *next += count_leaves(field);
            Some((field, first))
        });
        for column in columns {
            let (_, first) = own.find(|(field, _)| field.name() == column.name())?;
            let (to, rest) = leaves.split_at_mut_checked(count_leaves(column))?;
            leaves = rest;
            for (i, to) in to.iter_mut().enumerate() {
                let (entries, values) = self.place(first + i);
                bytes += to.extend(self.batch.leaves.get(first + i)?, entries, values)?;
            }
        }
        leaves.is_empty().then_some(bytes)
    }
}

/// Pages of a column that fit into memory.
struct BoundedPages {
    pages: Box<dyn PageReader>,
    /// Of a repeated column, whose rows have any number of values.
    budget: Option<Arc<AtomicU64>>,
}

impl Iterator for BoundedPages {
    type Item = ParquetResult<Page>;
    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for BoundedPages {
    fn get_next_page(&mut self) -> ParquetResult<Option<Page>> {
        let page = self.pages.get_next_page()?;
        if let Some(page) = &page {
            if page.buffer().len() > MAX_PAGE_BYTES {
                let why = format!("a page has more than {} MiB", MAX_PAGE_BYTES >> 20);
                return Err(ParquetError::General(why));
            }
            let values = u64::from(page.num_values());
            if let Some(budget) = &self.budget
                && budget.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(values)).is_err()
            {
                return Err(ParquetError::General("a list is too long".into()));
            }
        }
        Ok(page)
    }
    fn peek_next_page(&mut self) -> ParquetResult<Option<PageMetadata>> {
        self.pages.peek_next_page()
    }
    fn skip_next_page(&mut self) -> ParquetResult<()> {
        self.pages.skip_next_page()
    }
    fn at_record_boundary(&mut self) -> ParquetResult<bool> {
        self.pages.at_record_boundary()
    }
}

/// Runs the crate on bytes that it may not expect: a panic becomes an error like the others. The
/// crate runs on a thread of its own, whose panics are not printed.
pub(super) fn guarded<T: Send>(read: impl FnOnce() -> ParquetResult<T> + Send) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if thread::current().name() != Some(READER_THREAD) {
                print(panic);
            }
        }));
    });
    thread::scope(|scope| {
        let thread = thread::Builder::new().name(READER_THREAD.into()).spawn_scoped(scope, read);
        match thread.map_err(|e| e.to_string())?.join() {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(e)) => Err(format!("not a Parquet file that can be read: {e}")),
            Err(_) => Err("damaged: its bytes are not valid Parquet".into()),
        }
    })
}
