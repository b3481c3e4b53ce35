//! The conformance suite over `local` and over each shape of `shm`.

use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::task::{Context, Waker};

use pando_fabric::conformance::{self, Echo, Options};
use pando_fabric_local::{HugePages, LocalConfig, LocalEndpoint, LocalFabric, ShmConfig, ShmFabric};

/// Verbs never wait here, so after a yield the future is polled again.
fn block_on(_: &LocalEndpoint, future: Pin<&mut dyn Future<Output = ()>>) {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    while future.as_mut().poll(&mut cx).is_pending() {
        std::thread::yield_now();
    }
}

fn temporary_on_disk() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory for tests")
}

/// A directory on tmpfs where there is one.
fn temporary_in_memory() -> tempfile::TempDir {
    let shm = PathBuf::from("/dev/shm");
    let parent = if shm.is_dir() { shm } else { env!("CARGO_TARGET_TMPDIR").into() };
    tempfile::tempdir_in(parent).expect("a directory for tests")
}

#[test]
fn local() {
    for huge_pages in [false, true] {
        let sizes = vec![2 << 20, 1 << 20, (1 << 20) + 5];
        let fabric = LocalFabric::new(LocalConfig { server_sizes: sizes, huge_pages }).expect("memory");
        conformance::run_all(&fabric, &block_on, Options::default());
        fabric.set_handler(Echo::handler(), 0).expect("no threads");
        conformance::run_all(&fabric, &block_on, Options { echo: true, threads: 0, ..Options::default() });
        // The same with threads of memory servers.
        for threads in [1, 3] {
            fabric.set_handler(Echo::handler(), threads).expect("threads");
            conformance::run_all(
                &fabric,
                &block_on,
                Options { echo: true, threads: 0, ..Options::default() },
            );
        }
        fabric.clear_handler();
        conformance::calls(&conformance::Suite::new(&fabric, &block_on, Options::default()));
    }
}

#[test]
fn shm_in_a_directory_in_memory() {
    let temporary = temporary_in_memory();
    let config = ShmConfig { servers: 3, bytes_per_server: 1 << 20, huge_pages: HugePages::WhenOffered };
    let fabric = ShmFabric::create(temporary.path().join("pool"), config).expect("a pool");
    conformance::run_all(&fabric, &block_on, Options::default());
    fabric.set_handler(Echo::handler(), 0).expect("no threads");
    conformance::run_all(&fabric, &block_on, Options { echo: true, threads: 0, ..Options::default() });
}

#[test]
fn shm_in_a_plain_file_on_disk_opened_again() {
    let temporary = temporary_on_disk();
    let path = temporary.path().join("pool");
    let config = ShmConfig { servers: 1, bytes_per_server: 3 << 20, huge_pages: HugePages::Never };
    drop(ShmFabric::create(&path, config).expect("a pool"));
    let fabric = ShmFabric::open(&path, false).expect("the pool just made");
    conformance::run_all(&fabric, &block_on, Options { rounds: 5_000, ..Options::default() });
    fabric.flush().expect("the disk takes it");
}
