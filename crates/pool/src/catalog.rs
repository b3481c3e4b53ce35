//! The catalog: named indexes with their roots, layouts, partitions, and the owners of these.
//!
//! The superblock of memory server 0 leads to a list of directory blocks, each with entries `(hash of the
//! name, address of the record block)`; [`crate::record`] describes records. All of it lies in blocks of the
//! pool, so only the pool's size bounds their number.
//!
//! Writers hold the catalog lock. Readers take no lock: they read the lock word, the catalog, and the lock
//! word again, and start over if it changed. Checksums distinguish damage from a concurrent change. Each
//! change takes effect by the WRITE of one word (`twin.rs`), so a writer that stops midway leaves the state
//! before or after. Changes that shrink a record or keep its size (dropping an index, claiming and releasing
//! partitions) also work in a full pool.

use pando_fabric::defect::defect;
use pando_fabric::{Endpoint, GlobalAddr, MemoryServerId, Nanos};

use crate::alloc::Placement;
use crate::attach::AttachMode;
use crate::defect::Defect;
use crate::directory::{DIRECTORY_BYTES, Directory, ENTRIES};
use crate::error::{PoolError, Result};
use crate::held::{LOOKS_AT_HOLDER, RemoteLock};
use crate::io::{persist, until_answered};
use crate::lock::{self, lock_owner};
use crate::logs::LogChange;
use crate::pool::Pool;
use crate::process::AttachSlot;
use crate::record::{
    IndexRecord, IndexSpec, RECORD_BYTES, RecordBlock, RecordValues, encode_boundaries, encode_owners,
};
use crate::value::ValueRef;

const PLACEMENT: Placement = Placement::Prefer(MemoryServerId(0));

/// A change of the owner of partitions.
#[derive(Clone, Copy)]
struct Claim<'c> {
    owner: Option<AttachSlot>,
    /// Also if the owner died.
    from_dead: bool,
    /// Changes of logs, by partition.
    logs: &'c [(usize, LogChange)],
}

/// Position of a record.
struct Found {
    directory: Directory,
    entry: usize,
    at: GlobalAddr,
    block: RecordBlock,
}

impl Pool {
    /// Enters an index into the catalog; its partitions have no owners.
    ///
    /// # Errors
    /// [`PoolError::IndexExists`], [`PoolError::InvalidIndex`], [`PoolError::PoolFull`]; errors of the
    /// catalog lock ([`PoolError::LockTimedOut`]), as for every change of the catalog.
    /// [`PoolError::CatalogUnknown`] if it is not known whether the change took effect; after any other error
    /// it did not, here and for every change of records.
    pub async fn create_index<E: Endpoint>(&self, ep: &E, spec: IndexSpec) -> Result<IndexRecord> {
        self.create_owned(ep, spec, None).await
    }

    /// As [`Pool::create_index`], with this process as owner of all partitions, so that others see which
    /// process is building an index.
    ///
    /// # Errors
    /// As [`Pool::create_index`].
    pub async fn create_own_index<E: Endpoint>(&self, ep: &E, spec: IndexSpec) -> Result<IndexRecord> {
        self.create_owned(ep, spec, Some(self.writer_slot()?)).await
    }

    async fn create_owned<E: Endpoint>(
        &self,
        ep: &E,
        spec: IndexSpec,
        owner: Option<AttachSlot>,
    ) -> Result<IndexRecord> {
        let mut record = IndexRecord::of_spec(spec, 0);
        record.owners.fill(owner);
        record.check()?;
        self.change_records(ep, async || {
            if self.find(ep, &record.name).await?.is_some() {
                return Err(PoolError::IndexExists { name: record.name.clone() });
            }
            let mut head = self.read_head(ep).await?;
            record.id = head.next_id;
            head.next_id += 1;
            // There is no index yet, whether or not the number was used up.
            self.replace_head(ep, &mut head).await.map_err(unchanged)?;
            self.enter(ep, &record).await
        })
        .await?;
        Ok(record)
    }

    /// [`Pool::open_index`] for a caller that holds the catalog lock.
    pub(crate) async fn record_locked<E: Endpoint>(&self, ep: &E, name: &str) -> Result<IndexRecord> {
        let found = self.find_known(ep, name).await?;
        self.load(ep, found.block).await
    }

    /// Returns the record of the index named `name`.
    ///
    /// # Errors
    /// [`PoolError::UnknownIndex`]; as for every read of the catalog, [`PoolError::Corrupt`] for damaged
    /// records, and [`PoolError::LockTimedOut`] or [`PoolError::NotClosedCleanly`] if a change of the catalog
    /// does not end.
    pub async fn open_index<E: Endpoint>(&self, ep: &E, name: &str) -> Result<IndexRecord> {
        self.look_at_catalog(ep, async || self.record_locked(ep, name).await).await
    }

    /// A number that differs after any change of the catalog; `None` during a change. Cheaper than opening an
    /// index.
    ///
    /// # Errors
    /// Errors of verbs.
    pub async fn catalog_version<E: Endpoint>(&self, ep: &E) -> Result<Option<u64>> {
        Ok(lock::unlocked_version(ep.read_word(self.catalog_lock()).await?))
    }

    /// Attach slot of the process that holds the catalog lock.
    ///
    /// # Errors
    /// Errors of verbs.
    pub async fn catalog_holder<E: Endpoint>(&self, ep: &E) -> Result<Option<AttachSlot>> {
        Ok(lock_owner(ep.read_word(self.catalog_lock()).await?))
    }

    /// All indexes, in no particular order.
    ///
    /// # Errors
    /// As [`Pool::open_index`].
    pub async fn list_indexes<E: Endpoint>(&self, ep: &E) -> Result<Vec<IndexRecord>> {
        self.look_at_catalog(ep, async || self.records(ep).await).await
    }

    /// [`Pool::list_indexes`] for a caller that holds the catalog lock, or looks whether anything changed.
    pub(crate) async fn records<E: Endpoint>(&self, ep: &E) -> Result<Vec<IndexRecord>> {
        let mut records = Vec::new();
        for directory in self.directories(ep).await? {
            for (_, at) in directory.entries {
                let block = self.read_record(ep, at).await?;
                records.push(self.load(ep, block).await?);
            }
        }
        Ok(records)
    }

    /// Removes the index named `name` from the catalog. The caller must free its nodes, to which the returned
    /// record leads.
    ///
    /// # Errors
    /// [`PoolError::UnknownIndex`]; [`PoolError::PartitionOwned`] or [`PoolError::PartitionLost`] while
    /// another process owns a partition; errors of [`Pool::create_index`].
    pub async fn drop_index<E: Endpoint>(&self, ep: &E, name: &str) -> Result<IndexRecord> {
        self.change_records(ep, async || {
            let found = self.find_known(ep, name).await?;
            let record = self.load(ep, found.block.clone()).await?;
            for partition in 0..record.owners.len() {
                self.check_owner(ep, &record, partition).await?;
            }
            self.unlink(ep, found).await?;
            Ok(record)
        })
        .await
    }

    /// Removes the index with this record from the catalog although dead processes own partitions,
    /// which can no longer be opened. The caller must not free its nodes: the dead processes may have freed
    /// some.
    ///
    /// # Errors
    /// [`PoolError::UnknownIndex`]; [`PoolError::StaleRecord`] if the record changed since `record` was read: the index may
    /// not be lost; [`PoolError::PartitionOwned`] by another live process; errors of [`Pool::create_index`].
    pub async fn drop_lost_index<E: Endpoint>(&self, ep: &E, record: &IndexRecord) -> Result<IndexRecord> {
        self.change_records(ep, async || {
            let found = self.find_unchanged(ep, record).await?;
            let record = self.load(ep, found.block.clone()).await?;
            for partition in 0..record.owners.len() {
                match self.check_owner(ep, &record, partition).await {
                    Ok(()) | Err(PoolError::PartitionLost { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            self.unlink(ep, found).await?;
            Ok(record)
        })
        .await
    }

    /// Finds an index by a record of it, unless that has changed since it was read.
    async fn find_unchanged<E: Endpoint>(&self, ep: &E, record: &IndexRecord) -> Result<Found> {
        let found = self.find_known(ep, &record.name).await?;
        if found.block.id != record.id {
            return Err(PoolError::UnknownIndex { name: record.name.clone() });
        }
        if found.block.version != record.version {
            return Err(PoolError::StaleRecord { name: record.name.clone() });
        }
        Ok(found)
    }

    /// Unlinks a record from its directory, and frees its blocks.
    async fn unlink<E: Endpoint>(&self, ep: &E, mut found: Found) -> Result<()> {
        found.directory.entries.swap_remove(found.entry);
        self.replace_directory(ep, &mut found.directory).await?;
        self.free_unlinked(ep, Some(found.at), &found.block.values().each()).await;
        Ok(())
    }

    /// First partition of the index whose owner died. The contents of that owner's cache are lost.
    ///
    /// # Errors
    /// Errors of verbs.
    pub async fn lost_partition<E: Endpoint>(&self, ep: &E, record: &IndexRecord) -> Result<Option<usize>> {
        for partition in 0..record.owners.len() {
            match self.check_owner(ep, record, partition).await {
                Ok(()) | Err(PoolError::PartitionOwned { .. }) => {}
                Err(PoolError::PartitionLost { .. }) => return Ok(Some(partition)),
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Stores a changed record of the index with its name; returns it with its new version.
    ///
    /// # Errors
    /// [`PoolError::StaleRecord`] if the record changed since `record` was read; [`PoolError::UnknownIndex`]
    /// if there is no such index with this id; errors of [`Pool::create_index`].
    pub async fn update_index<E: Endpoint>(&self, ep: &E, record: &IndexRecord) -> Result<IndexRecord> {
        record.check()?;
        self.change_records(ep, async || {
            let found = self.find_unchanged(ep, record).await?;
            self.replace(ep, &found, record.clone()).await
        })
        .await
    }

    /// Makes this process the owner of `partitions` of the index, all or none.
    ///
    /// # Errors
    /// [`PoolError::PartitionOwned`] or [`PoolError::PartitionLost`] with the process that owns one of them;
    /// [`PoolError::InvalidIndex`] if there is no such partition; errors of [`Pool::update_index`].
    pub async fn claim_partitions<E: Endpoint>(
        &self,
        ep: &E,
        name: &str,
        partitions: &[usize],
    ) -> Result<IndexRecord> {
        self.claim_logged(ep, name, partitions, &[]).await
    }

    /// [`Pool::claim_partitions`], and changes logs of these partitions before. Nobody owns a partition without the log
    /// that it is to have.
    ///
    /// # Errors
    /// As [`Pool::claim_partitions`]; then the logs may be changed, if this may have taken effect.
    pub async fn claim_logged<E: Endpoint>(
        &self,
        ep: &E,
        name: &str,
        partitions: &[usize],
        logs: &[(usize, LogChange)],
    ) -> Result<IndexRecord> {
        let claim = Claim { owner: Some(self.writer_slot()?), from_dead: false, logs };
        self.change_owners(ep, name, partitions, claim).await
    }

    /// [`Pool::claim_partitions`], also from owners that died. None of their verbs takes effect any more. The caller
    /// knows how to redo what they had not written back.
    ///
    /// # Errors
    /// As [`Pool::claim_partitions`], without [`PoolError::PartitionLost`].
    pub async fn inherit_partitions<E: Endpoint>(
        &self,
        ep: &E,
        name: &str,
        partitions: &[usize],
    ) -> Result<IndexRecord> {
        let claim = Claim { owner: Some(self.writer_slot()?), from_dead: true, logs: &[] };
        self.change_owners(ep, name, partitions, claim).await
    }

    /// Releases `partitions` of the index, all or none.
    ///
    /// # Errors
    /// As [`Pool::claim_partitions`].
    pub async fn release_partitions<E: Endpoint>(
        &self,
        ep: &E,
        name: &str,
        partitions: &[usize],
    ) -> Result<IndexRecord> {
        let leave: Vec<_> = partitions.iter().map(|&partition| (partition, LogChange::Leave)).collect();
        let release = Claim { owner: None, from_dead: false, logs: &leave };
        self.change_owners(ep, name, partitions, release).await
    }

    async fn change_owners<E: Endpoint>(
        &self,
        ep: &E,
        name: &str,
        partitions: &[usize],
        claim: Claim<'_>,
    ) -> Result<IndexRecord> {
        self.change_records(ep, async || {
            let found = self.find_known(ep, name).await?;
            let mut record = self.load(ep, found.block.clone()).await?;
            for &partition in partitions {
                match self.check_owner(ep, &record, partition).await {
                    Err(PoolError::PartitionLost { .. }) if claim.from_dead => {}
                    checked => checked?,
                }
                record.owners[partition] = claim.owner;
            }
            let logs: Vec<_> =
                claim.logs.iter().map(|&(partition, change)| (record.logs[partition], change)).collect();
            self.change_logs_locked(ep, record.id, &logs).await?;
            self.replace(ep, &found, record).await
        })
        .await
    }

    /// Releases all partitions of all indexes.
    pub(crate) async fn release_all_partitions<E: Endpoint>(&self, ep: &E) -> Result<()> {
        let mine = Some(self.writer_slot()?);
        for record in self.list_indexes(ep).await? {
            let owned = record.owners.iter().enumerate().filter(|&(_, owner)| *owner == mine);
            let owned: Vec<usize> = owned.map(|(partition, _)| partition).collect();
            if !owned.is_empty() {
                self.release_partitions(ep, &record.name, &owned).await?;
            }
        }
        Ok(())
    }

    /// Checks whether [`Pool::claim_partitions`] would find an owner now.
    ///
    /// # Errors
    /// [`PoolError::PartitionOwned`], [`PoolError::PartitionLost`], [`PoolError::InvalidIndex`]; errors of verbs.
    pub async fn check_owners<E: Endpoint>(
        &self,
        ep: &E,
        record: &IndexRecord,
        partitions: &[usize],
    ) -> Result<()> {
        for &partition in partitions {
            self.check_owner(ep, record, partition).await?;
        }
        Ok(())
    }

    /// Fails if another process owns the partition, even a dead one. A process that detached cleanly owns
    /// nothing.
    async fn check_owner<E: Endpoint>(&self, ep: &E, record: &IndexRecord, partition: usize) -> Result<()> {
        let Some(owner) = record.owners.get(partition) else {
            let reason = format!("{:?} has {} partitions, not {partition}", record.name, record.owners.len());
            return Err(PoolError::InvalidIndex { reason });
        };
        let Some(slot) = owner.filter(|&slot| Some(slot) != self.slot()) else { return Ok(()) };
        let name = record.name.clone();
        match self.live_process(ep, slot).await {
            Ok(Some(owner)) => Err(PoolError::PartitionOwned { name, partition, owner }),
            Ok(None) => Ok(()),
            Err(PoolError::NotClosedCleanly { process: owner }) => {
                Err(PoolError::PartitionLost { name, partition, owner })
            }
            Err(error) => Err(error),
        }
    }

    /// Moves the blocks of the catalog that went to `server` because server 0 was full. New blocks are
    /// complete before anything leads to them; old blocks are freed afterwards.
    pub(crate) async fn vacate_catalog<E: Endpoint>(&self, ep: &E, server: MemoryServerId) -> Result<()> {
        self.change_catalog(ep, async || {
            let mut directories = self.directories(ep).await?;
            for at in 0..directories.len() {
                for entry in 0..directories[at].entries.len() {
                    self.vacate_record(ep, &mut directories[at], entry, server).await?;
                }
                if directories[at].at.server() == server {
                    self.vacate_directory(ep, &mut directories, at).await?;
                }
            }
            Ok(())
        })
        .await
    }

    async fn vacate_record<E: Endpoint>(
        &self,
        ep: &E,
        directory: &mut Directory,
        entry: usize,
        server: MemoryServerId,
    ) -> Result<()> {
        let old_at = directory.entries[entry].1;
        let mut block = self.read_record(ep, old_at).await?;
        let old = block.values();
        let mut is_there = old_at.server() == server;
        for value in old.each() {
            self.visit_value_blocks(ep, value, |addr, _| is_there |= addr.server() == server).await?;
        }
        if !is_there {
            return Ok(());
        }
        let (mut at, mut values) = (None, Vec::new());
        let linked = async {
            for value in [old.boundaries, old.owners, old.owners] {
                let mut bytes = Vec::new();
                self.get_value(ep, value, &mut bytes).await?;
                values.push(self.put_value(ep, PLACEMENT, &bytes).await?);
            }
            for &value in &values {
                self.persist_value(ep, value).await?;
            }
            (block.boundaries, block.owners, block.spare) = (values[0], values[1], values[2].addr);
            let new = *at.insert(self.alloc(ep, PLACEMENT, RECORD_BYTES).await?);
            RecordBlock::twin(new, self.id()).write_first(ep, block.version, &block.encode()).await?;
            directory.entries[entry].1 = new;
            self.replace_directory(ep, directory).await
        };
        if let Err(error) = linked.await {
            directory.entries[entry].1 = old_at;
            return self.undo(ep, at, &values, error).await;
        }
        self.free_unlinked(ep, Some(old_at), &old.each()).await;
        Ok(())
    }

    async fn vacate_directory<E: Endpoint>(
        &self,
        ep: &E,
        directories: &mut [Directory],
        at: usize,
    ) -> Result<()> {
        let old = directories[at].at;
        let new = self.alloc(ep, PLACEMENT, DIRECTORY_BYTES).await?;
        let linked = async {
            directories[at].at = new;
            self.write_new_directory(ep, &mut directories[at]).await?;
            match at.checked_sub(1) {
                Some(before) => {
                    directories[before].next = new;
                    self.replace_directory(ep, &mut directories[before]).await
                }
                None => {
                    let mut head = self.read_head(ep).await?;
                    head.first = new;
                    self.replace_head(ep, &mut head).await
                }
            }
        };
        let linked = linked.await;
        match &linked {
            Ok(()) => drop(self.free(ep, old, DIRECTORY_BYTES).await),
            Err(error) if may_be_linked(error) => {}
            Err(_) => drop(self.free(ep, new, DIRECTORY_BYTES).await),
        }
        linked
    }

    /// Calls `visit` with address and size of each block that the catalog itself occupies.
    ///
    /// # Errors
    /// As [`Pool::open_index`].
    pub async fn visit_catalog_blocks<E: Endpoint>(
        &self,
        ep: &E,
        visit: impl FnMut(GlobalAddr, u64),
    ) -> Result<()> {
        let blocks = self.look_at_catalog(ep, async || self.catalog_blocks(ep).await).await?;
        let mut visit = visit;
        blocks.into_iter().for_each(|(addr, size)| visit(addr, size));
        Ok(())
    }

    /// The same, without regard to the lock.
    pub(crate) async fn catalog_blocks<E: Endpoint>(&self, ep: &E) -> Result<Vec<(GlobalAddr, u64)>> {
        let mut blocks = Vec::new();
        for directory in self.directories(ep).await? {
            blocks.push((directory.at, DIRECTORY_BYTES));
            for (_, at) in directory.entries {
                blocks.push((at, RECORD_BYTES));
                let block = self.read_record(ep, at).await?;
                for value in block.values().each() {
                    self.visit_value_blocks(ep, value, |addr, size| blocks.push((addr, size))).await?;
                }
            }
        }
        Ok(blocks)
    }

    /// Clears all owners and unlocks the catalog, for a repair.
    pub(crate) async fn reset_catalog<E: Endpoint>(&self, ep: &E) -> Result<()> {
        for directory in self.directories(ep).await? {
            for (_, at) in directory.entries {
                let mut block = self.read_record(ep, at).await?;
                let record = self.load(ep, block.clone()).await?;
                let no_owners = encode_owners(&vec![None; record.owners.len()], &record.logs);
                self.exchange_owners(ep, &mut block, &no_owners).await?;
                block.version += 1;
                self.replace_block(ep, at, &block).await?;
            }
        }
        let word = ep.read_word(self.catalog_lock()).await?;
        Ok(ep.write_word(self.catalog_lock(), lock::unlock_word(word.wrapping_add(1))).await?)
    }

    /// Allocates and writes the parts of a new record and links it; frees them if that fails.
    async fn enter<E: Endpoint>(&self, ep: &E, record: &IndexRecord) -> Result<()> {
        let (mut at, mut values) = (None, Vec::new());
        let entered = async {
            let values = self.put_partitions(ep, record, &mut values).await?;
            let at = *at.insert(self.alloc(ep, PLACEMENT, RECORD_BYTES).await?);
            let block = RecordBlock::new(record, values);
            RecordBlock::twin(at, self.id()).write_first(ep, block.version, &block.encode()).await?;
            self.link(ep, hash_of(&block.name), at).await
        };
        match entered.await {
            Ok(()) => Ok(()),
            Err(error) => self.undo(ep, at, &values, error).await,
        }
    }

    /// Stores the partitions of `record`. Every value allocated is in `stored`, even after an error.
    async fn put_partitions<E: Endpoint>(
        &self,
        ep: &E,
        record: &IndexRecord,
        stored: &mut Vec<ValueRef>,
    ) -> Result<RecordValues> {
        let boundaries = encode_boundaries(&record.boundaries);
        let owners = encode_owners(&record.owners, &record.logs);
        for bytes in [&boundaries, &owners, &owners] {
            stored.push(self.put_value(ep, PLACEMENT, bytes).await?);
        }
        for &value in &*stored {
            self.persist_value(ep, value).await?;
        }
        Ok(RecordValues { boundaries: stored[0], owners: stored[1], spare: stored[2].addr })
    }

    /// Frees blocks that the catalog no longer leads to. The change is complete, so errors are ignored: a
    /// block that cannot be freed stays allocated until the allocation is rebuilt.
    async fn free_unlinked<E: Endpoint>(&self, ep: &E, record: Option<GlobalAddr>, values: &[ValueRef]) {
        if let Some(at) = record {
            let _ = self.free(ep, at, RECORD_BYTES).await;
        }
        for &value in values {
            let _ = self.free_value(ep, value).await;
        }
    }

    /// Frees the blocks allocated by a change that failed with `error`, unless the catalog may lead to them.
    async fn undo<E: Endpoint>(
        &self,
        ep: &E,
        record: Option<GlobalAddr>,
        values: &[ValueRef],
        error: PoolError,
    ) -> Result<()> {
        if !may_be_linked(&error) {
            // The caller needs the error of the change, so errors of freeing are ignored.
            self.free_unlinked(ep, record, values).await;
        }
        Err(error)
    }

    /// Links a record from the first directory with room, or else from a new one.
    async fn link<E: Endpoint>(&self, ep: &E, hash: u64, record: GlobalAddr) -> Result<()> {
        let mut directories = self.directories(ep).await?;
        if let Some(directory) = directories.iter_mut().find(|directory| directory.entries.len() < ENTRIES) {
            directory.entries.push((hash, record));
            return self.replace_directory(ep, directory).await;
        }
        let mut head = self.read_head(ep).await?;
        let at = self.alloc(ep, PLACEMENT, DIRECTORY_BYTES).await?;
        let linked = async {
            self.write_new_directory(ep, &mut Directory::new(at, head.first, vec![(hash, record)])).await?;
            head.first = at;
            self.replace_head(ep, &mut head).await
        };
        let linked = linked.await;
        if let Err(error) = &linked
            && !may_be_linked(error)
        {
            let _ = self.free(ep, at, DIRECTORY_BYTES).await;
        }
        linked
    }

    /// Replaces the record that was found. New values are complete before, old ones are freed after.
    async fn replace<E: Endpoint>(
        &self,
        ep: &E,
        found: &Found,
        mut record: IndexRecord,
    ) -> Result<IndexRecord> {
        let old = &found.block;
        record.version = old.version + 1;
        let before = self.load(ep, old.clone()).await?;
        let mut new = Vec::new();
        let replaced = async {
            let mut block = RecordBlock::new(&record, old.values());
            if before.boundaries == record.boundaries && before.logs == record.logs {
                let owners = encode_owners(&record.owners, &record.logs);
                self.exchange_owners(ep, &mut block, &owners).await?;
            } else {
                let values = self.put_partitions(ep, &record, &mut new).await?;
                block = RecordBlock::new(&record, values);
            }
            self.replace_block(ep, found.at, &block).await
        };
        if let Err(error) = replaced.await {
            self.undo(ep, None, &new, error).await?;
        }
        if !new.is_empty() {
            self.free_unlinked(ep, None, &old.values().each()).await;
        }
        Ok(record)
    }

    /// Writes new owners, as many as before, to the spare of `block`, and exchanges spare and owners.
    async fn exchange_owners<E: Endpoint>(
        &self,
        ep: &E,
        block: &mut RecordBlock,
        owners: &[u8],
    ) -> Result<()> {
        let spare = block.values().spare();
        let overwritten = async || self.overwrite_value(ep, spare, owners).await;
        let new = until_answered(ep, self.deadline(ep), overwritten).await?;
        self.persist_value(ep, new).await?;
        (block.spare, block.owners) = (block.owners.addr, new);
        Ok(())
    }

    /// Persists a value before a record leads to it.
    async fn persist_value<E: Endpoint>(&self, ep: &E, value: ValueRef) -> Result<()> {
        let (mut blocks, deadline) = (Vec::new(), self.deadline(ep));
        self.visit_value_blocks(ep, value, |addr, len| blocks.push((addr, len))).await?;
        for (addr, len) in blocks {
            persist(ep, addr, len, deadline).await?;
        }
        Ok(())
    }

    /// Replaces the previous version of `block`.
    async fn replace_block<E: Endpoint>(&self, ep: &E, at: GlobalAddr, block: &RecordBlock) -> Result<()> {
        let twin = RecordBlock::twin(at, self.id());
        twin.replace(ep, block.version - 1, &block.encode(), self.deadline(ep)).await
    }

    async fn find_known<E: Endpoint>(&self, ep: &E, name: &str) -> Result<Found> {
        self.find(ep, name).await?.ok_or_else(|| PoolError::UnknownIndex { name: name.to_owned() })
    }

    async fn find<E: Endpoint>(&self, ep: &E, name: &str) -> Result<Option<Found>> {
        let hash = hash_of(name);
        for directory in self.directories(ep).await? {
            for entry in 0..directory.entries.len() {
                let (of, at) = directory.entries[entry];
                if of != hash {
                    continue;
                }
                let block = self.read_record(ep, at).await?;
                if block.name == name {
                    return Ok(Some(Found { directory, entry, at, block }));
                }
            }
        }
        Ok(None)
    }

    async fn read_record<E: Endpoint>(&self, ep: &E, at: GlobalAddr) -> Result<RecordBlock> {
        let twin = RecordBlock::twin(at, self.id());
        if !self.can_be_block(at, RECORD_BYTES) {
            return Err(twin.corrupt("no record of an index can lie there"));
        }
        let read = twin.read(ep).await?.filter(|&(version, _)| version > 0);
        read.and_then(|(version, words)| RecordBlock::decode(version, &words))
            .ok_or_else(|| twin.corrupt("this is no record of an index"))
    }

    /// Reads a record's partitions.
    async fn load<E: Endpoint>(&self, ep: &E, block: RecordBlock) -> Result<IndexRecord> {
        let (mut boundaries, mut owners) = (Vec::new(), Vec::new());
        let corrupt = |addr| PoolError::Corrupt { addr, reason: "these are no partitions of an index" };
        let damaged = |error| match error {
            PoolError::ValueChanged { addr } => corrupt(addr),
            other => other,
        };
        self.get_value(ep, block.boundaries, &mut boundaries).await.map_err(damaged)?;
        self.get_value(ep, block.owners, &mut owners).await.map_err(damaged)?;
        let at = block.owners.addr;
        block.with_partitions(&boundaries, &owners).ok_or_else(|| corrupt(at))
    }

    /// Runs `look` until the catalog did not change during it.
    pub(crate) async fn look_at_catalog<E: Endpoint, T>(
        &self,
        ep: &E,
        look: impl AsyncFn() -> Result<T>,
    ) -> Result<T> {
        let (at, deadline) = (self.catalog_lock(), self.deadline(ep));
        let mut next_look = self.next_look(ep, deadline);
        loop {
            let before = ep.read_word(at).await?;
            let holder = lock_owner(before);
            if holder.is_none() {
                let seen = look().await;
                if ep.read_word(at).await? == before {
                    return seen;
                }
            }
            let is_time = ep.now() >= next_look;
            let asks = match self.mode() {
                AttachMode::ReadOnlyUnclean | AttachMode::Repair => true,
                // The check takes time, and the holder is usually alive.
                AttachMode::ReadOnly => is_time,
                AttachMode::ReadWrite => false,
            };
            if let (Some(holder), true) = (holder, asks)
                // A repair is alone. It may have got the attach slot of the holder.
                && (self.mode() == AttachMode::Repair || self.is_abandoned(ep, holder).await?)
            {
                // The holder died during a change. Until another process takes the lock over, checksums tell
                // what can be read.
                let seen = look().await;
                if ep.read_word(at).await? == before {
                    return seen;
                }
            }
            if is_time {
                match holder {
                    Some(holder) => {
                        // A reader has asked already, and may not mind that the holder died.
                        let taken = if asks { None } else { self.take_over_catalog(ep, holder).await? };
                        if let Some(locked) = taken {
                            locked.unlock(ep, deadline).await?;
                        } else if ep.now() >= deadline {
                            return Err(PoolError::LockTimedOut { at, holder });
                        }
                    }
                    None if ep.now() >= deadline => return Err(PoolError::CatalogBusy),
                    None => {}
                }
                next_look = self.next_look(ep, deadline);
            }
            ep.yield_now().await;
        }
    }

    /// Runs `change` under the catalog lock.
    pub(crate) async fn change_catalog<E: Endpoint, T>(
        &self,
        ep: &E,
        mut change: impl AsyncFnMut() -> Result<T>,
    ) -> Result<T> {
        // What no log has, and the catalog is about to lead to.
        self.store_bitmaps(ep).await?;
        let locked = self.lock_catalog(ep).await?;
        // If the future is dropped, verbs of the change may still be in flight, so the lock must stay taken.
        let changed = locked.while_changing(change()).await;
        // The change is complete. A lock that cannot be given back now is left, to be given back later.
        let _ = locked.unlock(ep, self.deadline(ep)).await;
        changed
    }

    /// The same for a change of records, whose errors distinguish "not done" from "not known".
    async fn change_records<E: Endpoint, T>(
        &self,
        ep: &E,
        change: impl AsyncFnMut() -> Result<T>,
    ) -> Result<T> {
        self.change_catalog(ep, change).await.map_err(|error| match error {
            // A change takes effect only by its last verb.
            PoolError::Fabric(_) => unchanged(error),
            other => other,
        })
    }

    /// Time at which a waiter for the catalog lock checks its holder.
    fn next_look<E: Endpoint>(&self, ep: &E, deadline: Nanos) -> Nanos {
        ep.now().saturating_add(self.inner.wait_ns_max / LOOKS_AT_HOLDER).min(deadline)
    }

    /// Takes the catalog lock; checks now and then whether its holder is alive.
    async fn lock_catalog<E: Endpoint>(&self, ep: &E) -> Result<RemoteLock<'_>> {
        // Give back left locks that are due. The others rest first, and the time counts from the end of that.
        self.give_back_left_locks(ep).await?;
        let mut deadline = self.deadline(ep);
        loop {
            match self.lock(ep, self.catalog_lock(), self.next_look(ep, deadline)).await {
                Err(PoolError::LockTimedOut { at, holder }) => {
                    if let Some(locked) = self.take_over_catalog(ep, holder).await? {
                        return Ok(locked);
                    }
                    let now = ep.now();
                    if now < deadline {
                        continue;
                    }
                    let from_rest = self.left_locks_rest_until(now).saturating_add(self.inner.wait_ns_max);
                    if from_rest <= now || ep.is_over(now) {
                        return Err(PoolError::LockTimedOut { at, holder });
                    }
                    deadline = ep.wait_until(now, from_rest - now);
                }
                done => return done,
            }
        }
    }

    /// Takes over the catalog lock if `holder` is gone, or gives it back if this process left it. Each change
    /// of the catalog takes effect by the WRITE of one word, so an interrupted change is either done or not;
    /// the blocks that it allocated are lost.
    async fn take_over_catalog<E: Endpoint>(
        &self,
        ep: &E,
        holder: AttachSlot,
    ) -> Result<Option<RemoteLock<'_>>> {
        if self.mode() != AttachMode::ReadWrite {
            return self.live_process(ep, holder).await.map(|_| None);
        }
        self.give_back_left_locks(ep).await?;
        match self.is_abandoned(ep, holder).await? {
            true => self.take_over(ep, self.catalog_lock(), holder).await,
            false => Ok(None),
        }
    }
}

/// Whether the catalog may lead to the blocks of a change that failed with `error`.
fn may_be_linked(error: &PoolError) -> bool {
    matches!(error, PoolError::CatalogUnknown { .. }) && !defect(Defect::FreeLinked)
}

/// The error of a change that failed before the verb by which it takes effect.
fn unchanged(error: PoolError) -> PoolError {
    match error {
        PoolError::Fabric(error) if !error.may_have_taken_effect() => error.into(),
        PoolError::Fabric(error) | PoolError::CatalogUnknown { error } => {
            PoolError::CatalogUnchanged { error }
        }
        other => other,
    }
}

fn hash_of(name: &str) -> u64 {
    xxhash_rust::xxh3::xxh3_64(name.as_bytes())
}
