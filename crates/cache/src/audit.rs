//! The cache's own invariants, checked at a quiescent point.
//!
//! Frames, mapping table and swizzled pointers agree: the table knows every node, a parent points to its
//! child, and hot nodes without a swizzled pointer are counted as orphans.

use pando_fabric::GlobalAddr;

use crate::cache::Cache;
use crate::frame::{FrameRef, NodeShape};
use crate::latch::FrameState;
use crate::swip::FrameId;
use crate::sync::Ordering;

impl Cache {
    /// Checks the cache's own invariants at a quiescent point; each violation is one line.
    pub fn audit(&self, shape: impl NodeShape) -> Vec<String> {
        let mut wrong = Vec::new();
        let frames = || (0..self.frames() as u32).map(|id| self.frame(FrameId(id)));
        frames().for_each(|frame| audit_frame(self, shape, frame, &mut wrong));
        let mut entries = 0;
        self.table.for_each(|addr, frame| match frame {
            None => wrong.push(format!("{addr} has an I/O mark, but nothing runs")),
            Some(frame) => {
                entries += 1;
                if self.try_frame(frame).is_none_or(|frame| frame.addr() != addr.raw()) {
                    wrong.push(format!(
                        "the table maps {addr} to frame {}, which holds another node",
                        frame.0
                    ));
                }
            }
        });
        let versions = frames().filter_map(|frame| frame.optimistic().ok());
        let held = versions.filter(|version| version.state() != FrameState::Free).count();
        if held != entries {
            wrong.push(format!("{held} frames hold nodes, but the table knows {entries}"));
        }
        let orphans = frames().filter(|frame| frame.is_orphan()).count();
        let counted = self.frames.orphans.load(Ordering::Relaxed);
        if orphans != counted as usize {
            wrong.push(format!("{orphans} frames are orphans, but {counted} are counted"));
        }
        wrong
    }
}

fn audit_frame(cache: &Cache, shape: impl NodeShape, frame: FrameRef<'_>, wrong: &mut Vec<String>) {
    let id = frame.id().0;
    let Ok(version) = frame.optimistic() else {
        return wrong.push(format!("frame {id} is latched, but nothing runs"));
    };
    if frame.is_writing() {
        wrong.push(format!("frame {id} is being written back, but nothing runs"));
    }
    if version.state() == FrameState::Free {
        return;
    }
    let children: Vec<_> = frame.swips(shape).collect();
    let swizzled: Vec<_> = children.iter().filter_map(|swip| swip.frame()).collect();
    if version.state() == FrameState::Cooling && (version.is_dirty() || !swizzled.is_empty()) {
        wrong.push(format!("cooling frame {id} is dirty or has swizzled children"));
    }
    for child in swizzled {
        let child = cache.try_frame(child).map(|frame| (frame.parent(), frame.optimistic()));
        match child {
            Some((Some(parent), Ok(seen))) if parent.0 == id && seen.state() == FrameState::Hot => {}
            _ => wrong.push(format!("frame {id} has a swizzled child that is not hot or not its own")),
        }
    }
    if frame.is_orphan() && (version.state() != FrameState::Hot || frame.parent().is_some()) {
        wrong.push(format!("frame {id} is an orphan, but cold or with a parent"));
    }
    // Nothing is offloaded below nodes that other compute servers may know.
    if cache.swizzles() && shape.swizzles(frame.words()) && !shape.leaves_first_word(frame.words()) {
        let listed = children.iter().filter_map(|swip| swip.global()).filter(|addr| !addr.is_null());
        let listed = listed.filter_map(|addr| Some(cache.frame(cache.table.frame_of(addr)?)));
        for child in listed.filter(|child| child.is_hot() && !child.is_orphan()) {
            wrong.push(format!("hot frame {} is not swizzled in frame {id}, and no orphan", child.id().0));
        }
    }
    if let Some(parent) = frame.parent().map(|parent| cache.frame(parent))
        && !(frame.is_hot() && parent.is_hot() && parent.slot_of(shape, frame.id()).is_some())
    {
        let parent = parent.id().0;
        wrong.push(format!("frame {id} names frame {parent} as its parent, which does not point to it"));
    }
    let known = GlobalAddr::from_raw(frame.addr()).and_then(|addr| cache.table.frame_of(addr));
    if known != Some(frame.id()) {
        wrong.push(format!("frame {id} holds a node that the mapping table does not know"));
    }
}
