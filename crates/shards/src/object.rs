//! Object stores (S3 and compatible ones) with the `object_store` crate.
//!
//! `object_store` brings no HTTP client here: it uses the one of the pool, so that this feature adds
//! neither a second client nor a second TLS library.

mod http;
mod input;

use crate::error::{Error, Result};
use crate::record::TEMPORARY;
use crate::store::{Created, Entry, MAX_READ_BYTES, Published, Store};
use futures_util::TryStreamExt;
use input::ObjectReader;
pub(crate) use input::Objects;
use object_store::aws::{AmazonS3Builder, S3ConditionalPut, S3CopyIfNotExists};
use object_store::path::Path as Key;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, WriteMultipart};
use std::fs::File;
use std::future::Future;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// Outputs up to this size are one request; larger ones are uploaded in parts of this size.
const PART_BYTES: usize = 16 << 20;

/// Parts that are uploaded at once.
const PARTS_AT_ONCE: usize = 4;

/// An output folder in a bucket.
pub(crate) struct Object {
    client: Client,
    bucket: String,
    prefix: String,
    /// Removed at the end; other users cannot read it.
    scratch: TempDir,
    calls: AtomicU64,
}

/// A bucket, and the threads that talk to it.
#[derive(Clone)]
struct Client {
    store: Arc<dyn ObjectStore>,
    runtime: Arc<Runtime>,
}

fn runtime() -> Result<Arc<Runtime>> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).thread_name("object store").enable_all().build();
    Ok(Arc::new(runtime.map_err(Error::io("threads of the object store"))?))
}

/// A bucket, with the settings of the environment that AWS's tools read too.
fn connect(bucket: &str, runtime: Arc<Runtime>) -> Result<Client> {
    let store = AmazonS3Builder::from_env()
        .with_bucket_name(bucket)
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        .with_copy_if_not_exists(S3CopyIfNotExists::Multipart)
        .with_http_connector(http::Connector)
        .build()
        .map_err(|e| Error::Store { at: format!("s3://{bucket}"), why: e.to_string() })?;
    Ok(Client { store: Arc::new(store), runtime })
}

impl Client {
    /// Runs a request. The caller is on a thread of its own, never in the runtime.
    fn wait<T>(&self, at: &str, request: impl Future<Output = object_store::Result<T>>) -> Result<T> {
        self.runtime.block_on(request).map_err(|e| failed(at, &e))
    }

    /// The same, where a missing object is not an error.
    fn wait_if_there<T>(&self, at: &str, request: impl Future<Output = object_store::Result<T>>) -> Result<Option<T>> {
        match self.runtime.block_on(request) {
            Ok(value) => Ok(Some(value)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(e) => Err(failed(at, &e)),
        }
    }
}

/// A key as users write it: object stores know no escapes.
fn parse_key(at: &str, key: &str) -> Result<Key> {
    Key::parse(key).map_err(|e| Error::Input(format!("{at}: {e}")))
}

fn failed(at: &str, e: &object_store::Error) -> Error {
    // The crate's errors hide their causes.
    let mut why = e.to_string();
    let mut source = std::error::Error::source(e);
    while let Some(cause) = source {
        let text = cause.to_string();
        if !why.contains(&text) {
            why = format!("{why}: {text}");
        }
        source = cause.source();
    }
    Error::Store { at: at.into(), why }
}

impl Object {
    /// Opens a folder of a bucket.
    pub(crate) fn open(bucket: &str, prefix: &str) -> Result<Object> {
        let client = connect(bucket, runtime()?)?;
        Object::with(client, bucket, prefix)
    }

    fn with(client: Client, bucket: &str, prefix: &str) -> Result<Object> {
        let scratch = tempfile::Builder::new().prefix("sconce-shards-").tempdir();
        let scratch = scratch.map_err(Error::io(std::env::temp_dir().display().to_string()))?;
        let (bucket, prefix, calls) = (bucket.into(), prefix.into(), AtomicU64::new(0));
        let object = Object { client, bucket, prefix, scratch, calls };
        object.key("")?;
        Ok(object)
    }

    fn key(&self, name: &str) -> Result<Key> {
        let key = format!("{}/{name}", self.prefix);
        parse_key(&self.display(name), key.trim_start_matches('/'))
    }

    fn put(&self, name: &str, content: PutPayload, mode: PutMode) -> Result<Created> {
        let (key, options) = (self.key(name)?, PutOptions::from(mode));
        match self.client.runtime.block_on(self.client.store.put_opts(&key, content, options)) {
            Ok(_) => Ok(Created::New),
            Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {
                Ok(Created::Exists)
            }
            Err(e) => Err(failed(&self.display(name), &e)),
        }
    }

    /// Uploads a large file in parts under a temporary name, and copies it to its own name on the
    /// server, unless there is an object of this name. The end of an upload in parts alone could
    /// not be made conditional with every server.
    fn publish_in_parts(&self, local: &Path, name: &str) -> Result<Published> {
        let file_name = local.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let number = self.calls.fetch_add(1, Relaxed);
        let temporary = self.key(&format!("{TEMPORARY}/{number}-{file_name}"))?;
        let (at, to) = (self.display(name), self.key(name)?);
        let published = self.upload_in_parts(local, &temporary, &at).and_then(|()| {
            match self.client.runtime.block_on(self.client.store.copy_if_not_exists(&temporary, &to)) {
                Ok(()) => Ok(Published::New),
                Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {
                    Ok(Published::Exists)
                }
                Err(e) => Err(failed(&at, &e)),
            }
        });
        // What cannot be removed does no harm to the run.
        let _ = self.client.wait_if_there(&at, self.client.store.delete(&temporary));
        published
    }

    fn upload_in_parts(&self, local: &Path, to: &Key, at: &str) -> Result<()> {
        let mut file = File::open(local).map_err(Error::io(local.display().to_string()))?;
        let upload = self.client.wait(at, self.client.store.put_multipart(to))?;
        let mut writer = WriteMultipart::new_with_chunk_size(upload, PART_BYTES);
        match self.write_parts(&mut file, &mut writer, at) {
            // It aborts the upload if that fails.
            Ok(()) => self.client.wait(at, writer.finish()).map(drop),
            Err(e) => {
                let _ = self.client.wait(at, writer.abort());
                Err(e)
            }
        }
    }

    fn write_parts(&self, file: &mut File, writer: &mut WriteMultipart, at: &str) -> Result<()> {
        let mut buffer = vec![0; 1 << 20];
        loop {
            let count = file.read(&mut buffer).map_err(Error::io(at))?;
            if count == 0 {
                return Ok(());
            }
            self.client.wait(at, writer.wait_for_capacity(PARTS_AT_ONCE))?;
            // Uploads of parts are tasks of the runtime.
            let _entered = self.client.runtime.enter();
            writer.write(&buffer[..count]);
        }
    }
}

impl Store for Object {
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let at = self.display(name);
        let Some(found) = self.client.wait_if_there(&at, self.client.store.get(&self.key(name)?))? else {
            return Ok(None);
        };
        if found.meta.size > MAX_READ_BYTES {
            return Err(Error::Damaged { at, why: format!("larger than {} MiB", MAX_READ_BYTES >> 20) });
        }
        Ok(Some(self.client.wait(&at, found.bytes())?.to_vec()))
    }

    fn size(&self, name: &str) -> Result<Option<u64>> {
        let head = self.client.wait_if_there(&self.display(name), self.client.store.head(&self.key(name)?))?;
        Ok(head.map(|about| about.size))
    }

    fn create(&self, name: &str, content: &[u8]) -> Result<Created> {
        self.put(name, content.to_vec().into(), PutMode::Create)
    }

    fn replace(&self, name: &str, content: &[u8]) -> Result<()> {
        self.put(name, content.to_vec().into(), PutMode::Overwrite).map(drop)
    }

    fn take_away(&self, name: &str, _: &Path) -> Result<bool> {
        // Objects are written whole, so no process of a run has left this one.
        let why = "neither a whole output nor recorded; remove it, and run the same command again";
        Err(Error::Store { at: self.display(name), why: why.into() })
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.client.wait_if_there(&self.display(name), self.client.store.delete(&self.key(name)?)).map(drop)
    }

    fn list(&self, folder: &str) -> Result<Vec<Entry>> {
        let key = self.key(folder)?;
        let objects = self.client.store.list(Some(&key)).try_collect::<Vec<_>>();
        let objects = self.client.wait(&self.display(folder), objects)?;
        let entry = |about: object_store::ObjectMeta| {
            Some(Entry { name: about.location.filename()?.to_string(), size: about.size })
        };
        Ok(objects.into_iter().filter_map(entry).collect())
    }

    fn open(&self, name: &str) -> Result<Box<dyn Read + Send>> {
        let (key, at) = (self.key(name)?, self.display(name));
        let head = self.client.wait(&at, self.client.store.head(&key))?;
        Ok(Box::new(ObjectReader::new(self.client.clone(), key, 0..head.size, head.e_tag)))
    }

    fn publish(&self, local: &Path, name: &str) -> Result<Published> {
        let size = std::fs::metadata(local).map_err(Error::io(local.display().to_string()))?.len();
        if size > PART_BYTES as u64 {
            return self.publish_in_parts(local, name);
        }
        let content = std::fs::read(local).map_err(Error::io(local.display().to_string()))?;
        Ok(match self.put(name, content.into(), PutMode::Create)? {
            Created::New => Published::New,
            Created::Exists => Published::Exists,
        })
    }

    fn scratch(&self) -> Result<PathBuf> {
        Ok(self.scratch.path().into())
    }

    fn shares_scratch(&self) -> bool {
        false
    }

    fn display(&self, name: &str) -> String {
        let parts = [self.bucket.as_str(), &self.prefix, name];
        let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        format!("s3://{}", parts.join("/"))
    }
}

#[cfg(test)]
mod tests {
    use super::input::READ_BYTES;
    use super::*;
    use object_store::memory::InMemory;

    fn store() -> (Object, Client) {
        let client = Client { store: Arc::new(InMemory::new()), runtime: runtime().unwrap() };
        (Object::with(client.clone(), "bucket", "a/run").unwrap(), client)
    }

    #[test]
    fn objects_are_created_once_and_listed_by_folder() {
        let (store, _) = store();
        assert_eq!(store.read("leases/1.json").unwrap(), None);
        assert_eq!(store.create("leases/1.json", b"one").unwrap(), Created::New);
        assert_eq!(store.create("leases/1.json", b"two").unwrap(), Created::Exists);
        assert_eq!(store.read("leases/1.json").unwrap().unwrap(), b"one");
        store.replace("leases/1.json", b"three").unwrap();
        store.replace("leases-of-others/2.json", b"").unwrap();
        let listed = store.list("leases").unwrap();
        assert_eq!(listed, [Entry { name: "1.json".into(), size: 5 }]);
        assert!(store.list("absent").unwrap().is_empty());
        store.remove("leases/1.json").unwrap();
        store.remove("leases/1.json").unwrap();
        assert!(!store.exists("leases/1.json").unwrap());
        assert_eq!(store.display("data/x"), "s3://bucket/a/run/data/x");
    }

    #[test]
    fn small_and_large_outputs_are_published_once() {
        let (store, _) = store();
        for size in [10, PART_BYTES * 2 + 3] {
            let content: Vec<u8> = (0..size).map(|i| (i % 251) as u8).collect();
            let (local, name) = (store.scratch().unwrap().join("x.parquet"), format!("data/{size}"));
            std::fs::write(&local, &content).unwrap();
            assert_eq!(store.publish(&local, &name).unwrap(), Published::New);
            std::fs::write(&local, vec![1; size]).unwrap();
            assert_eq!(store.publish(&local, &name).unwrap(), Published::Exists);
            let mut read = Vec::new();
            store.open(&name).unwrap().read_to_end(&mut read).unwrap();
            assert!(read == content, "{size}");
        }
        assert!(store.list("tmp").unwrap().is_empty());
    }

    #[test]
    fn object_that_changed_is_not_read_on() {
        let (store, client) = store();
        store.replace("in.jsonl", &vec![b'a'; READ_BYTES as usize + 1]).unwrap();
        let mut reader = store.open("in.jsonl").unwrap();
        let mut first = vec![0; READ_BYTES as usize];
        reader.read_exact(&mut first).unwrap();
        store.replace("in.jsonl", &vec![b'b'; READ_BYTES as usize + 1]).unwrap();
        let e = reader.read(&mut first).unwrap_err().to_string();
        assert!(e.contains("has changed"), "{e}");
        drop(client);
    }
}
