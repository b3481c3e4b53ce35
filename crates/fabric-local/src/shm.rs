//! `shm`: memory servers in files that several processes map at once, and that outlive them.
//!
//! A pool is a directory with one file per memory server (`server-0.pando`, `server-1.pando`, ...) or one plain
//! file, which is a pool of one memory server. Any file system will do: tmpfs, a disk, hugetlbfs, a DAX file. Files
//! are sparse; [`pando_fabric::Endpoint::reserve`] gives a range its memory, and what was never reserved must not be
//! touched where the file system could run full.
//!
//! A file that somebody truncates while it is mapped ends the processes that touch the missing part (SIGBUS).

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pando_fabric::{Fabric, RegionInfo, RequestHandler, Result};
use rustix::fs::fstatvfs;

use crate::local::{PAGE, check_servers, check_size};
use crate::region::{Region, open_error};
use crate::regions::Regions;
use crate::{ExclusiveLock, LocalEndpoint};

/// Shape of a new pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShmConfig {
    /// Memory servers; more than one make the pool a directory.
    pub servers: usize,
    /// Bytes of each, rounded up to the blocks (huge pages) of the file system.
    pub bytes_per_server: u64,
    pub huge_pages: HugePages,
}

/// Whether to ask for huge pages. They are never required.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// Where the kernel and the file system have them.
    #[default]
    WhenOffered,
    Never,
}

/// Memory servers in mapped files. Clones share them; the last clone or endpoint unmaps them.
#[derive(Clone)]
pub struct ShmFabric {
    regions: Arc<Regions>,
    path: Arc<Path>,
}

impl ShmFabric {
    /// Makes a pool at `path`: a directory if there are several memory servers, `path` is one already or ends in a
    /// slash, else a plain file. A directory may hold other files.
    ///
    /// # Errors
    /// `Open` if there is a pool already, the shape is impossible, or the file system refuses; whatever was made
    /// until then is removed.
    pub fn create(path: impl AsRef<Path>, config: ShmConfig) -> Result<Self> {
        let path = path.as_ref();
        check_servers(path, config.servers)?;
        check_size(path, config.bytes_per_server)?;
        if Self::exists(path) {
            return Err(open_error(path, "there is a pool already"));
        }
        let mut made = Made::default();
        let paths = made.place(path, config.servers)?;
        let mut list = Vec::with_capacity(config.servers);
        // Server 0 last: a pool whose maker was killed is seen to be incomplete.
        for path in paths.into_iter().rev() {
            list.push(made.region(path, &config)?);
        }
        list.reverse();
        made.keep();
        Ok(Self { regions: Arc::new(Regions::new(list)), path: path.into() })
    }

    /// Maps the pool at `path`. With `read_only` every WRITE and atomic of its endpoints is refused.
    ///
    /// # Errors
    /// `Open` if there is no pool, a file of it is missing, cut short or not accessible.
    pub fn open(path: impl AsRef<Path>, read_only: bool) -> Result<Self> {
        let path = path.as_ref();
        let found = fs::metadata(path).map_err(|err| match err.kind() {
            ErrorKind::NotFound => open_error(path, "there is no pool"),
            _ => open_error(path, format!("cannot be opened: {err}")),
        })?;
        let paths = if found.is_dir() { server_files(path)? } else { vec![path.to_owned()] };
        let list = paths.into_iter().map(|path| open_region(path, read_only)).collect::<Result<_>>()?;
        Ok(Self { regions: Arc::new(Regions::new(list)), path: path.into() })
    }

    /// Whether there is a pool at `path`, or what is left of one: a plain file, or a directory with files of memory
    /// servers.
    pub fn exists(path: impl AsRef<Path>) -> bool {
        let path = path.as_ref();
        path.is_file() || server_numbers(path).is_ok_and(|numbers| !numbers.is_empty())
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes what changed to the files and waits until it is there.
    ///
    /// # Errors
    /// `Open` with what the file system says.
    pub fn flush(&self) -> Result<()> {
        self.regions.list().iter().try_for_each(Region::flush)
    }

    /// Waits until nobody else holds the lock of this pool, in this process or another.
    ///
    /// # Errors
    /// `Open` if somebody holds it for 30 s.
    pub fn lock_exclusive(&self) -> Result<ExclusiveLock> {
        let (file, path) = self.regions.list()[0].file().expect("regions of this fabric are files");
        ExclusiveLock::of(file, path)
    }

    /// Lets `handler` execute the two-sided calls of this process's endpoints, on the thread that calls. A handler
    /// that owns this fabric keeps it alive until [`ShmFabric::clear_handler`].
    pub fn set_handler(&self, handler: Arc<dyn RequestHandler>) {
        self.regions.set_handler(Some(handler));
    }

    /// From now on every two-sided call is refused.
    pub fn clear_handler(&self) {
        self.regions.set_handler(None);
    }
}

impl Fabric for ShmFabric {
    type Endpoint = LocalEndpoint;

    fn endpoint(&self, seed: u64) -> Result<LocalEndpoint> {
        Ok(LocalEndpoint::new(Arc::clone(&self.regions), seed))
    }

    fn regions(&self) -> &[RegionInfo] {
        self.regions.infos()
    }
}

impl std::fmt::Debug for ShmFabric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShmFabric").field("path", &self.path).field("regions", &self.regions.infos()).finish()
    }
}

fn server_file(directory: &Path, server: usize) -> PathBuf {
    directory.join(format!("server-{server}.pando"))
}

/// Numbers of the memory servers that have a file in `directory`, ascending.
fn server_numbers(directory: &Path) -> std::io::Result<Vec<usize>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("server-")?.strip_suffix(".pando"));
        let number = number.and_then(|number| number.parse().ok());
        // `server-01.pando` is not the file of a memory server.
        numbers.extend(number.filter(|&number| server_file(directory, number) == directory.join(&name)));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

fn server_files(directory: &Path) -> Result<Vec<PathBuf>> {
    let numbers =
        server_numbers(directory).map_err(|err| open_error(directory, format!("cannot be listed: {err}")))?;
    if numbers.is_empty() {
        return Err(open_error(directory, "there is no pool in this directory"));
    }
    check_servers(directory, numbers.len())?;
    if let Some(missing) = (0..numbers.len()).find(|&server| numbers[server] != server) {
        return Err(open_error(&server_file(directory, missing), "this part of the pool is missing"));
    }
    Ok(numbers.into_iter().map(|server| server_file(directory, server)).collect())
}

fn open_region(path: PathBuf, read_only: bool) -> Result<Region> {
    let file = OpenOptions::new()
        .read(true)
        .write(!read_only)
        .open(&path)
        .map_err(|err| open_error(&path, format!("cannot be opened: {err}")))?;
    let found =
        file.metadata().map_err(|err| open_error(&path, format!("its size cannot be asked: {err}")))?;
    if !found.is_file() {
        return Err(open_error(&path, "this is not a file"));
    }
    match found.len() {
        0 => return Err(open_error(&path, "the file is empty: it is no pool, or it was cut short")),
        len if !len.is_multiple_of(PAGE) => {
            let reason = format!("{len} bytes are no multiple of {PAGE}: it is no pool, or it was cut short");
            return Err(open_error(&path, reason));
        }
        len => check_size(&path, len)?,
    }
    map_file(file, path, found.len(), !read_only, HugePages::WhenOffered)
}

fn map_file(file: File, path: PathBuf, bytes: u64, writable: bool, huge_pages: HugePages) -> Result<Region> {
    let huge_pages = huge_pages == HugePages::WhenOffered;
    Region::of_file(file, path.clone(), bytes as usize, writable, huge_pages)
        .map_err(|err| open_error(&path, format!("cannot map {bytes} bytes: {err}")))
}

/// What `create` made so far; dropped before [`Made::keep`], it is removed again.
#[derive(Default)]
struct Made {
    directory: Option<PathBuf>,
    files: Vec<PathBuf>,
}

impl Made {
    /// The files that a pool at `path` consists of, and a directory for them where one is needed.
    fn place(&mut self, path: &Path, servers: usize) -> Result<Vec<PathBuf>> {
        let ends_in_slash = path.as_os_str().as_encoded_bytes().ends_with(b"/");
        if !path.is_dir() {
            if servers == 1 && !ends_in_slash {
                return Ok(vec![path.to_owned()]);
            }
            fs::create_dir(path).map_err(|err| open_error(path, format!("cannot be created: {err}")))?;
            self.directory = Some(path.to_owned());
        }
        Ok((0..servers).map(|server| server_file(path, server)).collect())
    }

    fn region(&mut self, path: PathBuf, config: &ShmConfig) -> Result<Region> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .map_err(|err| open_error(&path, format!("cannot be created: {err}")))?;
        self.files.push(path.clone());
        let cannot_grow = |err: std::io::Error| {
            open_error(&path, format!("cannot grow to {} bytes: {err}", config.bytes_per_server))
        };
        // On hugetlbfs a block is a huge page, and nothing else can be mapped.
        let block = fstatvfs(&file).map_err(|err| cannot_grow(err.into()))?.f_bsize.max(1);
        let bytes = config.bytes_per_server.next_multiple_of(block).next_multiple_of(PAGE);
        check_size(&path, bytes)?;
        file.set_len(bytes).map_err(cannot_grow)?;
        map_file(file, path, bytes, true, config.huge_pages)
    }

    fn keep(mut self) {
        self.files.clear();
        self.directory = None;
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        // Best effort: the error that led here is the one to report.
        for file in &self.files {
            let _ = fs::remove_file(file);
        }
        if let Some(directory) = &self.directory {
            let _ = fs::remove_dir(directory);
        }
    }
}
