//! The rest of a walk as tasks of several threads (DAPD 2022 §5.5: interleaved per subtree).
//!
//! The walk itself stays in one place, the *frontier*, which a lock protects. A thread that has nothing to do moves
//! it on and takes what it finds there as its next task: neighbouring lists and leaves that are a small part of
//! the whole, of the first level whose entries are that small. So tasks are numbered in preorder, and the caller can
//! judge the walk by its position and its work, as it does without threads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use super::range::{Path, Walk};
use crate::defect::{Defect, defect};
use crate::layout::{ElfLayout, Step, Work};
use crate::parallel::{Crew, Filled, ParallelSink};
use crate::predicate::Filter;
use crate::sink::Sink;

/// Tasks per thread that a walk is divided into, about.
const TASKS_PER_THREAD: u64 = 16;
/// Most lists and leaves of a task.
const TASK_ITEMS: usize = 256;

/// What a task consists of.
#[derive(Debug)]
enum Item<C, F> {
    List(C),
    Leaf(F),
}

type Task<L> = Vec<Item<<L as ElfLayout>::Cursor, <L as ElfLayout>::Leaf>>;

/// Asked with the work of all finished tasks whether the walk may go on.
type Judge<'j> = dyn FnMut(&Work) -> bool + Send + 'j;

/// What no thread has taken yet.
struct Frontier<'f, L: ElfLayout> {
    path: Path<L::Cursor, L::Leaf>,
    /// Work of all tasks that are finished; its position is that of the frontier.
    work: Work,
    next_task: usize,
    judge: &'f mut Judge<'f>,
}

/// The rest of a walk and how it is divided.
pub(crate) struct Rest<'f, L: ElfLayout> {
    layout: &'f L,
    filter: &'f Filter,
    frontier: Mutex<Frontier<'f, L>>,
    is_stopped: AtomicBool,
    /// Places in preorder that a task should take.
    task_size: u64,
    /// Level whose lists are not divided, in layouts that do not tell their sizes.
    whole_level: usize,
}

impl<'f, L: ElfLayout + Sync> Rest<'f, L> {
    /// Divides what is left of a walk that has done `work`, in a region of `size` places, among `threads`.
    pub(crate) fn new(
        layout: &'f L,
        filter: &'f Filter,
        path: Path<L::Cursor, L::Leaf>,
        work: Work,
        size: u64,
        threads: usize,
        judge: &'f mut Judge<'f>,
    ) -> Self {
        let tasks = TASKS_PER_THREAD.saturating_mul(threads as u64);
        let frontier = Frontier { path, work, next_task: 0, judge };
        Self {
            layout,
            filter,
            frontier: Mutex::new(frontier),
            is_stopped: AtomicBool::new(false),
            task_size: size.div_ceil(tasks).max(1),
            whole_level: whole_level(layout, filter, tasks as usize),
        }
    }

    /// Walks to the end with the threads of `crew`, unless the judge stops it.
    pub(crate) fn walk<S: ParallelSink>(self, crew: Crew, sink: &mut S) -> Walk {
        crew.fill(sink, |part| self.work(part));
        if self.is_stopped.into_inner() { Walk::Stopped } else { Walk::Complete }
    }

    /// Takes tasks until none is left.
    fn work<S: Sink>(&self, mut part: S) -> Filled<S> {
        let mut path = Path::empty();
        let mut task = Vec::new();
        let mut ends = Vec::new();
        let mut done = Work::default();
        while let Some(number) = self.next_task(&done, &mut task) {
            let found = part.found();
            done = Work { found, ..Work::default() };
            for item in task.drain(..) {
                match item {
                    Item::Leaf(leaf) => path.meet(self.layout, self.filter, leaf, &mut part, &mut done),
                    Item::List(list) => path.lists.push(list),
                }
                let go_on = |_: &Work| !self.is_stopped.load(Ordering::Relaxed);
                if path.walk(self.layout, self.filter, &mut part, &mut done, go_on) == Walk::Stopped {
                    return Filled { part, ends };
                }
            }
            path.finish(self.layout, self.filter, &mut part, &mut done);
            done.found -= found;
            ends.push((number, part.found()));
        }
        Filled { part, ends }
    }

    /// Adds the work of a thread's last task, and moves the frontier on by one task, which goes to `task`.
    fn next_task(&self, done: &Work, task: &mut Task<L>) -> Option<usize> {
        let mut frontier = self.frontier.lock().unwrap_or_else(PoisonError::into_inner);
        frontier.work.add(done);
        let Frontier { work, judge, .. } = &mut *frontier;
        if self.is_stopped.load(Ordering::Relaxed) || !judge(work) {
            self.is_stopped.store(true, Ordering::Relaxed);
            return None;
        }
        let from = frontier.work.position;
        while frontier.work.position < from.saturating_add(self.task_size) && task.len() < TASK_ITEMS {
            let Some(item) = self.next_item(&mut frontier) else { break };
            task.push(item);
        }
        frontier.next_task += 1;
        (!task.is_empty()).then_some(frontier.next_task - 1)
    }

    /// The next list or leaf at the frontier that is not too large.
    fn next_item(&self, frontier: &mut Frontier<'_, L>) -> Option<Item<L::Cursor, L::Leaf>> {
        let Frontier { path, work, .. } = frontier;
        loop {
            if let Some(leaf) = path.held.take() {
                let (first, rest) = self.layout.divide(leaf, self.task_size);
                path.held = rest.filter(|_| !defect(Defect::DroppedPiece));
                work.position = self.layout.end(first);
                return Some(Item::Leaf(first));
            }
            let list = path.lists.last_mut()?;
            work.steps += 1;
            match self.layout.step(list, self.filter) {
                Step::Down(below) => {
                    let (begin, size) = self.layout.span(&below);
                    let is_small = size.map_or(path.lists.len() >= self.whole_level, |n| n <= self.task_size);
                    if is_small {
                        work.position = begin + size.unwrap_or(0);
                        return Some(Item::List(below));
                    }
                    path.lists.push(below);
                }
                Step::Take(leaf) => path.held = Some(leaf),
                Step::End => {
                    path.lists.pop();
                }
            }
        }
    }
}

/// First level of which at least `wanted` lists and leaves match, so that they may be tasks.
fn whole_level<L: ElfLayout>(layout: &L, filter: &Filter, wanted: usize) -> usize {
    let root = layout.root();
    if layout.span(&root).1.is_some() {
        return 0;
    }
    let mut lists = vec![root];
    for level in 1.. {
        let (mut below, mut leaves) = (Vec::new(), 0);
        for list in &mut lists {
            while below.len() + leaves < wanted {
                match layout.step(list, filter) {
                    Step::Down(list) => below.push(list),
                    Step::Take(_) => leaves += 1,
                    Step::End => break,
                }
            }
        }
        if below.is_empty() || below.len() + leaves >= wanted {
            return level;
        }
        lists = below;
    }
    unreachable!("below the last level are no lists")
}
