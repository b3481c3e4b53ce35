//! The log of a compute server: what it changed, so that nothing that was answered or read is lost when it is
//! killed (`docs/durability.md`).
//!
//! A [`Log`] has several lanes, rings of blocks in the memory pool. Workers append records to lanes under the
//! latches of the pages that they change, and answer once everything that they have seen is in the log (group
//! commit). [`Contents`] is what is found after a crash, [`plan`] what must be done to each page then. The log
//! knows pages by their addresses only; what their bytes mean is for the index to say.
//!
//! ```
//! use pando_fabric::{Fabric, GlobalAddr, MemoryServerId};
//! use pando_fabric_local::{LocalConfig, LocalFabric};
//! use pando_log::{Blocks, Change, Contents, Entry, Log, Options, Record, Shape, Space};
//! use pando_rt::block_on;
//!
//! let fabric = LocalFabric::new(LocalConfig { server_sizes: vec![1 << 16], huge_pages: false })?;
//! let ep = &fabric.endpoint(1)?;
//! let mut next = 0;
//! let alloc = async |_bytes| {
//!     next += 4096;
//!     Ok::<_, std::convert::Infallible>(GlobalAddr::new(MemoryServerId(0), next))
//! };
//! let blocks = block_on(ep, Blocks::gather(Shape { lanes: 1, segments: 2, segment_bytes: 4096 }, alloc))?;
//! let space = block_on(ep, Log::create(ep, 7, blocks))?;
//! let root = space.root();
//!
//! let log = block_on(ep, async { Log::resume(ep, Contents::read(ep, space).await?, Options::default()).await })?;
//! let put = Record::Entry(Entry { page: GlobalAddr::new(MemoryServerId(0), 9 << 12), key: b"oak", change: Change::Put(b"Quercus") });
//! let gsn = log.append(log.try_reserve(0, put.stored_len()).expect("an empty log has room"), &put);
//! block_on(ep, log.durable(ep, 0, gsn))?;
//! drop(log); // a crash
//!
//! let contents = block_on(ep, async { Contents::read(ep, Space::read(ep, root).await?).await })?;
//! let found = contents.records().collect::<Result<Vec<_>, _>>()?;
//! assert_eq!(found, [(gsn, put)]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod batch;
mod commit;
pub mod defect;
mod disk;
mod error;
mod log;
mod moving;
mod plan;
mod reader;
mod record;
mod rewrite;
mod space;
mod sync;
mod tap;

pub use commit::{Appending, Reservation, Share};
pub use disk::{Persistence, persist_all};
pub use error::{LogError, Result};
pub use log::{Checkpoint, Hold, Lease, Log, Options};
pub use moving::Entered;
pub use plan::{PagePlan, plan};
pub use reader::{Contents, Report};
pub use record::{Change, Entry, Image, Record, Span};
pub use rewrite::Rewrite;
pub use space::{Blocks, Shape, Space};
pub use tap::Sink;
