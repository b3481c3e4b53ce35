//! Linearizability of the history of one key: is there an order of its operations, each between its
//! invocation and its response, in which an optional register gives the recorded answers? (Herlihy and Wing;
//! the search is that of Wing and Gong with Lowe's memory of visited states.)
//!
//! Four rules make the search fast for thousands of operations on one key:
//! - An operation that changes nothing is placed as soon as it fits, which is never wrong.
//! - A value with remaining readers that is not stored again must not be replaced yet.
//! - Values without remaining readers are equivalent: present. Replacing one by another changes nothing.
//! - A state of the search (the set of placed operations, and the register) is visited once.
//!
//! An operation that failed or never returned may take effect at any time after its invocation, or never. The
//! search gives up after [`BUDGET`] steps, with a verdict of its own.

use std::collections::HashSet;

use pando_fabric::Random;

/// A value, by number.
pub type Value = u32;

/// Position of an event in the total order of the run.
pub type Step = u64;

/// Number of changes tried before the search gives up. A visited state takes about 50 bytes.
const BUDGET: usize = 20_000_000;

/// State of the register that an operation found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Found {
    Absent,
    /// Some value; the operation does not tell which.
    Present,
    Exactly(Value),
    /// Unknown or irrelevant.
    Anything,
}

/// State of the register that an operation left.
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
    /// `None` if it failed or never returned: it may have taken effect.
    pub returned: Option<Step>,
    /// Number of the record that it comes from.
    pub record: usize,
}

/// State of the register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Held {
    Absent,
    Value(Value),
    /// A value that no remaining operation sees.
    Unseen,
}

/// Reason why a history was rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// There is no such order. At the end of the longest partial order the register holds `held`, and no
    /// place was found for the operation of `record`.
    Impossible { held: Held, record: usize },
    /// The search gave up.
    Undecided,
}

/// Searches for an order of `events` for a register that initially holds `held`.
///
/// # Errors
/// [`Rejection`].
pub fn check(events: &[Event], held: Option<Value>) -> Result<(), Rejection> {
    Search::new(events, held).run()
}

/// Doubly linked list of the calls and returns of required operations, by step. Entry 0 is the head;
/// operation `i` has the entries `2 i + 1` (call) and `2 i + 2` (return).
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

/// A placed operation, and the register before it.
struct Placed {
    choice: Choice,
    held: Held,
    /// Alternatives in its place, the next one last.
    others: Vec<Choice>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Choice {
    Required(usize),
    /// A failed operation that takes effect here.
    Optional(usize),
}

/// Number of remaining operations that see or store a value.
#[derive(Clone, Copy, Default)]
struct Uses {
    seen: u32,
    /// Failed operations that see it; they may remain unplaced.
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
    /// A random number for each operation. Their sum over the placed operations identifies that set.
    marks: Vec<u128>,
    set: u128,
    visited: HashSet<(u128, Held)>,
    /// The longest partial order so far: its length, the register at its end, and the operation that could
    /// not be placed.
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
            // 1. Place operations that change nothing as long as one fits.
            while let Some(looker) = self.next_looker() {
                self.place(Choice::Required(looker), Vec::new());
            }
            if self.timeline.next(HEAD) == HEAD {
                return Ok(());
            }
            // 2. Try the operations that may come next. Step back if none leads to a new state.
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

    /// The unplaced required operation that returned first. The next placed operation was invoked before
    /// that.
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

    /// Whether no remaining operation sees the value.
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

    /// The register after an operation that fits.
    fn after(&self, left: Left) -> Held {
        match left {
            Left::AsItWas => self.held,
            Left::Absent => Held::Absent,
            Left::Value(value) => Held::Value(value),
        }
    }

    /// Whether the operation, if it fits, has no effect that a remaining operation sees.
    fn only_looks(&self, event: &Event) -> bool {
        match event.left {
            Left::AsItWas => true,
            // It fits later, too, and may be needed there.
            _ if event.found == Found::Anything => false,
            Left::Absent => self.held == Held::Absent,
            Left::Value(value) => self.held == Held::Unseen && self.is_unseen(value),
        }
    }

    /// The required operations that may come next by their times: those invoked before the first return of an
    /// unplaced one.
    fn open(&self) -> impl Iterator<Item = usize> {
        let calls =
            std::iter::successors(Some(self.timeline.next(HEAD)), |&entry| Some(self.timeline.next(entry)));
        calls.take_while(|&entry| entry != HEAD && !entry.is_multiple_of(2)).map(|entry| (entry - 1) / 2)
    }

    /// An operation that fits and changes nothing.
    fn next_looker(&self) -> Option<usize> {
        self.open().find(|&operation| {
            let event = &self.required[operation];
            self.fits(event.found) && self.only_looks(event)
        })
    }

    /// Operations that may come next, the most likely last.
    fn choices(&self) -> Vec<Choice> {
        let mut choices = Vec::new();
        let limit = self.first_return().and_then(|first| self.required[first].returned).unwrap_or(Step::MAX);
        let may_leave = match self.held {
            Held::Value(value) => {
                let uses = self.uses[value as usize];
                // Its remaining readers find no place if it is replaced and not stored again.
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
            // Equivalent operations are tried once.
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

    /// Unplaces operations until one has an alternative.
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

    /// Subtracts the operation from the uses of its values, or adds it `again`.
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
