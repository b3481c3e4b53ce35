//! Backups in a bucket of an object store.
//!
//! A file is an object below the backup's id. Objects appear when they are whole, so the manifest needs no second name. A large file
//! is sent in parts, several at once; what was sent of a file that is never ended stays in the bucket, invisible, until
//! the bucket's rules remove it or it is aborted. Files are read in windows of some megabytes, which all files of the bucket share.

use std::collections::VecDeque;
use std::future::Future;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::path::{Path as FilePath, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use object_store::aws::AmazonS3Builder;
use object_store::path::Path;
use object_store::{MultipartUpload, ObjectStore, ObjectStoreExt, RetryConfig};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use super::files::{MANIFEST, Result, Sink, Source, Store, cannot};

/// Bytes of the first parts of an object; each [`PARTS_ALIKE`] parts double it, so that an object may have any size although its
/// number of parts is bounded.
const PART_BYTES: usize = 8 << 20;
const PARTS_ALIKE: u32 = 1_000;
/// Parts of a file that are sent at once.
const IN_FLIGHT: usize = 4;
/// Bytes that are read at once.
const WINDOW_BYTES: u64 = 4 << 20;
/// Windows that are kept.
const WINDOWS: usize = 16;
/// How often a request is sent again, after 0.1 s and then twice as long each time, before it fails.
const RETRIES: usize = 7;
/// Bytes of the largest object that the store copies by itself.
const COPIED_MAX: u64 = 5 << 30;

/// Bytes that were read: an object, where they begin in it, and they.
type Window = (Path, u64, Arc<[u8]>);

/// A prefix in a bucket.
pub(super) struct Bucket(Arc<Inner>);

struct Inner {
    /// `None` once it is dropped, which waits for nothing.
    runtime: Option<Runtime>,
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    url: PathBuf,
    windows: Mutex<VecDeque<Window>>,
}

impl std::fmt::Debug for Bucket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Bucket").field(&self.0.url).finish()
    }
}

impl Bucket {
    /// The place of a URL `s3://BUCKET/PREFIX`, with what `options` and else the environment say of the store and its user. Sends
    /// nothing.
    ///
    /// # Errors
    /// A URL without a bucket; an unknown option; options that make no sense together.
    pub fn open(url: &str, options: &[(&str, &str)]) -> Result<Self> {
        let place = PathBuf::from(url);
        let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
        let prefix = rest.split_once('/').map_or("", |(_, prefix)| prefix);
        let opened = || {
            let retry = RetryConfig { max_retries: RETRIES, ..RetryConfig::default() };
            let mut builder = AmazonS3Builder::from_env().with_url(url).with_retry(retry);
            for (name, value) in options {
                builder = builder.with_config(name.parse()?, *value);
            }
            let store = builder.build()?;
            let prefix = Path::parse(prefix.trim_matches('/')).map_err(object_store::Error::from)?;
            let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
            io::Result::Ok((store, prefix, runtime))
        };
        let (store, prefix, runtime) = opened().map_err(cannot("use", &place))?;
        let (store, windows) = (Arc::new(store) as Arc<dyn ObjectStore>, Mutex::default());
        Ok(Self(Arc::new(Inner { runtime: Some(runtime), store, prefix, url: place, windows })))
    }

    fn at(&self, id: &str, name: &str) -> Path {
        self.0.prefix.clone().join(id).join(name)
    }
}

impl Inner {
    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("it is dropped last")
    }

    /// Runs a future, and waits for it. The thread may be one of an executor.
    fn wait<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        make: impl FnOnce(Arc<dyn ObjectStore>) -> F,
    ) -> T {
        let (send, done) = mpsc::sync_channel(1);
        let future = make(Arc::clone(&self.store));
        self.runtime().spawn(async move {
            let _ = send.send(future.await);
        });
        done.recv().expect("a request to an object store does not panic")
    }

    /// The window of an object that begins at `offset`.
    fn window(&self, at: &Path, offset: u64, len: u64) -> io::Result<Arc<[u8]>> {
        let is_it = |window: &Window| window.1 == offset && window.0 == *at;
        let lock = || self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((.., bytes)) = lock().iter().find(|&window| is_it(window)) {
            return Ok(Arc::clone(bytes));
        }
        let (object, range) = (at.clone(), offset..(offset + WINDOW_BYTES).min(len));
        let read = self.wait(|store| async move { store.get_range(&object, range).await })?;
        let bytes: Arc<[u8]> = Arc::from(&read[..]);
        let mut windows = lock();
        windows.truncate(WINDOWS - 1);
        windows.push_front((at.clone(), offset, Arc::clone(&bytes)));
        Ok(bytes)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Dropping a runtime waits, which an executor's thread must not.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Store for Bucket {
    fn place(&self) -> &FilePath {
        &self.0.url
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let prefix = self.0.prefix.clone();
        let listed = self.0.wait(|store| async move { store.list_with_delimiter(Some(&prefix)).await })?;
        let below = listed.common_prefixes.iter().filter_map(|path| path.parts().next_back());
        Ok(below.map(|part| part.as_ref().to_owned()).collect())
    }

    fn create(&self, _: &str) -> io::Result<()> {
        Ok(())
    }

    fn begin(&self, id: &str, name: &str) -> io::Result<Box<dyn Sink>> {
        Ok(Box::new(Upload {
            bucket: Arc::clone(&self.0),
            at: self.at(id, name),
            part: Vec::new(),
            parts: 0,
            begun: None,
            running: VecDeque::new(),
        }))
    }

    fn open(&self, id: &str, name: &str) -> io::Result<Box<dyn Source>> {
        let (at, bucket) = (self.at(id, name), Arc::clone(&self.0));
        let object = at.clone();
        let len = bucket.wait(|store| async move { store.head(&object).await })?.size;
        Ok(Box::new(Object { bucket, at, len }))
    }

    fn rename(&self, id: &str, from: &str, to: &str) -> io::Result<()> {
        let source = self.open(id, from)?;
        let (old, new, len) = (self.at(id, from), self.at(id, to), source.len()?);
        if len <= COPIED_MAX {
            return Ok(self.0.wait(|store| async move { store.rename(&old, &new).await })?);
        }
        let mut copy = self.begin(id, to)?;
        let mut bytes = Vec::new();
        for offset in (0..len).step_by(WINDOW_BYTES as usize) {
            bytes.resize(WINDOW_BYTES.min(len - offset) as usize, 0);
            source.read(offset, &mut bytes)?;
            copy.write(&bytes)?;
        }
        copy.end()?;
        self.remove(id, from)
    }

    fn remove(&self, id: &str, name: &str) -> io::Result<()> {
        let at = self.at(id, name);
        Ok(self.0.wait(|store| async move { store.delete(&at).await })?)
    }

    fn complete(&self, id: &str, manifest: &[u8]) -> io::Result<()> {
        let (at, bytes) = (self.at(id, MANIFEST), manifest.to_vec());
        Ok(self.0.wait(|store| async move { store.put(&at, bytes.into()).await }).map(drop)?)
    }

    fn manifest(&self, id: &str) -> io::Result<Vec<u8>> {
        let at = self.at(id, MANIFEST);
        let read = self.0.wait(|store| async move { store.get(&at).await?.bytes().await })?;
        Ok(read.to_vec())
    }

    fn discard(&self, id: &str) {
        let prefix = self.0.prefix.clone().join(id);
        self.0.wait(|store| async move {
            if let Ok(listed) = store.list_with_delimiter(Some(&prefix)).await {
                for object in listed.objects {
                    let _ = store.delete(&object.location).await;
                }
            }
        });
    }
}

/// An object that is being sent.
struct Upload {
    bucket: Arc<Inner>,
    at: Path,
    /// The open part.
    part: Vec<u8>,
    /// Number of parts before it.
    parts: u32,
    /// `None` as long as the object may have one part only.
    begun: Option<Box<dyn MultipartUpload>>,
    running: VecDeque<JoinHandle<object_store::Result<()>>>,
}

/// Bytes of an object's part.
fn part_bytes(number: u32) -> usize {
    PART_BYTES << (number / PARTS_ALIKE).min(9)
}

impl Upload {
    /// Waits until at most `most` parts are under way.
    fn wait_for(&mut self, most: usize) -> io::Result<()> {
        while self.running.len() > most {
            if let Some(part) = self.running.pop_front() {
                self.bucket.wait(|_| part)??;
            }
        }
        Ok(())
    }

    /// Sends the open part.
    fn send(&mut self) -> io::Result<()> {
        self.wait_for(IN_FLIGHT - 1)?;
        if self.begun.is_none() {
            let at = self.at.clone();
            self.begun = Some(self.bucket.wait(|store| async move { store.put_multipart(&at).await })?);
        }
        if let Some(upload) = &mut self.begun {
            let part = upload.put_part(std::mem::take(&mut self.part).into());
            self.running.push_back(self.bucket.runtime().spawn(part));
            self.parts += 1;
        }
        Ok(())
    }
}

impl Sink for Upload {
    fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let room = part_bytes(self.parts) - self.part.len();
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.part.extend_from_slice(now);
            bytes = later;
            if self.part.len() == part_bytes(self.parts) {
                self.send()?;
            }
        }
        Ok(())
    }

    fn end(mut self: Box<Self>) -> io::Result<()> {
        if self.begun.is_none() {
            let (at, bytes) = (self.at.clone(), std::mem::take(&mut self.part));
            return Ok(self
                .bucket
                .wait(|store| async move { store.put(&at, bytes.into()).await })
                .map(drop)?);
        }
        if !self.part.is_empty() {
            self.send()?;
        }
        self.wait_for(0)?;
        let Some(mut upload) = self.begun.take() else { return Ok(()) };
        let (upload, ended) = self.bucket.wait(|_| async move {
            let ended = upload.complete().await;
            (upload, ended)
        });
        if ended.is_err() {
            self.begun = Some(upload);
        }
        Ok(ended.map(drop)?)
    }
}

impl Drop for Upload {
    /// Removes the parts of an object that was not ended, if the store answers.
    fn drop(&mut self) {
        if let Some(mut upload) = self.begun.take() {
            let running = std::mem::take(&mut self.running);
            self.bucket.wait(|_| async move {
                for part in running {
                    let _ = part.await;
                }
                let _ = upload.abort().await;
            });
        }
    }
}

/// An object that is being read.
struct Object {
    bucket: Arc<Inner>,
    at: Path,
    len: u64,
}

impl Source for Object {
    fn len(&self) -> io::Result<u64> {
        Ok(self.len)
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(bytes.len() as u64).filter(|&end| end <= self.len);
        let end = end.ok_or(ErrorKind::UnexpectedEof)?;
        for begin in (offset / WINDOW_BYTES * WINDOW_BYTES..end).step_by(WINDOW_BYTES as usize) {
            let window = self.bucket.window(&self.at, begin, self.len)?;
            let part: Range<u64> = offset.max(begin)..end.min(begin + WINDOW_BYTES);
            let found = window.get((part.start - begin) as usize..(part.end - begin) as usize);
            let found = found.ok_or(ErrorKind::UnexpectedEof)?;
            bytes[(part.start - offset) as usize..(part.end - offset) as usize].copy_from_slice(found);
        }
        Ok(())
    }
}
