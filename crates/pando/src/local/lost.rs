//! Indexes that can no longer be opened, and the reuse of their names.
//!
//! An index is *unmade* if the process that was creating it ended before it had a root; until then that
//! process owns it. An index is *lost* if the owner of a partition died. Neither can be opened. Dropping one
//! removes it from the catalog and frees only the blocks of its catalog record. Its nodes stay allocated
//! until the allocation is rebuilt, because it is unknown which of them the dead process had freed.

use pando_pool::{AttachSlot, IndexRecord, PoolError};
use pando_rt::block_on;

use crate::error::{Error, Result};
use crate::place::AnyEndpoint;
use crate::shared::Shared;

/// Whether no process will complete this index, which has no root yet. An index that this process was
/// creating counts if the caller holds the registry: then the creation is over.
pub(crate) fn is_unmade(
    shared: &Shared,
    ep: &AnyEndpoint,
    record: &IndexRecord,
    holds_registry: bool,
) -> Result<bool> {
    if !record.root.is_null() {
        return Ok(false);
    }
    let is_at_work = |slot: AttachSlot| {
        if Some(slot) == shared.pool.slot() {
            return Ok(!holds_registry);
        }
        Ok::<_, Error>(!block_on(ep, shared.pool.is_abandoned(ep, slot))?)
    };
    for &slot in record.owners.iter().flatten() {
        if is_at_work(slot)? {
            return Ok(false);
        }
    }
    // Whoever was creating it may have ended because the index was complete.
    match block_on(ep, shared.pool.open_index(ep, &record.name)) {
        Ok(now) => Ok((now.id, now.version) == (record.id, record.version)),
        // Somebody has removed it for that reason.
        Err(PoolError::UnknownIndex { .. }) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// Whether the index can no longer be opened as a whole. The caller holds the registry.
pub(crate) fn is_unusable(shared: &Shared, ep: &AnyEndpoint, record: &IndexRecord) -> Result<bool> {
    Ok(is_unmade(shared, ep, record, true)?
        || block_on(ep, shared.pool.lost_partition(ep, record))?.is_some())
}

/// Removes such an index from the catalog, unless a living process owns a part of it, or its record has changed: it may be
/// complete.
pub(crate) fn unlink(shared: &Shared, ep: &AnyEndpoint, record: &IndexRecord) -> Result<()> {
    block_on(ep, shared.pool.drop_lost_index(ep, record))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::path::Path;
    use std::process::{Child, Command, Stdio};
    use std::time::Duration;

    use pando_fabric::GlobalAddr;
    use pando_pool::IndexSpec;

    use super::*;
    use crate::options::Descriptor;
    use crate::{Cluster, Config, Create, IndexOptions, OpenOptions, Ownership};

    fn attached(path: &Path, create: Create) -> Cluster {
        let config = Config::at(path).memory(16 << 20).cache(256 << 10).create(create);
        Cluster::open(config.deadline(Duration::from_millis(300))).expect("opens")
    }

    /// The first half of the creation of an index.
    fn begin_making(cluster: &Cluster, name: &str) {
        let descriptor = Descriptor::of(&IndexOptions::integers()).expect("they go together");
        let spec = IndexSpec {
            name: name.to_owned(),
            system: 1,
            node_size: 1024,
            subtree_level: 3,
            root: GlobalAddr::NULL,
            layout: descriptor.encode(),
            boundaries: Vec::new(),
        };
        let shared = &cluster.shared;
        let made = shared.with_endpoint(|ep| Ok(block_on(ep, shared.pool.create_own_index(ep, spec))?));
        made.expect("room");
    }

    #[test]
    fn an_index_whose_record_has_changed_is_neither_unmade_nor_unlinked() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("p.pando");
        let (making, other) = (attached(&path, Create::New), attached(&path, Create::Never));
        begin_making(&making, "x");
        let shared = &other.shared;
        let record = shared.with_endpoint(|ep| shared.record(ep, "x")).expect("it is there");
        // Its creator goes on, and has closed the pool before the other one looks who that is.
        let own = &making.shared;
        let left = own.with_endpoint(|ep| Ok(block_on(ep, own.pool.release_partitions(ep, "x", &[0]))?));
        left.expect("its own");
        making.close().expect("closes");
        let unmade = shared.with_endpoint(|ep| is_unmade(shared, ep, &record, false));
        assert!(!unmade.expect("no error"), "an index would be lost that was just completed");
        let unlinked = shared.with_endpoint(|ep| unlink(shared, ep, &record));
        assert!(matches!(unlinked, Err(Error::Pool(PoolError::StaleRecord { .. }))), "{unlinked:?}");
    }

    const TASK: &str = "PANDO_TEST_LOST_TASK";
    const PATH: &str = "PANDO_TEST_LOST_PATH";

    /// Performs `task` in another process, which then waits to be killed.
    fn start(path: &Path, task: &str) -> Child {
        let exe = std::env::current_exe().expect("own path");
        let mut command = Command::new(exe);
        command.args(["--exact", "local::lost::tests::a_further_process", "--nocapture"]);
        command.env(TASK, task).env(PATH, path).stdout(Stdio::piped());
        let mut child = command.spawn().expect("starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let ready = lines.map(|line| line.expect("text")).any(|line| line.ends_with("ready"));
        assert!(ready, "the process ended");
        child
    }

    #[test]
    fn a_further_process() {
        let (Ok(task), Ok(path)) = (std::env::var(TASK), std::env::var(PATH)) else { return };
        let cluster = attached(Path::new(&path), Create::Never);
        let index = match task.as_str() {
            "make" => {
                ["made again", "opened", "dropped"].iter().for_each(|name| begin_making(&cluster, name));
                None
            }
            _ => {
                let own = OpenOptions::default().own(Ownership::Partitions(vec![1]));
                let index = cluster.open_index_with("x", &own).expect("nobody's");
                index.integers().expect("a session").put(u64::MAX, 1).expect("room");
                Some(index)
            }
        };
        println!("ready");
        loop {
            std::thread::park();
            assert!(index.is_none() || !cluster.index_names().expect("read").is_empty());
        }
    }

    fn die(mut child: Child) {
        child.kill().expect("runs");
        child.wait().expect("runs");
    }

    fn works(cluster: &Cluster, name: &str) {
        let index = cluster.create_index(name, &IndexOptions::integers()).expect("the name is free");
        let session = index.integers().expect("a session");
        assert_eq!((session.put(1, 2).expect("room"), session.get(1).expect("read")), (false, Some(2)));
    }

    #[test]
    fn an_index_whose_maker_ended_can_be_dropped_and_made_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("pool");
        let cluster = attached(&path, Create::New);
        let maker = start(&path, "make");
        // The maker is alive and may be about to finish.
        let opened = cluster.open_index("dropped").expect_err("no root");
        assert!(opened.to_string().contains("has not finished"), "{opened}");
        let exists = cluster.create_index("made again", &IndexOptions::integers()).expect_err("a name");
        assert!(matches!(exists, Error::IndexExists { .. }), "{exists}");
        assert!(cluster.drop_index("dropped").is_err());
        die(maker);
        let opened = cluster.open_index("dropped").expect_err("no root");
        assert!(opened.to_string().contains("ended before it was done"), "{opened}");
        works(&cluster, "made again");
        cluster.open_or_create_index("opened", &IndexOptions::integers()).expect("nobody is making it");
        cluster.drop_index("dropped").expect("nobody is making it");
        assert_eq!(cluster.index_names().expect("read"), ["made again", "opened"]);
        // Indexes whose creation this process began and abandoned.
        begin_making(&cluster, "dropped");
        works(&cluster, "dropped");
        begin_making(&cluster, "given up");
        cluster.drop_index("given up").expect("its own");
        cluster.drop_index("made again").expect("whole");
    }

    #[test]
    fn a_lost_index_can_be_dropped_and_made_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("pool");
        let cluster = attached(&path, Create::New);
        let halves = IndexOptions::integers().boundaries(vec![vec![0x80; 8]]);
        let own = Ownership::Partitions(vec![0]);
        let index = cluster.create_index("x", &halves.clone().own(own)).expect("room");
        let (other, third) = (start(&path, "own"), attached(&path, Create::Never));
        assert!(cluster.drop_index("x").is_err(), "the other one lives");
        die(other);
        // A living process keeps its part.
        let owned = third.drop_index("x").expect_err("this process owns a part");
        let is_owned = matches!(owned, Error::Pool(PoolError::PartitionOwned { partition: 0, .. }));
        assert!(is_owned, "{owned}");
        let session = index.integers().expect("a session");
        assert!(matches!(cluster.drop_index("x"), Err(Error::SessionsOpen { .. })));
        drop(session);
        cluster.drop_index("x").expect("lost");
        assert!(matches!(index.session(), Err(Error::Closed)));
        works(&cluster, "x");
        assert_eq!(third.index_names().expect("read"), ["x"]);
    }
}
