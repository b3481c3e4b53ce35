//! An endpoint of whichever fabric, as one type.
//!
//! All that is generic over endpoints is compiled for each type of endpoint that it is used with. Where that takes longer than it
//! is worth, as in tests that use several fabrics and doubles of them, this type stands for all of them: each verb is a call
//! through a table, and its future a box.

use std::any::{Any, type_name};
use std::future::Future;
use std::pin::Pin;

use crate::{
    Chain, Endpoint, EndpointState, GlobalAddr, MemoryServerId, Nanos, PageBuf, RegionInfo, Result,
    TimeLimit, VerbResult, Work,
};

/// An endpoint whose type is known when the program runs.
pub struct DynEndpoint(Box<dyn Object>);

impl DynEndpoint {
    pub fn new(endpoint: impl Endpoint + 'static) -> Self {
        Self(Box::new(endpoint))
    }

    /// The endpoint itself, for what only its type can do.
    ///
    /// # Panics
    /// If its type is another one.
    pub fn as_type<E: Endpoint + 'static>(&self) -> &E {
        self.0.as_any().downcast_ref().unwrap_or_else(|| panic!("it is no {}", type_name::<E>()))
    }
}

type Boxed<'e, T> = Pin<Box<dyn Future<Output = T> + 'e>>;

/// Declares [`Object`], which is [`Endpoint`] with boxes for futures, and each of the two by means of the other.
macro_rules! object {
    (
        at_once { $(fn $plain:ident($($p:ident: $P:ty),*) -> $Plain:ty;)* }
        waits { $(fn $verb:ident($($v:ident: $V:ty),*) -> $Verb:ty;)* }
    ) => {
        trait Object {
            fn as_any(&self) -> &dyn Any;
            $(fn $plain(&self, $($p: $P),*) -> $Plain;)*
            $(fn $verb(&self, $($v: $V),*) -> Boxed<'_, $Verb>;)*
        }

        impl<E: Endpoint + 'static> Object for E {
            fn as_any(&self) -> &dyn Any {
                self
            }

            $(fn $plain(&self, $($p: $P),*) -> $Plain {
                Endpoint::$plain(self, $($p),*)
            })*

            $(fn $verb(&self, $($v: $V),*) -> Boxed<'_, $Verb> {
                Box::pin(Endpoint::$verb(self, $($v),*))
            })*
        }

        impl Endpoint for DynEndpoint {
            $(fn $plain(&self, $($p: $P),*) -> $Plain {
                self.0.$plain($($p),*)
            })*

            $(async fn $verb(&self, $($v: $V),*) -> $Verb {
                self.0.$verb($($v),*).await
            })*
        }
    };
}

// All that an endpoint may do in a way of its own.
object! {
    at_once {
        fn state() -> &EndpointState;
        fn buffer(len: usize) -> PageBuf;
        fn recycle(buf: PageBuf) -> ();
        fn enter_view(epoch: u64) -> ();
        fn set_in_use(server: MemoryServerId, is_in_use: bool) -> ();
        fn regions() -> &[RegionInfo];
        fn write_now(at: GlobalAddr, bytes: &[u8]) -> bool;
        fn expect_appends(at: GlobalAddr, len: u64) -> ();
        fn charge(work: Work) -> ();
        fn now() -> Nanos;
        fn time_limit() -> Option<&TimeLimit>;
        fn set_slots(slots: u32) -> ();
        fn enter_slot(slot: u32) -> ();
        fn poll_ready() -> u64;
        fn idle() -> bool;
    }
    waits {
        fn read(at: GlobalAddr, into: PageBuf) -> Result<PageBuf>;
        fn write(at: GlobalAddr, from: PageBuf) -> Result<PageBuf>;
        fn write_unread(at: GlobalAddr, from: PageBuf) -> Result<PageBuf>;
        fn write_unlocking(at: GlobalAddr, from: PageBuf) -> Result<PageBuf>;
        fn read_word(at: GlobalAddr) -> Result<u64>;
        fn write_word(at: GlobalAddr, value: u64) -> Result<()>;
        fn compare_swap(at: GlobalAddr, expected: u64, new: u64) -> Result<u64>;
        fn masked_compare_swap(
            at: GlobalAddr, expected: u64, compare_mask: u64, new: u64, swap_mask: u64
        ) -> Result<u64>;
        fn fetch_add(at: GlobalAddr, add: u64) -> Result<u64>;
        fn submit(chain: Chain) -> Result<Vec<VerbResult>>;
        fn call_bytes(server: MemoryServerId, op: u16, body: Vec<u8>) -> Result<Vec<u8>>;
        fn reserve(at: GlobalAddr, len: u64) -> Result<()>;
        fn persist(at: GlobalAddr, len: u64) -> Result<()>;
        fn yield_now() -> ();
        fn sleep_until(at: Nanos) -> ();
        fn pace() -> ();
    }
}
