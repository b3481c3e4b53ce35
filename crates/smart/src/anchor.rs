//! The anchor: the block of an index at a fixed address, from which everything else is found.
//!
//! ```text
//!  word 0   "PANDOSMA"
//!       1   techniques and other properties on which all compute servers must agree
//!       2   [locks of a table:32][tables:16][places for users:16]
//!       3   tag of the index
//!       4   checksum of the four words above and of the addresses of the tables
//!       5   lock of the root slot, for nodes that are changed under locks
//!       6   root slot
//!       7   epoch
//!       8   addresses of the tables of locks, one on each memory server
//!       ... places of the compute servers that use the index (`epoch.rs`)
//! ```
//! The root slot is a slot like any other, to which no byte leads (SMART §4.1). The fields covered by the
//! checksum never change: they record how the index was created, and a compute server with other settings is
//! refused.

use pando_fabric::{Endpoint, GlobalAddr, MemoryServerId};
use pando_pool::{Placement, Pool};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::error::{Result, SmartError};
use crate::layout::slot::{OFFSET_END, SERVERS_END};
use crate::options::{CreateOptions, NodeRoom, Techniques};

const MAGIC: u64 = u64::from_le_bytes(*b"PANDOSMA");
const VERSION: u64 = 1;
const CHECKSUM: usize = 4;
const ROOT_LOCK: usize = 5;
const ROOT: usize = 6;
const EPOCH: usize = 7;
const TABLES: usize = 8;

/// The constant part of the anchor.
#[derive(Clone, Debug)]
pub(crate) struct Anchor {
    pub addr: GlobalAddr,
    pub tag: u32,
    pub techniques: Techniques,
    pub node_room: NodeRoom,
    pub users_max: usize,
    pub table_locks: usize,
    pub tables: Vec<GlobalAddr>,
}

impl Anchor {
    fn word(&self, at: usize) -> GlobalAddr {
        self.addr.add(at as u64 * 8)
    }

    /// Stands for the node of the root slot: its first word is a lock.
    pub fn root_node(&self) -> GlobalAddr {
        self.word(ROOT_LOCK)
    }

    pub fn root(&self) -> GlobalAddr {
        self.word(ROOT)
    }

    pub fn epoch(&self) -> GlobalAddr {
        self.word(EPOCH)
    }

    pub fn place(&self, number: usize) -> GlobalAddr {
        self.word(TABLES + self.tables.len() + number)
    }

    pub fn bytes(&self) -> u64 {
        ((TABLES + self.tables.len() + self.users_max) * 8) as u64
    }

    /// Size of each lock table in bytes.
    pub fn table_bytes(&self) -> u64 {
        self.table_locks as u64 * 8
    }

    fn flags(&self) -> u64 {
        let Techniques { lock_free_nodes, in_place_leaves, rear_locks, .. } = self.techniques;
        let bits = [lock_free_nodes, in_place_leaves, rear_locks, self.node_room == NodeRoom::Exact];
        let bits = bits.iter().rev().fold(0, |bits, &bit| bits << 1 | u64::from(bit));
        VERSION << 32 | bits
    }

    fn words(&self) -> Vec<u64> {
        let counts =
            (self.table_locks as u64) << 32 | (self.tables.len() as u64) << 16 | self.users_max as u64;
        let mut words = vec![MAGIC, self.flags(), counts, u64::from(self.tag), 0, 0, 0, 0];
        words.extend(self.tables.iter().map(|table| table.raw()));
        words[CHECKSUM] = self.checksum(&words);
        words.extend(std::iter::repeat_n(0, self.users_max));
        words
    }

    fn checksum(&self, words: &[u64]) -> u64 {
        let said = words[..CHECKSUM].iter().chain(&words[TABLES..TABLES + self.tables.len()]);
        let bytes: Vec<u8> = said.flat_map(|word| word.to_le_bytes()).collect();
        xxh3_64_with_seed(&bytes, self.addr.raw())
    }

    /// Allocates and writes an empty index.
    pub async fn create<E: Endpoint>(ep: &E, pool: &Pool, options: &CreateOptions) -> Result<Self> {
        let &CreateOptions { techniques, node_room, index_id, users_max, table_locks } = options;
        let most = pool.max_block() / 8;
        if users_max == 0 || (TABLES + pool.servers() + users_max) as u64 > most {
            return Err(SmartError::Options(
                "the number of users must be between 1 and the number that fits into a block",
            ));
        }
        if !(1..=most).contains(&(table_locks as u64)) {
            return Err(SmartError::Options(
                "the number of locks in a table must be between 1 and the number that fits into a block",
            ));
        }
        check_reach(ep)?;
        let node_room = if techniques.lock_free_nodes { node_room } else { NodeRoom::Exact };
        let mut anchor = Self {
            addr: GlobalAddr::NULL,
            tag: index_id & 0xff_ffff,
            techniques,
            node_room,
            users_max,
            table_locks,
            tables: Vec::new(),
        };
        let made = anchor.make(ep, pool).await;
        if made.is_err() {
            anchor.free(ep, pool).await?;
        }
        made.map(|()| anchor)
    }

    async fn make<E: Endpoint>(&mut self, ep: &E, pool: &Pool) -> Result<()> {
        if self.techniques.has_lock_table() {
            for (server, _) in pool.loads() {
                let table = pool.alloc(ep, Placement::Server(server), self.table_bytes()).await?;
                self.tables.push(table);
                write(ep, table, &vec![0; self.table_locks]).await?;
            }
        }
        self.addr = pool.alloc(ep, Placement::Prefer(MemoryServerId(0)), self.bytes()).await?;
        write(ep, self.addr, &self.words()).await
    }

    /// Frees the blocks of the anchor and the lock tables.
    pub async fn free<E: Endpoint>(&self, ep: &E, pool: &Pool) -> Result<()> {
        for (addr, bytes) in self.blocks() {
            pool.free(ep, addr, bytes).await?;
        }
        Ok(())
    }

    pub fn blocks(&self) -> impl Iterator<Item = (GlobalAddr, u64)> + '_ {
        let tables = self.tables.iter().map(|&table| (table, self.table_bytes()));
        tables.chain((!self.addr.is_null()).then(|| (self.addr, self.bytes())))
    }

    /// READs the anchor of an index that is to be used with these techniques.
    pub async fn open<E: Endpoint>(ep: &E, addr: GlobalAddr, techniques: Techniques) -> Result<Self> {
        check_reach(ep)?;
        let refused = |reason| Err(SmartError::Anchor { addr, reason });
        let head = read(ep, addr, TABLES).await?;
        if head[0] != MAGIC {
            return refused("there is no such index");
        }
        if head[1] >> 32 != VERSION {
            return refused("it was made by another version of this program");
        }
        let tables = (head[2] >> 16 & 0xffff) as usize;
        let words = read(ep, addr, TABLES + tables).await?;
        let tables: Option<Vec<_>> = words[TABLES..].iter().map(|&raw| GlobalAddr::from_raw(raw)).collect();
        let anchor = Self {
            addr,
            tag: head[3] as u32,
            techniques: Techniques {
                lock_free_nodes: head[1] & 1 != 0,
                in_place_leaves: head[1] & 2 != 0,
                rear_locks: head[1] & 4 != 0,
                ..techniques
            },
            node_room: if head[1] & 8 != 0 { NodeRoom::Exact } else { NodeRoom::Full },
            users_max: (head[2] & 0xffff) as usize,
            table_locks: (head[2] >> 32) as usize,
            tables: tables.unwrap_or_default(),
        };
        if words.len() != TABLES + anchor.tables.len() || words[CHECKSUM] != anchor.checksum(&words) {
            return refused("its first block is corrupt");
        }
        if anchor.techniques != techniques {
            return refused("it was made for other techniques");
        }
        Ok(anchor)
    }
}

/// Checks that slots have enough bits for all memory servers and their regions.
fn check_reach<E: Endpoint>(ep: &E) -> Result<()> {
    for region in ep.regions() {
        let reason = match () {
            () if region.server.0 >= SERVERS_END => "they can name 1,024 memory servers",
            () if region.len > OFFSET_END => "they reach 1 TiB of each memory server",
            () => continue,
        };
        return Err(SmartError::TooFar { server: region.server.0, reason });
    }
    Ok(())
}

async fn read<E: Endpoint>(ep: &E, at: GlobalAddr, words: usize) -> Result<Vec<u64>> {
    let page = ep.read(at, ep.buffer(words * 8)).await?;
    let found = (0..words).map(|word| page.get(word)).collect();
    ep.recycle(page);
    Ok(found)
}

async fn write<E: Endpoint>(ep: &E, at: GlobalAddr, words: &[u64]) -> Result<()> {
    let page = ep.buffer(words.len() * 8);
    words.iter().enumerate().for_each(|(word, &value)| page.set(word, value));
    ep.recycle(ep.write(at, page).await?);
    Ok(())
}
