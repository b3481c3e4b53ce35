//! An append-only list whose elements never move: memory servers that join while others are in use.
//!
//! Reads take no lock. An initial element is found by one comparison, as in a slice; a later one costs one
//! more load. The number of later elements is bounded.

use std::ops::Index;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Maximum number of elements added after the initial ones.
pub const LATER_MAX: usize = 64;

/// Append-only list. See the module documentation.
///
/// ```
/// use pando_fabric::Growing;
///
/// let list = Growing::new(vec!["a", "b"]);
/// let first = &list[0];
/// assert_eq!(list.push("c"), Ok(2));
/// assert_eq!((list.len(), list.get(2), first), (3, Some(&"c"), &"a"));
/// ```
#[derive(Debug)]
pub struct Growing<T> {
    first: Box<[T]>,
    /// Filled from the front.
    later: Box<[OnceLock<T>]>,
    pushing: Mutex<()>,
}

impl<T> Growing<T> {
    /// Creates a list of the elements `first` with room for [`LATER_MAX`] more.
    pub fn new(first: Vec<T>) -> Self {
        let later = (0..LATER_MAX).map(|_| OnceLock::new()).collect();
        Self { first: first.into(), later, pushing: Mutex::new(()) }
    }

    #[inline]
    pub fn get(&self, at: usize) -> Option<&T> {
        match self.first.get(at) {
            Some(element) => Some(element),
            None => self.get_later(at),
        }
    }

    #[inline(never)]
    fn get_later(&self, at: usize) -> Option<&T> {
        self.later.get(at - self.first.len())?.get()
    }

    pub fn len(&self) -> usize {
        self.first.len() + self.later.iter().take_while(|element| element.get().is_some()).count()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.first.iter().chain(self.later.iter().map_while(OnceLock::get))
    }

    /// Appends an element and returns its number.
    ///
    /// # Errors
    /// The element, if there is no room or another thread appended at the same time.
    pub fn push(&self, element: T) -> Result<usize, T> {
        self.push_as(self.len(), element)
    }

    /// Appends an element if its number will be `at`; returns the number.
    ///
    /// # Errors
    /// The element, if there is no room or another thread appended first.
    pub fn push_as(&self, at: usize, element: T) -> Result<usize, T> {
        let _pushing = self.pushing.lock().unwrap_or_else(PoisonError::into_inner);
        match at.checked_sub(self.first.len()).and_then(|later| self.later.get(later)) {
            Some(place) if at == self.len() => place.set(element).map(|()| at),
            _ => Err(element),
        }
    }
}

impl<T> Index<usize> for Growing<T> {
    type Output = T;

    #[inline]
    fn index(&self, at: usize) -> &T {
        self.get(at).expect("the list has an element of this number")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_stay_where_they_are_until_the_list_is_full() {
        let list = Growing::new(vec![0]);
        let first: *const i32 = &raw const list[0];
        for n in 1..=LATER_MAX {
            assert_eq!(list.push(n as i32), Ok(n));
        }
        assert_eq!(list.push(-1), Err(-1));
        assert_eq!(list.len(), LATER_MAX + 1);
        assert!(list.iter().copied().eq(0..=LATER_MAX as i32));
        assert!(std::ptr::eq(first, &raw const list[0]));
        assert_eq!((list.get(LATER_MAX), list.get(LATER_MAX + 1)), (Some(&(LATER_MAX as i32)), None));
    }

    #[test]
    fn of_two_that_append_the_same_number_one_fails() {
        let list = Growing::new(vec!['a']);
        assert_eq!(list.push_as(1, 'b'), Ok(1));
        assert_eq!((list.push_as(1, 'c'), list.push_as(3, 'd')), (Err('c'), Err('d')));
    }
}
