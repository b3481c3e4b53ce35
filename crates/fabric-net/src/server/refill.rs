//! The thread that fills copies of this server from their primaries.
//!
//! It READs as any client does, at a limited rate. If the primary changes, it begins again; what clients wrote stays.
//! Once a copy is whole, it has the group count it as a backup.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use pando_fabric::{Endpoint, Fabric};
use pando_fabric_local::ServedRegion;
use pando_member::{View, VolumeCopy};

use super::filling::Filling;
use super::member::Member;
use crate::client::{TcpConfig, TcpEndpoint, TcpFabric, wait_for};
use crate::group::Register;
use crate::secret::Secret;

/// Bytes that are READ at a time.
const BLOCK: u64 = 64 << 10;
/// Pause after a failure.
const PAUSE: Duration = Duration::from_millis(50);
/// Longest time for an answer, and for a change of the view.
const ANSWER: Duration = Duration::from_secs(1);
const CHANGE: Duration = Duration::from_secs(5);

/// What the thread needs.
pub(super) struct Refill<'m> {
    pub member: &'m Member,
    pub region: &'m ServedRegion,
    pub secret: &'m Secret,
    /// Most bytes to READ in a second.
    pub bytes_per_s: u64,
}

/// A way to the primaries.
struct Source {
    fabric: TcpFabric,
    ep: TcpEndpoint,
}

impl Refill<'_> {
    /// Fills all copies that are to be filled, until there are none or the server stops.
    pub fn run(&self) {
        let mut source = None;
        while let Some(filling) = self.member.next_filling() {
            match self.fill(&filling, &mut source) {
                Ok(true) => {
                    let (volume, took) = (filling.volume.0, filling.range.end - filling.range.start);
                    tracing::info!("the copy of volume {volume} is whole: {took} bytes");
                }
                Ok(false) => {}
                Err(reason) => {
                    tracing::warn!("the copy of volume {} is not filled yet: {reason}", filling.volume.0);
                    source = None;
                    thread::sleep(PAUSE);
                }
            }
        }
    }

    /// The primary of the volume, and the view, while the copy is to be filled.
    fn primary(&self, filling: &Filling) -> Option<(VolumeCopy, View)> {
        if !self.member.is_filling(filling) {
            return None;
        }
        let view = self.member.known().view.clone()?;
        Some((view.primary(filling.volume)?, view))
    }

    /// Fills a copy, and has the group count it as whole. Returns `false` if it is not to be filled any more.
    fn fill(&self, filling: &Arc<Filling>, source: &mut Option<Source>) -> Result<bool, String> {
        let Some((primary, _)) = self.primary(filling) else { return Ok(false) };
        let mut due = Instant::now();
        let slot_bytes = filling.range.end - filling.range.start;
        for begin in (0..slot_bytes).step_by(BLOCK as usize) {
            let Some((current, view)) = self.primary(filling) else { return Ok(false) };
            if current.server != primary.server || current.slot != primary.slot {
                return Err("its primary has changed".to_owned());
            }
            let source = match source {
                Some(source) => source,
                None => source.insert(self.connect(&view)?),
            };
            source.fabric.learn_view(view.clone());
            source.ep.enter_view(view.epoch());
            filling.note_whole(begin);
            let len = BLOCK.min(slot_bytes - begin) as usize;
            let at = pando_fabric::GlobalAddr::new(current.server, current.shift(slot_bytes) + begin);
            let read = wait_for(&source.ep, source.ep.read(at, source.ep.buffer(len)));
            let buf = read.map_err(|error| error.to_string())?;
            let mut bytes = Vec::with_capacity(len);
            buf.append_bytes_to(len, &mut bytes);
            source.ep.recycle(buf);
            filling
                .store(self.region, filling.range.start + begin, &bytes)
                .map_err(|error| error.to_string())?;
            due += Duration::from_nanos((len as u64).saturating_mul(1_000_000_000) / self.bytes_per_s.max(1));
            thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        self.finish(filling)
    }

    fn connect(&self, view: &View) -> Result<Source, String> {
        let addresses =
            view.members().map(|server| view.servers()[usize::from(server.0)].address().to_owned());
        let config = TcpConfig { secret: self.secret.clone(), deadline: ANSWER, ..TcpConfig::new(addresses) };
        let fabric = TcpFabric::connect(config).map_err(|error| error.to_string())?;
        let ep = fabric.endpoint(crate::random_nonzero()).map_err(|error| error.to_string())?;
        Ok(Source { fabric, ep })
    }

    /// Has the group count the copy as whole.
    fn finish(&self, filling: &Arc<Filling>) -> Result<bool, String> {
        let Some((_, view)) = self.primary(filling) else { return Ok(false) };
        let Some(me) = self.member.me() else { return Ok(false) };
        let mut register =
            Register::of(&view, self.secret, self.member.process).map_err(|error| error.to_string())?;
        let changed = register.change(Instant::now() + CHANGE, |view| {
            Ok(view.and_then(|view| view.copied(filling.volume, me).ok()))
        });
        match changed {
            Ok(Some(view)) => {
                self.member.learn(view);
                Ok(true)
            }
            Ok(None) => Ok(false),
            Err(error) => Err(error.to_string()),
        }
    }
}
