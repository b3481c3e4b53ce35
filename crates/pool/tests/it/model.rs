//! Random operations of two processes on a small pool, against a model of what is allocated.

use std::collections::BTreeMap;

use crate::support::{Ep, Host, Memory, block_on};
use pando_fabric::{GlobalAddr, MemoryServerId};
use pando_pool::{Placement, Pool, PoolError, PoolOptions, ValueRef};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Alloc { process: usize, size: u64, placement: Placement, count: usize },
    AllocRun { process: usize, size: u64, want: u32, take: usize },
    Free { process: usize, picks: Vec<prop::sample::Index> },
    FreeAgain { process: usize, pick: prop::sample::Index },
    Put { process: usize, len: usize },
    Drop { process: usize, pick: prop::sample::Index },
    Reattach { process: usize },
    Check { process: usize },
}

fn placement() -> impl Strategy<Value = Placement> {
    prop_oneof![
        (0..2_u16).prop_map(|server| Placement::Server(MemoryServerId(server))),
        (0..2_u16).prop_map(|server| Placement::Prefer(MemoryServerId(server))),
        Just(Placement::LeastLoaded),
    ]
}

fn size() -> impl Strategy<Value = u64> {
    prop_oneof![1..200_u64, Just(512), Just(1024), Just(8192), 1..16_384_u64]
}

fn op() -> impl Strategy<Value = Op> {
    let process = 0..2_usize;
    prop_oneof![
        6 => (process.clone(), size(), placement(), 1..200_usize)
            .prop_map(|(process, size, placement, count)| Op::Alloc { process, size, placement, count }),
        2 => (process.clone(), size(), 1..500_u32, 0..400_usize)
            .prop_map(|(process, size, want, take)| Op::AllocRun { process, size, want, take }),
        6 => (process.clone(), prop::collection::vec(any::<prop::sample::Index>(), 1..200))
            .prop_map(|(process, picks)| Op::Free { process, picks }),
        1 => (process.clone(), any::<prop::sample::Index>())
            .prop_map(|(process, pick)| Op::FreeAgain { process, pick }),
        2 => (process.clone(), 0..200_000_usize).prop_map(|(process, len)| Op::Put { process, len }),
        2 => (process.clone(), any::<prop::sample::Index>()).prop_map(|(process, pick)| Op::Drop { process, pick }),
        2 => process.clone().prop_map(|process| Op::Reattach { process }),
        2 => process.prop_map(|process| Op::Check { process }),
    ]
}

struct Run {
    ep: Ep,
    host: Host,
    pools: [Pool; 2],
    blocks: BTreeMap<GlobalAddr, u64>,
    values: Vec<(ValueRef, u8)>,
}

/// Size of the size class in bytes, as documented: four classes per doubling.
fn rounded(size: u64) -> u64 {
    let mut class = 64;
    while class < size {
        class += (1 << (class.ilog2() - 2)).max(16);
    }
    class
}

impl Run {
    fn new() -> Self {
        let ep = Memory::new(&[1 << 20, 1 << 20]).endpoint(3);
        let host = Host::new();
        let first = block_on(Pool::create(&ep, PoolOptions::new(host.options(1)))).expect("create");
        let second = block_on(Pool::attach(&ep, host.options(2))).expect("attach");
        Self { ep, host, pools: [first, second], blocks: BTreeMap::new(), values: Vec::new() }
    }

    fn add(&mut self, addr: GlobalAddr, size: u64) {
        let size = rounded(size);
        let before = self.blocks.range(..=addr).next_back().map(|(at, size)| at.raw() + size);
        let after = self.blocks.range(addr..).next().map(|(at, _)| at.raw());
        assert!(before.is_none_or(|end| end <= addr.raw()), "{addr} lies in the block before");
        assert!(after.is_none_or(|start| addr.raw() + size <= start), "{addr} runs into the block behind");
        assert!(!size.is_power_of_two() || addr.offset().is_multiple_of(size), "{addr} is not aligned");
        self.blocks.insert(addr, size);
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Alloc { process, size, placement, count } => {
                for _ in 0..count {
                    match block_on(self.pools[process].alloc(&self.ep, placement, size)) {
                        Ok(addr) => self.add(addr, size),
                        Err(error) => return assert!(error.is_full(), "{error}"),
                    }
                }
            }
            Op::AllocRun { process, size, want, take } => {
                let run = self.pools[process].lease_run(&self.ep, MemoryServerId(0), size, want);
                match block_on(run) {
                    Ok(mut run) => {
                        let taken: Vec<_> = run.by_ref().take(take).collect();
                        taken.into_iter().for_each(|addr| self.add(addr, size));
                        block_on(self.pools[process].return_run(&self.ep, run)).expect("allocated");
                    }
                    Err(error) => assert!(error.is_full(), "{error}"),
                }
            }
            Op::Free { process, picks } => {
                for pick in picks {
                    let Some((addr, size)) = self.pick(pick) else { return };
                    self.blocks.remove(&addr);
                    block_on(self.pools[process].free(&self.ep, addr, size)).expect("allocated");
                }
            }
            Op::FreeAgain { process, pick } => self.free_again(process, pick),
            Op::Put { process, len } => self.put(process, len),
            Op::Drop { process, pick } => self.drop_value(process, pick),
            Op::Reattach { process } => {
                block_on(self.pools[process].detach(&self.ep)).expect("detach");
                let options = self.host.options(process as u32 + 1);
                self.pools[process] = block_on(Pool::attach(&self.ep, options)).expect("attach");
            }
            Op::Check { process } => self.check(process),
        }
    }

    /// A block that is not part of a value.
    fn pick(&self, pick: prop::sample::Index) -> Option<(GlobalAddr, u64)> {
        let of_values = self.value_blocks();
        let free = self.blocks.iter().filter(|(addr, _)| !of_values.contains_key(addr));
        let free: Vec<_> = free.map(|(&addr, &size)| (addr, size)).collect();
        (!free.is_empty()).then(|| *pick.get(&free))
    }

    fn value_blocks(&self) -> BTreeMap<GlobalAddr, u64> {
        let mut blocks = BTreeMap::new();
        for &(value, _) in &self.values {
            let visit = |addr, size| assert!(blocks.insert(addr, size).is_none());
            block_on(self.pools[0].visit_value_blocks(&self.ep, value, visit)).expect("unchanged");
        }
        blocks
    }

    /// The process that freed first sees the second free at once if it leases the chunk or if the chunk is
    /// unleased.
    fn free_again(&mut self, process: usize, pick: prop::sample::Index) {
        let Some((addr, size)) = self.pick(pick) else { return };
        let pool = &self.pools[process];
        if pool.try_free_local(addr, size) {
            self.blocks.remove(&addr);
            let again = block_on(pool.free(&self.ep, addr, size));
            assert!(matches!(again, Err(PoolError::DoubleFree { addr: named }) if named == addr));
        }
    }

    fn put(&mut self, process: usize, len: usize) {
        let fill = self.values.len() as u8;
        match block_on(self.pools[process].put_value(&self.ep, Placement::LeastLoaded, &vec![fill; len])) {
            Ok(value) => {
                let mut blocks = Vec::new();
                let visit = |addr, size| blocks.push((addr, size));
                block_on(self.pools[process].visit_value_blocks(&self.ep, value, visit)).expect("unchanged");
                blocks.into_iter().for_each(|(addr, size)| self.add(addr, size));
                self.values.push((value, fill));
            }
            Err(error) => assert!(error.is_full(), "{error}"),
        }
    }

    fn drop_value(&mut self, process: usize, pick: prop::sample::Index) {
        if self.values.is_empty() {
            return;
        }
        let (value, fill) = self.values.swap_remove(pick.index(self.values.len()));
        let (pool, mut out) = (&self.pools[process], Vec::new());
        block_on(pool.get_value(&self.ep, value, &mut out)).expect("unchanged");
        assert!(out.len() as u64 == value.len && out.iter().all(|&byte| byte == fill));
        let visit = |addr, _| assert!(self.blocks.remove(&addr).is_some());
        block_on(pool.visit_value_blocks(&self.ep, value, visit)).expect("unchanged");
        block_on(pool.free_value(&self.ep, value)).expect("allocated");
    }

    fn check(&self, process: usize) {
        block_on(self.pools[1 - process].publish_bitmaps(&self.ep)).expect("publish");
        let mut seen = BTreeMap::new();
        let visit = |addr, size| assert!(seen.insert(addr, size).is_none());
        block_on(self.pools[process].visit_allocated(&self.ep, visit)).expect("visit");
        assert_eq!(seen, self.blocks);
    }

    fn finish(self) {
        self.check(0);
        for pool in &self.pools {
            block_on(pool.detach(&self.ep)).expect("detach");
            assert_eq!(pool.stray_frees().0, 0);
        }
        let pool = block_on(Pool::attach(&self.ep, self.host.options(3))).expect("attach");
        let bytes = |pool: &Pool| -> (u64, u64) {
            let usage = block_on(pool.usage(&self.ep)).expect("usage");
            (usage.iter().map(|u| u.bytes_allocated).sum(), usage.iter().map(|u| u.bytes_in_chunks).sum())
        };
        assert_eq!(bytes(&pool).0, self.blocks.values().sum());
        for (&addr, &size) in &self.blocks {
            block_on(pool.free(&self.ep, addr, size)).expect("allocated");
        }
        block_on(pool.detach(&self.ep)).expect("detach");
        let pool = block_on(Pool::attach(&self.ep, self.host.options(4))).expect("attach");
        assert_eq!(bytes(&pool), (0, 0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn blocks_never_overlap_and_all_are_accounted_for(ops in prop::collection::vec(op(), 1..60)) {
        let mut run = Run::new();
        for op in ops {
            run.apply(op);
        }
        run.finish();
    }
}
