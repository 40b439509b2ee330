//! Input files in buckets.

use super::{Client, connect, failed, parse_key, runtime};
use crate::error::{Error, Result};
use crate::input::{Listed, is_input};
use crate::location::Location;
use futures_util::StreamExt;
use object_store::path::Path as Key;
use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt};
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::runtime::Runtime;

/// Bytes that are requested at once when an input is read.
pub(super) const READ_BYTES: u64 = 8 << 20;

/// Input files in buckets.
pub struct Objects {
    runtime: Arc<Runtime>,
    buckets: Mutex<BTreeMap<String, Client>>,
}

impl Objects {
    pub(crate) fn new() -> Result<Objects> {
        Ok(Objects { runtime: runtime()?, buckets: Mutex::default() })
    }

    fn place(&self, name: &str) -> Result<(Client, String, String)> {
        let Location::Object { bucket, prefix } = Location::parse(name)? else {
            return Err(Error::Input(format!("{name}: not an object")));
        };
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let client = match buckets.get(&bucket) {
            Some(client) => client.clone(),
            None => {
                let client = connect(&bucket, self.runtime.clone())?;
                buckets.insert(bucket.clone(), client.clone());
                client
            }
        };
        Ok((client, bucket, prefix))
    }

    /// The object of this name, or the inputs in the folder of this name, sorted.
    pub(crate) fn list_inputs(&self, name: &str) -> Result<Vec<Listed>> {
        let (client, bucket, prefix) = self.place(name)?;
        let key = parse_key(name, &prefix)?;
        let listed = |about: object_store::ObjectMeta| Listed {
            name: format!("s3://{bucket}/{}", about.location),
            size: about.size,
            etag: about.e_tag,
        };
        if !prefix.is_empty()
            && !name.ends_with('/')
            && let Some(about) = client.wait_if_there(name, client.store.head(&key))?
        {
            return Ok(vec![listed(about)]);
        }
        let at = (!prefix.is_empty()).then_some(&key);
        // As of a folder on a disk, without what is in further folders.
        let all = client.wait(name, client.store.list_with_delimiter(at))?.objects;
        let all = all.into_iter().filter(|about| is_input(about.location.as_ref()));
        let mut all: Vec<Listed> = all.map(listed).collect();
        if all.is_empty() {
            return Err(Error::Input(format!("{name}: no such object, and no .jsonl or .parquet objects in it")));
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    /// Reads some bytes of an object, as long as it has the ETag that was listed.
    pub(crate) fn open_input(&self, file: &Listed, range: Range<u64>) -> Result<Box<dyn Read + Send>> {
        let (client, _, prefix) = self.place(&file.name)?;
        Ok(Box::new(ObjectReader::new(client, parse_key(&file.name, &prefix)?, range, file.etag.clone())))
    }
}

/// Reads an object piece by piece, so that a slow reader holds no connection open.
pub(super) struct ObjectReader {
    client: Client,
    key: Key,
    range: Range<u64>,
    etag: Option<String>,
    piece: io::Cursor<Vec<u8>>,
}

impl ObjectReader {
    pub(super) fn new(client: Client, key: Key, range: Range<u64>, etag: Option<String>) -> ObjectReader {
        ObjectReader { client, key, range, etag, piece: io::Cursor::default() }
    }

    fn fetch(&mut self) -> io::Result<()> {
        let end = self.range.end.min(self.range.start + READ_BYTES);
        let options = GetOptions {
            range: Some(GetRange::Bounded(self.range.start..end)),
            if_match: self.etag.clone(),
            ..GetOptions::default()
        };
        let fetched = self.client.runtime.block_on(async {
            let found = self.client.store.get_opts(&self.key, options).await?;
            let mut pieces = found.into_stream();
            let mut all = Vec::new();
            while let Some(piece) = pieces.next().await {
                all.extend_from_slice(&piece?);
            }
            Ok(all)
        });
        match fetched {
            Ok(bytes) if bytes.len() as u64 == end - self.range.start => {
                self.range.start = end;
                self.piece = io::Cursor::new(bytes);
                Ok(())
            }
            Ok(_) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the object is shorter than it was")),
            Err(object_store::Error::Precondition { .. }) => {
                Err(io::Error::new(io::ErrorKind::InvalidData, "the object has changed since the run began"))
            }
            Err(e) => Err(io::Error::other(failed(self.key.as_ref(), &e).to_string())),
        }
    }
}

impl Read for ObjectReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.piece.read(buffer)?;
        if count > 0 || buffer.is_empty() || self.range.is_empty() {
            return Ok(count);
        }
        self.fetch()?;
        self.piece.read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::memory::InMemory;

    #[test]
    fn folder_lists_its_own_objects_by_their_names() {
        let runtime = runtime().unwrap();
        let client = Client { store: Arc::new(InMemory::new()), runtime: runtime.clone() };
        for key in ["in/täxt.jsonl", "in/50%20.parquet", "in/notes.md", "in/out/data/x.parquet", "other.jsonl"] {
            let at = parse_key(key, key).unwrap();
            client.wait(key, client.store.put(&at, b"x".to_vec().into())).unwrap();
        }
        let buckets = Mutex::new(BTreeMap::from([("b".to_string(), client)]));
        let objects = Objects { runtime, buckets };
        let names = |name: &str| -> Vec<String> {
            objects.list_inputs(name).unwrap().into_iter().map(|listed| listed.name).collect()
        };
        assert_eq!(names("s3://b/in"), ["s3://b/in/50%20.parquet", "s3://b/in/täxt.jsonl"]);
        assert_eq!(names("s3://b"), ["s3://b/other.jsonl"]);
        assert_eq!(names("s3://b/in/notes.md"), ["s3://b/in/notes.md"]);
        let listed = objects.list_inputs("s3://b/in/täxt.jsonl").unwrap().remove(0);
        let mut content = String::new();
        objects.open_input(&listed, 0..1).unwrap().read_to_string(&mut content).unwrap();
        assert_eq!(content, "x");
        let e = objects.list_inputs("s3://b/in//x.jsonl").unwrap_err().to_string();
        assert!(e.contains("s3://b/in//x.jsonl"), "{e}");
    }
}
