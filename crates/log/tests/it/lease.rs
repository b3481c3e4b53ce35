//! Operations answer only while the lease of their process is held.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use pando_fabric::Fabric;
use pando_log::{Contents, Lease, Log, LogError, Options};
use pando_rt::block_on;

use crate::faulty::{blocks, fabric};

const STATES: [Lease; 3] = [Lease::Held, Lease::Late, Lease::Lost];

#[test]
fn nothing_is_answered_without_the_lease() {
    let fabric = fabric();
    let ep = &fabric.endpoint(1).expect("an endpoint");
    let space = block_on(ep, Log::create(ep, 7, blocks(ep, 1, 4, 4096))).expect("a log");
    let options = Options { patience_ns: 20_000_000, ..Options::default() };
    let opened = async { Log::resume(ep, Contents::read(ep, space).await?, options).await };
    let log = block_on(ep, opened).expect("it opens");
    assert!(log.is_durable(0), "it has no lease");
    let state = Arc::new(AtomicU64::new(0));
    let told = Arc::clone(&state);
    // A lease that is late is held again when it is asked for the tenth time.
    let asked = AtomicU64::new(0);
    log.lend(Box::new(move || match STATES[told.load(SeqCst) as usize] {
        Lease::Late if asked.fetch_add(1, SeqCst) == 10 => {
            told.store(0, SeqCst);
            Lease::Held
        }
        state => state,
    }));
    let answer = || block_on(ep, log.durable(ep, 0, 0));
    assert!(log.is_durable(0) && answer().is_ok());
    state.store(1, SeqCst);
    assert!(!log.is_durable(0));
    answer().expect("it is renewed");
    assert_eq!(state.load(SeqCst), 0);
    // It is not renewed again.
    state.store(1, SeqCst);
    assert!(matches!(answer(), Err(LogError::Expired)));
    state.store(2, SeqCst);
    assert!(matches!(answer(), Err(LogError::Expired)) && !log.is_durable(0));
}
