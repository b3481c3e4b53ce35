//! `shm`: memory servers in files that several processes map and that outlive them.
//!
//! A pool is a directory with one file per memory server (`server-0.pando`, `server-1.pando`, ...) or one
//! plain file, which is a pool of one memory server. Any file system works: tmpfs, a disk, hugetlbfs, a DAX
//! file. Files are sparse. [`pando_fabric::Endpoint::reserve`] allocates the memory of a range; an unreserved
//! range must not be touched where the file system could run full.
//!
//! If a mapped file is truncated, a process that touches the missing part is ended by SIGBUS.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pando_fabric::{Fabric, FabricError, MemoryServerId, RegionInfo, RequestHandler, Result};
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, fstatfs, fstatvfs, seek};
use rustix::process::{Resource, getrlimit};

use crate::region::{PAGE, Region, check_size, open_error, system_error};
use crate::regions::{Regions, check_servers};
use crate::{ExclusiveLock, LocalEndpoint, ServedRegion};

/// Shape of a new pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShmConfig {
    /// Number of memory servers; the pool is a directory if there are several.
    pub servers: usize,
    /// Bytes of each, rounded up to the block size (huge page size) of the file system.
    pub bytes_per_server: u64,
    pub huge_pages: HugePages,
}

/// Whether to ask for huge pages. They are never required.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// Use them where the kernel and the file system offer them.
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
    /// Creates a pool at `path`: a directory if there are several memory servers, if `path` is a directory or
    /// ends in a slash; otherwise a plain file. A directory may hold other files.
    ///
    /// # Errors
    /// `Open` if there is a pool already or the shape is impossible, `System` if the file system refuses or
    /// is full. Files created before the error are removed.
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
        // Create server 0 last, so that a pool whose creator was killed is recognised as incomplete.
        for path in paths.into_iter().rev() {
            list.push(made.region(path, &config)?);
        }
        list.reverse();
        made.sync_names(path)?;
        made.keep();
        Ok(Self { regions: Arc::new(regions(list, path, false)), path: path.into() })
    }

    /// Maps the pool at `path`. If `read_only`, its endpoints refuse every WRITE and atomic. A memory server whose file is
    /// missing has a region without bytes.
    ///
    /// # Errors
    /// `Open` if there is no pool, or one of its files is truncated; `System` if one is not accessible.
    pub fn open(path: impl AsRef<Path>, read_only: bool) -> Result<Self> {
        let path = path.as_ref();
        let found = fs::metadata(path).map_err(|err| match err.kind() {
            io::ErrorKind::NotFound => open_error(path, "there is no pool"),
            _ => os_error(path, "cannot be opened", &err),
        })?;
        let paths = if found.is_dir() { server_files(path)? } else { vec![path.to_owned()] };
        let open = |path: PathBuf| match path.exists() {
            true => open_region(path, read_only),
            false => Ok(Region::nowhere()),
        };
        let list = paths.into_iter().map(open).collect::<Result<_>>()?;
        Ok(Self { regions: Arc::new(regions(list, path, read_only)), path: path.into() })
    }

    /// Maps a whole device as one memory server, whatever its content: device-DAX (`/dev/dax0.0`) or a block
    /// device.
    ///
    /// # Errors
    /// `Open` if it is not a device with memory, `System` if it is not accessible.
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

    /// The error if a memory server of the pool in the directory `path` is needed whose file is missing.
    pub fn missing(path: &Path, server: MemoryServerId) -> FabricError {
        open_error(&server_file(path, usize::from(server.0)), "this part of the pool is missing")
    }

    /// Whether `path` is a device and not a file.
    pub fn is_device(path: impl AsRef<Path>) -> bool {
        let kind = fs::metadata(path).map(|found| found.file_type());
        kind.is_ok_and(|kind| kind.is_char_device() || kind.is_block_device())
    }

    /// Whether there is a pool at `path`, or the remains of one: a plain file, or a directory with files of
    /// memory servers.
    pub fn exists(path: impl AsRef<Path>) -> bool {
        let path = path.as_ref();
        path.is_file() || server_numbers(path).is_ok_and(|numbers| !numbers.is_empty())
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a memory server of `bytes` in a new file and returns its number. The endpoints of this process
    /// reach it at once, those of other processes when they first use an address there. Its region is empty.
    ///
    /// # Errors
    /// `Open` if the pool is a plain file, the size is impossible or too many servers have joined; `System`
    /// if the file system refuses.
    pub fn add_server(&self, bytes: u64, huge_pages: HugePages) -> Result<MemoryServerId> {
        if !self.path.is_dir() {
            let reason =
                "a pool of one plain file has no place for another memory server; only a directory has";
            return Err(open_error(&self.path, reason));
        }
        // Other processes may be adding servers too.
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

    /// Maps the memory servers that other processes have added since this one opened the pool.
    ///
    /// # Errors
    /// As [`ShmFabric::open`].
    pub fn look_for_servers(&self) -> Result<()> {
        self.regions.look_for_all()
    }

    /// Writes all changes to the files and waits until they are durable.
    ///
    /// # Errors
    /// `System` with the error of the file system.
    pub fn flush(&self) -> Result<()> {
        self.regions.list().iter().try_for_each(Region::flush)
    }

    /// Takes the lock of this pool, which excludes all other threads and processes.
    ///
    /// # Errors
    /// `System` if another holder keeps it for 30 s.
    pub fn lock_exclusive(&self) -> Result<ExclusiveLock> {
        let (file, path) = self.regions.list()[0].file().expect("regions of this fabric are files");
        ExclusiveLock::of(file, path)
    }

    /// Takes the lock on creating, removing or replacing a pool at `path`. `path` need not exist; the lock is
    /// on its parent directory.
    ///
    /// # Errors
    /// `Open` if there is no such directory, `System` if another holder keeps the lock for 30 s or it cannot
    /// be locked.
    pub fn lock_place(path: impl AsRef<Path>) -> Result<ExclusiveLock> {
        let path = path.as_ref();
        // Other processes may use another name of the pool.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        match path.parent() {
            Some(parent) if parent.as_os_str().is_empty() => ExclusiveLock::of_directory(Path::new(".")),
            parent => ExclusiveLock::of_directory(parent.unwrap_or(&path)),
        }
    }

    /// The region of one memory server, for a server that executes verbs of remote clients.
    ///
    /// # Errors
    /// `UnknownServer`.
    pub fn served_region(&self, server: MemoryServerId) -> Result<ServedRegion> {
        ServedRegion::new(Arc::clone(&self.regions), server)
    }

    /// Sets the handler of two-sided calls of this process's endpoints. It runs on `threads` threads per
    /// memory server, or on the calling thread if that is 0. A handler that owns this fabric keeps it alive
    /// until [`ShmFabric::clear_handler`].
    ///
    /// # Errors
    /// `System` if a thread cannot be started; the previous handler then stays.
    pub fn set_handler(&self, handler: Arc<dyn RequestHandler>, threads: usize) -> Result<()> {
        self.regions.set_handler(handler, threads)
    }

    /// Removes the handler: every later two-sided call is refused.
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

/// The regions of a pool. If it is a directory, other processes may add regions while it is in use.
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

/// Numbers of the memory servers with a file in `directory`, ascending.
fn server_numbers(directory: &Path) -> std::io::Result<Vec<usize>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("server-")?.strip_suffix(".pando"));
        let number = number.and_then(|number| number.parse().ok());
        // `server-01.pando` parses to 1 but is not the file of memory server 1.
        numbers.extend(number.filter(|&number| server_file(directory, number) == directory.join(&name)));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Files of all memory servers up to the last one that there is, of which some may be missing.
fn server_files(directory: &Path) -> Result<Vec<PathBuf>> {
    let numbers = server_numbers(directory).map_err(|err| os_error(directory, "cannot be listed", &err))?;
    let Some(&last) = numbers.last() else {
        return Err(open_error(directory, "there is no pool in this directory"));
    };
    check_servers(directory, last + 1)?;
    if numbers[0] != 0 {
        return Err(ShmFabric::missing(directory, MemoryServerId(0)));
    }
    Ok((0..=last).map(|server| server_file(directory, server)).collect())
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

/// Size of a device in bytes: by seeking for a block device, from sysfs for a character device.
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

/// Whether the first page is a hole: touching it could find the file system full. `false` where the file
/// system cannot tell holes.
fn begins_with_hole(file: &File) -> bool {
    match seek(file, SeekFrom::Data(0)) {
        Ok(first) => first >= PAGE,
        Err(errno) => errno == rustix::io::Errno::NXIO,
    }
}

/// Error of a system call on `path`: `Open` if the request is at fault, `System` otherwise.
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

/// Sets the length of a new file without allocating its memory, except for the first page, which is read
/// before anything can be reserved.
fn grow(file: &File, path: &Path, bytes: u64) -> Result<()> {
    let what = format!("cannot grow to {bytes} bytes");
    // Beyond the limit the kernel would also send SIGXFSZ, which ends the process.
    if let Some(most) = getrlimit(Resource::Fsize).current.filter(|&most| most < bytes) {
        let reason = format!("{what}: files of this process may have at most {most} bytes");
        return Err(system_error(path, reason));
    }
    file.set_len(bytes).map_err(|err| os_error(path, &what, &err))?;
    match file.write_all_at(&[0; PAGE as usize], 0) {
        // Files of hugetlbfs can be mapped but not written.
        Err(err) if err.kind() == io::ErrorKind::InvalidInput => {
            fallocate(file, FallocateFlags::empty(), 0, PAGE)
                .map_err(|err| os_error(path, "has no huge page left", &err.into()))
        }
        written => written.map_err(|err| os_error(path, &what, &err)),
    }
}

fn map_file(file: File, path: PathBuf, bytes: u64, writable: bool, huge_pages: HugePages) -> Result<Region> {
    let huge_pages = huge_pages == HugePages::WhenOffered && is_in_memory(&file);
    Region::of_file(file, path.clone(), bytes as usize, writable, huge_pages)
        .map_err(|err| open_error(&path, format!("cannot map {bytes} bytes: {err}")))
}

/// Whether a file is in a file system that has no disk. Of one that has, a changed word dirties its page, however large that is:
/// what is written to the disk then is 2 MiB instead of 4 KiB.
fn is_in_memory(file: &File) -> bool {
    const OF_MEMORY: [u32; 3] = [0x0102_1994, 0x8584_58f6, 0x9584_58f6]; // tmpfs, ramfs, hugetlbfs
    fstatfs(file).is_ok_and(|system| OF_MEMORY.contains(&(system.f_type as u32)))
}

/// Files and directory created so far. Dropping it before [`Made::keep`] removes them.
#[derive(Default)]
struct Made {
    directory: Option<PathBuf>,
    files: Vec<PathBuf>,
}

impl Made {
    /// Paths of the files of a pool at `path`. Creates the pool's directory if one is needed.
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
        // On hugetlbfs a block is a huge page, and only whole blocks can be mapped.
        let system =
            fstatvfs(&file).map_err(|err| os_error(&path, "its file system cannot be asked", &err.into()))?;
        let block = system.f_bsize.max(1);
        let bytes = config.bytes_per_server.next_multiple_of(block).next_multiple_of(PAGE);
        check_size(&path, bytes)?;
        grow(&file, &path, bytes)?;
        map_file(file, path, bytes, true, config.huge_pages)
    }

    /// Makes the new directory entries survive a crash.
    fn sync_names(&self, path: &Path) -> Result<()> {
        let around = |path: &Path| path.parent().unwrap_or(path).to_owned();
        let inside = self.files.first().map(|file| around(file));
        let outside = self.directory.is_some().then(|| around(path));
        for directory in inside.into_iter().chain(outside) {
            let directory = if directory.as_os_str().is_empty() { PathBuf::from(".") } else { directory };
            match File::open(&directory).and_then(|directory| directory.sync_all()) {
                // Some file systems do not support syncing a directory.
                Err(err) if err.kind() != io::ErrorKind::InvalidInput => {
                    return Err(os_error(&directory, "cannot be written to its device", &err));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Keeps the files.
    fn keep(mut self) {
        self.files.clear();
        self.directory = None;
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        // Best effort: the caller reports the error that led here.
        for file in &self.files {
            let _ = fs::remove_file(file);
        }
        if let Some(directory) = &self.directory {
            let _ = fs::remove_dir(directory);
        }
    }
}
