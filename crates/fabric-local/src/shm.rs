//! `shm`: memory servers in files that several processes map at once, and that outlive them.
//!
//! A pool is a directory with one file per memory server (`server-0.pando`, `server-1.pando`, ...) or one plain
//! file, which is a pool of one memory server. Any file system will do: tmpfs, a disk, hugetlbfs, a DAX file. Files
//! are sparse; [`pando_fabric::Endpoint::reserve`] gives a range its memory, and what was never reserved must not be
//! touched where the file system could run full.
//!
//! A file that somebody truncates while it is mapped ends the processes that touch the missing part (SIGBUS).

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pando_fabric::{Fabric, FabricError, MemoryServerId, RegionInfo, RequestHandler, Result};
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, fstatvfs, seek};
use rustix::process::{Resource, getrlimit};

use crate::local::{PAGE, check_servers, check_size};
use crate::region::{Region, open_error, system_error};
use crate::regions::Regions;
use crate::{ExclusiveLock, LocalEndpoint, ServedRegion};

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
    /// `Open` if there is a pool already or the shape is impossible, `System` if the file system refuses or is full;
    /// whatever was made until then is removed.
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
        made.sync_names(path)?;
        made.keep();
        Ok(Self { regions: Arc::new(regions(list, path, false)), path: path.into() })
    }

    /// Maps the pool at `path`. With `read_only` every WRITE and atomic of its endpoints is refused.
    ///
    /// # Errors
    /// `Open` if there is no pool, or a file of it is missing or cut short; `System` if one is not accessible.
    pub fn open(path: impl AsRef<Path>, read_only: bool) -> Result<Self> {
        let path = path.as_ref();
        let found = fs::metadata(path).map_err(|err| match err.kind() {
            io::ErrorKind::NotFound => open_error(path, "there is no pool"),
            _ => os_error(path, "cannot be opened", &err),
        })?;
        let paths = if found.is_dir() { server_files(path)? } else { vec![path.to_owned()] };
        let list = paths.into_iter().map(|path| open_region(path, read_only)).collect::<Result<_>>()?;
        Ok(Self { regions: Arc::new(regions(list, path, read_only)), path: path.into() })
    }

    /// Maps a device, all of it: device-DAX (`/dev/dax0.0`), or a block device. It is one memory server, whatever is in it.
    ///
    /// # Errors
    /// `Open` if it is no device with memory, `System` if it is not accessible.
    pub fn open_device(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .map_err(|err| os_error(path, "cannot be opened", &err))?;
        let bytes = device_bytes(&file, path)?;
        check_size(path, bytes)?;
        let region = Region::of_device(file, path.to_owned(), bytes as usize)
            .map_err(|err| open_error(path, format!("cannot map {bytes} bytes: {err}")))?;
        Ok(Self { regions: Arc::new(Regions::new(vec![region], path)), path: path.into() })
    }

    /// Whether this is a device, as opposed to a file.
    pub fn is_device(path: impl AsRef<Path>) -> bool {
        let kind = fs::metadata(path).map(|found| found.file_type());
        kind.is_ok_and(|kind| kind.is_char_device() || kind.is_block_device())
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

    /// Lets one more memory server of `bytes` join, in a file of its own; its number. All endpoints of this process reach it
    /// from now on, and those of others when they come upon an address there. Nothing of a pool is in it yet.
    ///
    /// # Errors
    /// `Open` if the pool is one plain file, or its size is impossible, or too many have joined; `System` if the file
    /// system refuses.
    pub fn add_server(&self, bytes: u64, huge_pages: HugePages) -> Result<MemoryServerId> {
        if !self.path.is_dir() {
            let reason =
                "a pool of one plain file has no place for another memory server; only a directory has";
            return Err(open_error(&self.path, reason));
        }
        // Others may be adding one too.
        let _lock = Self::lock_place(&self.path)?;
        self.regions.look_for_all()?;
        self.regions.add(|number| {
            let mut made = Made::default();
            let config = ShmConfig { servers: 1, bytes_per_server: bytes, huge_pages };
            let region = made.region(server_file(&self.path, number), &config)?;
            made.sync_names(&self.path)?;
            made.keep();
            Ok(region)
        })
    }

    /// Maps the memory servers that other processes added since this one opened the pool.
    ///
    /// # Errors
    /// As of [`ShmFabric::open`].
    pub fn look_for_servers(&self) -> Result<()> {
        self.regions.look_for_all()
    }

    /// Writes what changed to the files and waits until it is there.
    ///
    /// # Errors
    /// `System` with what the file system says.
    pub fn flush(&self) -> Result<()> {
        self.regions.list().iter().try_for_each(Region::flush)
    }

    /// Waits until nobody else holds the lock of this pool, in this process or another.
    ///
    /// # Errors
    /// `System` if somebody holds it for 30 s.
    pub fn lock_exclusive(&self) -> Result<ExclusiveLock> {
        let (file, path) = self.regions.list()[0].file().expect("regions of this fabric are files");
        ExclusiveLock::of(file, path)
    }

    /// Waits until nobody else makes, removes or replaces a pool at `path`. There may be nothing at `path` yet; what is
    /// locked is the directory around it.
    ///
    /// # Errors
    /// `Open` if there is no such directory, `System` if somebody holds the lock for 30 s or there can be none.
    pub fn lock_place(path: impl AsRef<Path>) -> Result<ExclusiveLock> {
        let path = path.as_ref();
        // Others may know the pool by another name.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        match path.parent() {
            Some(parent) if parent.as_os_str().is_empty() => ExclusiveLock::of_directory(Path::new(".")),
            parent => ExclusiveLock::of_directory(parent.unwrap_or(&path)),
        }
    }

    /// The region of one memory server, for who executes the verbs of others on it.
    ///
    /// # Errors
    /// `UnknownServer`.
    pub fn served_region(&self, server: MemoryServerId) -> Result<ServedRegion> {
        ServedRegion::new(Arc::clone(&self.regions), server)
    }

    /// Lets `handler` execute the two-sided calls of this process's endpoints, on `threads` threads per memory server, or on the thread that
    /// calls if that is 0. A handler that owns this fabric keeps it alive until [`ShmFabric::clear_handler`].
    ///
    /// # Errors
    /// `System` if a thread cannot be started; the handler before stays then.
    pub fn set_handler(&self, handler: Arc<dyn RequestHandler>, threads: usize) -> Result<()> {
        self.regions.set_handler(handler, threads)
    }

    /// From now on every two-sided call is refused.
    pub fn clear_handler(&self) {
        self.regions.clear_handler();
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

/// The regions of a pool that others may add to while it is in use, if it is a directory.
fn regions(list: Vec<Region>, path: &Path, read_only: bool) -> Regions {
    let regions = Regions::new(list, path);
    if !path.is_dir() {
        return regions;
    }
    let directory = path.to_owned();
    regions.with_finder(Box::new(move |number| {
        let file = server_file(&directory, number);
        match file.exists() {
            true => open_region(file, read_only).map(Some),
            false => Ok(None),
        }
    }))
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
    let numbers = server_numbers(directory).map_err(|err| os_error(directory, "cannot be listed", &err))?;
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
        .map_err(|err| os_error(&path, "cannot be opened", &err))?;
    let found = file.metadata().map_err(|err| os_error(&path, "its size cannot be asked", &err))?;
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
    if begins_with_hole(&file) {
        return Err(open_error(&path, "nothing was ever written to its beginning: it holds no pool"));
    }
    map_file(file, path, found.len(), !read_only, HugePages::WhenOffered)
}

/// Bytes of a device. The kernel tells them of block devices by the file, of memory that is a device by its number.
fn device_bytes(file: &File, path: &Path) -> Result<u64> {
    let found = file.metadata().map_err(|err| os_error(path, "its size cannot be asked", &err))?;
    if found.file_type().is_block_device() {
        return seek(file, SeekFrom::End(0))
            .map_err(|err| os_error(path, "its size cannot be asked", &err.into()));
    }
    let (major, minor) = (rustix::fs::major(found.rdev()), rustix::fs::minor(found.rdev()));
    let size = fs::read_to_string(format!("/sys/dev/char/{major}:{minor}/size"));
    let bytes = size.ok().and_then(|size| size.trim().parse().ok());
    bytes.ok_or_else(|| open_error(path, "this is no device with memory, such as /dev/dax0.0"))
}

/// Whether the first page has no memory: touching it could find the file system full. Where holes cannot be told,
/// there are none.
fn begins_with_hole(file: &File) -> bool {
    match seek(file, SeekFrom::Data(0)) {
        Ok(first) => first >= PAGE,
        Err(errno) => errno == rustix::io::Errno::NXIO,
    }
}

/// The error of a system call for `path`: what was asked for is at fault, or the system.
fn os_error(path: &Path, what: &str, err: &io::Error) -> FabricError {
    use io::ErrorKind::{
        AlreadyExists, FileTooLarge, InvalidFilename, InvalidInput, IsADirectory, NotADirectory, NotFound,
    };
    let reason = format!("{what}: {err}");
    match err.kind() {
        AlreadyExists | FileTooLarge | InvalidFilename | InvalidInput | IsADirectory | NotADirectory
        | NotFound => open_error(path, reason),
        _ => system_error(path, reason),
    }
}

/// Gives a new file its length without memory, and memory to its first page, which is looked at before anything
/// can be reserved.
fn grow(file: &File, path: &Path, bytes: u64) -> Result<()> {
    let what = format!("cannot grow to {bytes} bytes");
    // Beyond it the kernel would not only refuse but also send a signal that ends the process.
    if let Some(most) = getrlimit(Resource::Fsize).current.filter(|&most| most < bytes) {
        let reason = format!("{what}: files of this process may have at most {most} bytes");
        return Err(system_error(path, reason));
    }
    file.set_len(bytes).map_err(|err| os_error(path, &what, &err))?;
    match file.write_all_at(&[0; PAGE as usize], 0) {
        // Files of hugetlbfs are mapped, but not written.
        Err(err) if err.kind() == io::ErrorKind::InvalidInput => {
            fallocate(file, FallocateFlags::empty(), 0, PAGE)
                .map_err(|err| os_error(path, "has no huge page left", &err.into()))
        }
        written => written.map_err(|err| os_error(path, &what, &err)),
    }
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
            fs::create_dir(path).map_err(|err| os_error(path, "cannot be created", &err))?;
            self.directory = Some(path.to_owned());
        }
        Ok((0..servers).map(|server| server_file(path, server)).collect())
    }

    fn region(&mut self, path: PathBuf, config: &ShmConfig) -> Result<Region> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(|err| os_error(&path, "cannot be created", &err))?;
        self.files.push(path.clone());
        // On hugetlbfs a block is a huge page, and nothing else can be mapped.
        let system =
            fstatvfs(&file).map_err(|err| os_error(&path, "its file system cannot be asked", &err.into()))?;
        let block = system.f_bsize.max(1);
        let bytes = config.bytes_per_server.next_multiple_of(block).next_multiple_of(PAGE);
        check_size(&path, bytes)?;
        grow(&file, &path, bytes)?;
        map_file(file, path, bytes, true, config.huge_pages)
    }

    /// Makes the names of what was made outlive a crash, as the content will.
    fn sync_names(&self, path: &Path) -> Result<()> {
        let around = |path: &Path| path.parent().unwrap_or(path).to_owned();
        let inside = self.files.first().map(|file| around(file));
        let outside = self.directory.is_some().then(|| around(path));
        for directory in inside.into_iter().chain(outside) {
            let directory = if directory.as_os_str().is_empty() { PathBuf::from(".") } else { directory };
            match File::open(&directory).and_then(|directory| directory.sync_all()) {
                // Some file systems have nothing to do there.
                Err(err) if err.kind() != io::ErrorKind::InvalidInput => {
                    return Err(os_error(&directory, "cannot be written to its device", &err));
                }
                _ => {}
            }
        }
        Ok(())
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
