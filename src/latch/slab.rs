//! Places that are used again, so that memory follows what is held and not what has passed.

/// Holds values under small keys and gives a freed key to the next value.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    slots: Vec<Slot<T>>,
    free: usize,
}

#[derive(Debug)]
enum Slot<T> {
    Taken(T),
    /// The next free slot; beyond the end where there is none.
    Free(usize),
}

const NONE: usize = usize::MAX;

// === impl Slab ===

impl<T> Slab<T> {
    pub(crate) const fn new() -> Self {
        Self { slots: Vec::new(), free: NONE }
    }

    /// Keeps `value` and returns its key.
    pub(crate) fn insert(&mut self, value: T) -> usize {
        self.insert_with(|_| value)
    }

    /// Keeps what is made for its key, and returns the key.
    pub(crate) fn insert_with(&mut self, make: impl FnOnce(usize) -> T) -> usize {
        let key = self.free;
        if let Some(slot @ &mut Slot::Free(next)) = self.slots.get_mut(key) {
            *slot = Slot::Taken(make(key));
            self.free = next;
            return key;
        }
        let key = self.slots.len();
        self.slots.push(Slot::Taken(make(key)));
        key
    }

    /// Puts `value` where `key` leads and returns what was there.
    pub(crate) fn replace(&mut self, key: usize, value: T) -> Option<T> {
        match self.slots.get_mut(key) {
            Some(Slot::Taken(old)) => Some(std::mem::replace(old, value)),
            _ => None,
        }
    }

    /// Takes out what `key` leads to; the key may now be given to another.
    pub(crate) fn remove(&mut self, key: usize) -> Option<T> {
        let slot = self.slots.get_mut(key).filter(|slot| matches!(slot, Slot::Taken(_)))?;
        let Slot::Taken(value) = std::mem::replace(slot, Slot::Free(self.free)) else { return None };
        self.free = key;
        Some(value)
    }

    pub(crate) fn get(&self, key: usize) -> Option<&T> {
        self.slots.get(key).and_then(Slot::taken)
    }

    /// Gives out all that it holds, in the order of the keys.
    pub(crate) fn into_values(self) -> impl Iterator<Item = T> {
        self.slots.into_iter().filter_map(Slot::into_taken)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(Slot::taken)
    }
}

// === impl Slot ===

impl<T> Slot<T> {
    fn taken(&self) -> Option<&T> {
        match self {
            Slot::Taken(value) => Some(value),
            Slot::Free(_) => None,
        }
    }

    fn into_taken(self) -> Option<T> {
        match self {
            Slot::Taken(value) => Some(value),
            Slot::Free(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_freed_place_is_used_again() {
        let mut slab = Slab::new();
        let first = slab.insert("a");
        let second = slab.insert("b");
        assert_eq!(slab.remove(first), Some("a"));
        assert_eq!(slab.remove(first), None, "a key leads to one value once");
        assert_eq!(slab.insert("c"), first);
        assert_eq!(slab.replace(second, "d"), Some("b"));
        assert_eq!(slab.get(second), Some(&"d"));
        assert_eq!(slab.slots.len(), 2);
        assert_eq!(slab.into_values().collect::<Vec<_>>(), ["c", "d"]);
    }

    #[test]
    fn a_waker_takes_two_words() {
        assert_eq!(size_of::<Slot<std::task::Waker>>(), 2 * size_of::<usize>());
    }
}
