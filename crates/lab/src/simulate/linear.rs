//! Whether the history of one key can be explained: is there an order of its operations, each somewhere between its
//! invocation and its response, in which a register that may be absent gives the recorded answers? (Herlihy and Wing;
//! the search is that of Wing and Gong with the memory of Lowe.)
//!
//! What makes thousands of operations on one key quick to decide:
//! - What only looks is put into the order as soon as it fits: it changes nothing, so that this is never wrong.
//! - A value that somebody still has to see, and nobody stores again, must not be replaced yet.
//! - Values that nobody sees (any more) are one: present. Replacing one of them by another only looks, too.
//! - A state of the search (what is in the order, and what the register holds) is visited once.
//!
//! What failed or never returned may have taken effect at any time after its invocation, or not at all. The search gives
//! up after [`BUDGET`] steps, which is a verdict of its own.

use std::collections::HashSet;

use pando_fabric::Random;

/// A value, by number.
pub type Value = u32;

/// Place of an event in the one order in which everything happened.
pub type Step = u64;

/// Changes tried before the search gives up. A state that was visited takes about 50 bytes.
const BUDGET: usize = 20_000_000;

/// What an operation found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Found {
    Absent,
    /// Some value, of which the operation does not say which.
    Present,
    Exactly(Value),
    /// Not known, or it does not matter.
    Anything,
}

/// What an operation left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Left {
    AsItWas,
    Absent,
    Value(Value),
}

/// One operation on the key.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    pub found: Found,
    pub left: Left,
    pub invoked: Step,
    /// `None` if it failed or never returned: it may have taken effect or not.
    pub returned: Option<Step>,
    /// Number of the record that it comes from.
    pub record: usize,
}

/// What the register holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Held {
    Absent,
    Value(Value),
    /// A value that nobody sees any more.
    Unseen,
}

/// Why a history was not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// There is no such order. As far as the search came: what the register held, and the record for which no
    /// place was found.
    Impossible { held: Held, record: usize },
    /// The search took too long.
    Undecided,
}

/// Looks for an order of `events` that begins with `held`.
///
/// # Errors
/// [`Rejection`].
pub fn check(events: &[Event], held: Option<Value>) -> Result<(), Rejection> {
    Search::new(events, held).run()
}

/// Doubly linked list over the calls and returns of required operations, in the order of their steps. Entry 0 is its
/// head; operation `i` has the entries `2 i + 1` (call) and `2 i + 2` (return).
struct Timeline {
    next: Vec<u32>,
    previous: Vec<u32>,
}

const HEAD: usize = 0;

impl Timeline {
    fn new(required: &[Event]) -> Self {
        let mut entries: Vec<(Step, usize)> = Vec::with_capacity(2 * required.len());
        for (i, event) in required.iter().enumerate() {
            entries.push((event.invoked, 2 * i + 1));
            entries.push((event.returned.expect("a required operation returned"), 2 * i + 2));
        }
        entries.sort_unstable();
        let mut list = Self { next: vec![0; entries.len() + 1], previous: vec![0; entries.len() + 1] };
        let mut last = HEAD;
        for (_, entry) in entries {
            list.next[last] = entry as u32;
            list.previous[entry] = last as u32;
            last = entry;
        }
        list.next[last] = HEAD as u32;
        list.previous[HEAD] = last as u32;
        list
    }

    fn next(&self, entry: usize) -> usize {
        self.next[entry] as usize
    }

    fn unlink(&mut self, entry: usize) {
        let (before, after) = (self.previous[entry], self.next[entry]);
        self.next[before as usize] = after;
        self.previous[after as usize] = before;
    }

    fn relink(&mut self, entry: usize) {
        let (before, after) = (self.previous[entry], self.next[entry]);
        self.next[before as usize] = entry as u32;
        self.previous[after as usize] = entry as u32;
    }

    fn take(&mut self, operation: usize) {
        self.unlink(2 * operation + 1);
        self.unlink(2 * operation + 2);
    }

    /// Undoes the latest [`Timeline::take`].
    fn put_back(&mut self, operation: usize) {
        self.relink(2 * operation + 2);
        self.relink(2 * operation + 1);
    }
}

/// An operation in the order, and what held before it.
struct Placed {
    choice: Choice,
    held: Held,
    /// What else could stand in its place, the next one last.
    others: Vec<Choice>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Choice {
    Required(usize),
    /// One that failed: as if it took effect here.
    Optional(usize),
}

/// How often a value is still to be seen and to be stored.
#[derive(Clone, Copy, Default)]
struct Uses {
    seen: u32,
    /// By operations that failed: these need not be, but may.
    maybe_seen: u32,
    stored: u32,
}

struct Search {
    required: Vec<Event>,
    optional: Vec<Event>,
    used: Vec<bool>,
    timeline: Timeline,
    uses: Vec<Uses>,
    held: Held,
    placed: Vec<Placed>,
    /// A random number for each operation; their sum stands for the set of those in the order.
    marks: Vec<u128>,
    set: u128,
    visited: HashSet<(u128, Held)>,
    /// Of the longest order so far: its length, what it ends with, the operation that had to come next.
    best: (usize, Held, usize),
}

impl Search {
    fn new(events: &[Event], held: Option<Value>) -> Self {
        let required: Vec<_> = events.iter().filter(|event| event.returned.is_some()).copied().collect();
        let changes = |event: &&Event| event.returned.is_none() && event.left != Left::AsItWas;
        let mut optional: Vec<_> = events.iter().filter(changes).copied().collect();
        optional.sort_by_key(|event| event.invoked);
        let values = |event: &Event| {
            let found = if let Found::Exactly(value) = event.found { value } else { 0 };
            let left = if let Left::Value(value) = event.left { value } else { 0 };
            found.max(left)
        };
        let most = events.iter().map(values).chain(held).max().unwrap_or(0);
        let mut uses = vec![Uses::default(); most as usize + 1];
        for event in &required {
            if let Found::Exactly(value) = event.found {
                uses[value as usize].seen += 1;
            }
        }
        for event in &optional {
            if let Found::Exactly(value) = event.found {
                uses[value as usize].maybe_seen += 1;
            }
        }
        for event in required.iter().chain(&optional) {
            if let Left::Value(value) = event.left {
                uses[value as usize].stored += 1;
            }
        }
        let random = Random::new(1);
        let mark = || u128::from(random.next()) << 64 | u128::from(random.next());
        Self {
            timeline: Timeline::new(&required),
            marks: (0..required.len() + optional.len()).map(|_| mark()).collect(),
            used: vec![false; optional.len()],
            uses,
            held: held.map_or(Held::Absent, Held::Value),
            placed: Vec::new(),
            set: 0,
            visited: HashSet::new(),
            best: (0, Held::Absent, usize::MAX),
            required,
            optional,
        }
    }

    fn run(mut self) -> Result<(), Rejection> {
        self.held = self.normal(self.held);
        let mut steps = 0;
        loop {
            while let Some(looker) = self.next_looker() {
                self.place(Choice::Required(looker), Vec::new());
            }
            if self.timeline.next(HEAD) == HEAD {
                return Ok(());
            }
            self.note_progress();
            let mut choices = Some(self.choices());
            loop {
                let Some(mut options) = choices else { return Err(self.impossible()) };
                let Some(choice) = options.pop() else {
                    choices = self.step_back();
                    continue;
                };
                steps += 1;
                if steps > BUDGET {
                    return Err(Rejection::Undecided);
                }
                self.place(choice, options);
                if self.visited.insert((self.set, self.held)) {
                    break;
                }
                choices = self.step_back();
            }
        }
    }

    fn impossible(&self) -> Rejection {
        let (_, held, operation) = self.best;
        Rejection::Impossible { held, record: self.required[operation].record }
    }

    fn note_progress(&mut self) {
        if self.best.2 == usize::MAX || self.placed.len() > self.best.0 {
            let blocked = self.first_return().expect("the timeline is not empty");
            self.best = (self.placed.len(), self.held, blocked);
        }
    }

    /// The operation of those not in the order yet that returned first: the next one in the order was invoked before.
    fn first_return(&self) -> Option<usize> {
        let entries =
            std::iter::successors(Some(self.timeline.next(HEAD)), |&entry| Some(self.timeline.next(entry)));
        let first = entries.take_while(|&entry| entry != HEAD).find(|entry| entry.is_multiple_of(2));
        first.map(|entry| (entry - 2) / 2)
    }

    fn fits(&self, found: Found) -> bool {
        match found {
            Found::Anything => true,
            Found::Absent => self.held == Held::Absent,
            Found::Present => self.held != Held::Absent,
            Found::Exactly(value) => self.held == Held::Value(value),
        }
    }

    /// Whether anybody may look at the value later.
    fn is_unseen(&self, value: Value) -> bool {
        let uses = self.uses[value as usize];
        uses.seen == 0 && uses.maybe_seen == 0
    }

    fn normal(&self, held: Held) -> Held {
        match held {
            Held::Value(value) if self.is_unseen(value) => Held::Unseen,
            held => held,
        }
    }

    /// What the register holds after an operation that fits.
    fn after(&self, left: Left) -> Held {
        match left {
            Left::AsItWas => self.held,
            Left::Absent => Held::Absent,
            Left::Value(value) => Held::Value(value),
        }
    }

    /// Whether the operation, if it fits, changes nothing that anybody sees.
    fn only_looks(&self, event: &Event) -> bool {
        match event.left {
            Left::AsItWas => true,
            Left::Absent => self.held == Held::Absent,
            Left::Value(value) => self.held == Held::Unseen && self.is_unseen(value),
        }
    }

    /// The operations of which any may come next, as far as time is concerned: those that were invoked before the first
    /// of them returned.
    fn open(&self) -> impl Iterator<Item = usize> {
        let calls =
            std::iter::successors(Some(self.timeline.next(HEAD)), |&entry| Some(self.timeline.next(entry)));
        calls.take_while(|&entry| entry != HEAD && !entry.is_multiple_of(2)).map(|entry| (entry - 1) / 2)
    }

    /// One that fits and only looks.
    fn next_looker(&self) -> Option<usize> {
        self.open().find(|&operation| {
            let event = &self.required[operation];
            self.fits(event.found) && self.only_looks(event)
        })
    }

    /// What may come next in the order, the most likely last.
    fn choices(&self) -> Vec<Choice> {
        let mut choices = Vec::new();
        let limit = self.first_return().and_then(|first| self.required[first].returned).unwrap_or(Step::MAX);
        let may_leave = match self.held {
            Held::Value(value) => {
                let uses = self.uses[value as usize];
                // Those who are to see it come later, and nobody stores it again.
                uses.seen == 0 || uses.stored > 0
            }
            Held::Absent | Held::Unseen => true,
        };
        let mut kinds = Vec::new();
        for (i, event) in self.optional.iter().enumerate().rev() {
            if self.used[i] || event.invoked > limit || !may_leave || !self.fits(event.found) {
                continue;
            }
            let left = self.normal(self.after(event.left));
            let kind = (event.found, left);
            // Those that do the same stand for each other.
            if left != self.held && !kinds.contains(&kind) {
                kinds.push(kind);
                choices.push(Choice::Optional(i));
            }
        }
        let mut changes = Vec::new();
        for operation in self.open() {
            let event = &self.required[operation];
            let sees_held = matches!(event.found, Found::Exactly(_));
            let is_last = matches!(self.held, Held::Value(value) if self.uses[value as usize].seen == 1);
            if self.fits(event.found) && (may_leave || (sees_held && is_last)) {
                changes.push((event.returned, operation));
            }
        }
        changes.sort_unstable_by(|a, b| b.cmp(a));
        choices.extend(changes.into_iter().map(|(_, operation)| Choice::Required(operation)));
        choices
    }

    fn event(&self, choice: Choice) -> Event {
        match choice {
            Choice::Required(i) => self.required[i],
            Choice::Optional(i) => self.optional[i],
        }
    }

    fn mark(&self, choice: Choice) -> u128 {
        match choice {
            Choice::Required(i) => self.marks[i],
            Choice::Optional(i) => self.marks[self.required.len() + i],
        }
    }

    fn place(&mut self, choice: Choice, others: Vec<Choice>) {
        let event = self.event(choice);
        self.placed.push(Placed { choice, held: self.held, others });
        let after = self.after(event.left);
        self.count(choice, &event, false);
        match choice {
            Choice::Required(i) => self.timeline.take(i),
            Choice::Optional(i) => self.used[i] = true,
        }
        self.set = self.set.wrapping_add(self.mark(choice));
        self.held = self.normal(after);
    }

    /// Takes the latest operation out of the order again until there is something else to try in its place.
    fn step_back(&mut self) -> Option<Vec<Choice>> {
        while let Some(Placed { choice, held, others }) = self.placed.pop() {
            let event = self.event(choice);
            self.count(choice, &event, true);
            match choice {
                Choice::Required(i) => self.timeline.put_back(i),
                Choice::Optional(i) => self.used[i] = false,
            }
            self.set = self.set.wrapping_sub(self.mark(choice));
            self.held = held;
            if !others.is_empty() {
                return Some(others);
            }
        }
        None
    }

    /// The operation will not see or store any more, or (`again`) will.
    fn count(&mut self, choice: Choice, event: &Event, again: bool) {
        let change = |n: &mut u32| if again { *n += 1 } else { *n -= 1 };
        if let Found::Exactly(value) = event.found {
            let uses = &mut self.uses[value as usize];
            match choice {
                Choice::Required(_) => change(&mut uses.seen),
                Choice::Optional(_) => change(&mut uses.maybe_seen),
            }
        }
        if let Left::Value(value) = event.left {
            change(&mut self.uses[value as usize].stored);
        }
    }
}

#[cfg(test)]
mod tests;
