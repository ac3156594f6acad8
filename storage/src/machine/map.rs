//! An ordered map whose clones share their parts: the container of everything that a replica remembers.
//!
//! A B-tree of reference-counted nodes. Cloning is O(1); a change copies the few nodes on its path when a clone still
//! holds them. So a snapshot or a published state costs nothing while it is taken, and little while it is kept. Each
//! node also caches the sum of its entries' digests, so that the state hash costs what has changed since the last one.
//! The one rule: order and sum depend on the entries alone, never on the history that led to them.

use std::borrow::Borrow;
use std::fmt;
use std::sync::{Arc, OnceLock};

/// Most entries of a leaf and most children of a branch; a fuller one is split in two.
const FANOUT_MAX: usize = 32;

/// A digest that adds up: the sum over entries does not depend on their order or grouping.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sum(pub [u64; 4]);

impl Sum {
    /// Takes a 32-byte digest as a sum of one.
    #[must_use]
    pub fn of(digest: &[u8; 32]) -> Self {
        let lane = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&digest[at * 8..at * 8 + 8]);
            u64::from_le_bytes(bytes)
        };
        Self([lane(0), lane(1), lane(2), lane(3)])
    }

    fn plus(self, other: Self) -> Self {
        let mut out = self.0;
        for (lane, more) in out.iter_mut().zip(other.0) {
            *lane = lane.wrapping_add(more);
        }
        Self(out)
    }
}

/// The map.
pub struct Map<K, V> {
    root: Option<Arc<Tree<K, V>>>,
    len: usize,
}

struct Tree<K, V> {
    sum: OnceLock<Sum>,
    kind: Kind<K, V>,
}

enum Kind<K, V> {
    /// Entries in order; never empty.
    Leaf(Vec<(K, V)>),
    /// Least key of each child, and the children in order; never empty.
    Branch(Vec<(K, Arc<Tree<K, V>>)>),
}

impl<K: Clone, V: Clone> Clone for Tree<K, V> {
    fn clone(&self) -> Self {
        // Only changes copy a node, so the copy starts without a sum.
        let kind = match &self.kind {
            Kind::Leaf(entries) => Kind::Leaf(entries.clone()),
            Kind::Branch(children) => Kind::Branch(children.clone()),
        };
        Self::of(kind)
    }
}

impl<K, V> Tree<K, V> {
    fn of(kind: Kind<K, V>) -> Self {
        Self {
            sum: OnceLock::new(),
            kind,
        }
    }
}

impl<K, V> Map<K, V> {
    /// Makes an empty map.
    #[must_use]
    pub const fn new() -> Self {
        Self { root: None, len: 0 }
    }

    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Reports whether there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns all entries in order.
    #[must_use]
    pub fn iter(&self) -> Iter<'_, K, V> {
        Iter {
            path: self.root.iter().map(|root| (&**root, 0)).collect(),
        }
    }

    /// Returns all keys in order.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }

    /// Returns all values in the order of their keys.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    /// Returns the sum of `digest` over all entries; what did not change since the last call is not visited.
    pub fn sum(&self, digest: &impl Fn(&K, &V) -> Sum) -> Sum {
        self.root.as_deref().map_or(Sum::default(), |root| root.sum(digest))
    }
}

impl<K: Ord + Clone, V: Clone> Map<K, V> {
    /// Returns the value of `key`.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let mut tree = self.root.as_deref()?;
        loop {
            match &tree.kind {
                Kind::Leaf(entries) => {
                    let at = entries.binary_search_by(|(k, _)| k.borrow().cmp(key)).ok()?;
                    return Some(&entries[at].1);
                }
                Kind::Branch(children) => tree = &children[child_of(children, key)].1,
            }
        }
    }

    /// Reports whether `key` has a value.
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.get(key).is_some()
    }

    /// Returns the value of `key` for a change.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        if !self.contains_key(key) {
            return None; // Without this look a miss would copy a path.
        }
        let mut tree = Arc::make_mut(self.root.as_mut()?);
        loop {
            tree.sum = OnceLock::new();
            match &mut tree.kind {
                Kind::Leaf(entries) => {
                    let at = entries.binary_search_by(|(k, _)| k.borrow().cmp(key)).ok()?;
                    return Some(&mut entries[at].1);
                }
                Kind::Branch(children) => {
                    let at = child_of(children, key);
                    tree = Arc::make_mut(&mut children[at].1);
                }
            }
        }
    }

    /// Puts `value` at `key`; returns the value that was there.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let Some(root) = self.root.as_mut() else {
            self.root = Some(Arc::new(Tree::of(Kind::Leaf(vec![(key, value)]))));
            self.len = 1;
            return None;
        };
        let (old, right) = Arc::make_mut(root).insert(key, value);
        if let Some(right) = right {
            let left = Arc::clone(root);
            let children = vec![(left.least().clone(), left), (right.least().clone(), Arc::new(right))];
            self.root = Some(Arc::new(Tree::of(Kind::Branch(children))));
        }
        self.len += usize::from(old.is_none());
        old
    }

    /// Takes the value of `key` out.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        if !self.contains_key(key) {
            return None;
        }
        let root = self.root.as_mut()?;
        let old = Arc::make_mut(root).remove(key);
        self.len -= usize::from(old.is_some());
        loop {
            let lower = match self.root.as_deref().map(|root| &root.kind) {
                Some(Kind::Leaf(entries)) if entries.is_empty() => None,
                Some(Kind::Branch(children)) if children.is_empty() => None,
                Some(Kind::Branch(children)) if children.len() == 1 => Some(Arc::clone(&children[0].1)),
                _ => return old,
            };
            self.root = lower;
        }
    }

    /// Returns the first entry.
    #[must_use]
    pub fn first(&self) -> Option<(&K, &V)> {
        self.iter().next()
    }

    /// Returns the last entry.
    #[must_use]
    pub fn last(&self) -> Option<(&K, &V)> {
        let mut tree = self.root.as_deref()?;
        loop {
            match &tree.kind {
                Kind::Leaf(entries) => return entries.last().map(|(key, value)| (key, value)),
                Kind::Branch(children) => tree = &children.last()?.1,
            }
        }
    }

    /// Returns the entries from `key` on, in order.
    pub fn iter_from<Q: Ord + ?Sized>(&self, key: &Q) -> Iter<'_, K, V>
    where
        K: Borrow<Q>,
    {
        let mut path = Vec::new();
        let mut next = self.root.as_deref();
        while let Some(tree) = next {
            let (at, lower) = match &tree.kind {
                Kind::Leaf(entries) => (entries.partition_point(|(k, _)| k.borrow() < key), None),
                Kind::Branch(children) => {
                    let at = child_of(children, key);
                    (at + 1, Some(&*children[at].1))
                }
            };
            path.push((tree, at));
            next = lower;
        }
        Iter { path }
    }
}

/// Returns the place of the child whose range holds `key`.
fn child_of<K: Borrow<Q>, Q: Ord + ?Sized, C>(children: &[(K, C)], key: &Q) -> usize {
    children
        .partition_point(|(least, _)| least.borrow() <= key)
        .saturating_sub(1)
}

impl<K, V> Tree<K, V> {
    fn least(&self) -> &K {
        match &self.kind {
            Kind::Leaf(entries) => &entries[0].0,
            Kind::Branch(children) => &children[0].0,
        }
    }

    fn sum(&self, digest: &impl Fn(&K, &V) -> Sum) -> Sum {
        *self.sum.get_or_init(|| match &self.kind {
            Kind::Leaf(entries) => entries
                .iter()
                .map(|(key, value)| digest(key, value))
                .fold(Sum::default(), Sum::plus),
            Kind::Branch(children) => children
                .iter()
                .map(|(_, child)| child.sum(digest))
                .fold(Sum::default(), Sum::plus),
        })
    }
}

impl<K: Ord + Clone, V: Clone> Tree<K, V> {
    /// Returns the value that was there, and the right half when the node was split.
    fn insert(&mut self, key: K, value: V) -> (Option<V>, Option<Self>) {
        self.sum = OnceLock::new();
        match &mut self.kind {
            Kind::Leaf(entries) => {
                let at = match entries.binary_search_by(|(k, _)| k.cmp(&key)) {
                    Ok(at) => return (Some(std::mem::replace(&mut entries[at].1, value)), None),
                    Err(at) => at,
                };
                entries.insert(at, (key, value));
                (None, split(entries, at).map(|right| Self::of(Kind::Leaf(right))))
            }
            Kind::Branch(children) => {
                let at = child_of(children, &key);
                if key < children[at].0 {
                    children[at].0 = key.clone();
                }
                let (old, right) = Arc::make_mut(&mut children[at].1).insert(key, value);
                if let Some(right) = right {
                    children.insert(at + 1, (right.least().clone(), Arc::new(right)));
                }
                (old, split(children, at + 1).map(|right| Self::of(Kind::Branch(right))))
            }
        }
    }

    /// Takes `key` out, and every child that this empties. Half-empty nodes stay: removals are few or take whole ends.
    fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.sum = OnceLock::new();
        match &mut self.kind {
            Kind::Leaf(entries) => {
                let at = entries.binary_search_by(|(k, _)| k.borrow().cmp(key)).ok()?;
                Some(entries.remove(at).1)
            }
            Kind::Branch(children) => {
                let at = child_of(children, key);
                let child = Arc::make_mut(&mut children[at].1);
                let old = child.remove(key);
                let empty = match &child.kind {
                    Kind::Leaf(entries) => entries.is_empty(),
                    Kind::Branch(lower) => lower.is_empty(),
                };
                if empty {
                    children.remove(at);
                }
                old
            }
        }
    }
}

/// Cuts the upper half off a list that is too long. One that grew at its end is cut there, so that nodes filled in
/// order (log indexes, times) stay full.
fn split<T>(list: &mut Vec<T>, grew_at: usize) -> Option<Vec<T>> {
    let cut = match grew_at + 1 == list.len() {
        true => list.len() - 1,
        false => list.len() / 2,
    };
    (list.len() > FANOUT_MAX).then(|| list.split_off(cut))
}

impl<K, V> Clone for Map<K, V> {
    fn clone(&self) -> Self {
        Self {
            root: self.root.clone(),
            len: self.len,
        }
    }
}

impl<K, V> Default for Map<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: PartialEq, V: PartialEq> PartialEq for Map<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl<K: Eq, V: Eq> Eq for Map<K, V> {}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for Map<K, V> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_map().entries(self.iter()).finish()
    }
}

impl<K: Ord + Clone, V: Clone> FromIterator<(K, V)> for Map<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut map = Self::new();
        for (key, value) in entries {
            map.insert(key, value);
        }
        map
    }
}

impl<'a, K, V> IntoIterator for &'a Map<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = Iter<'a, K, V>;

    fn into_iter(self) -> Iter<'a, K, V> {
        self.iter()
    }
}

/// Entries of a [`Map`] in order.
pub struct Iter<'a, K, V> {
    /// Nodes from the root down, each with the place of its next entry or child.
    path: Vec<(&'a Tree<K, V>, usize)>,
}

impl<'a, K, V> Iterator for Iter<'a, K, V> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (tree, at) = self.path.last_mut()?;
            let place = *at;
            *at += 1;
            match &tree.kind {
                Kind::Leaf(entries) => match entries.get(place) {
                    Some((key, value)) => return Some((key, value)),
                    None => self.path.pop(),
                },
                Kind::Branch(children) => match children.get(place) {
                    Some((_, child)) => {
                        self.path.push((child, 0));
                        None
                    }
                    None => self.path.pop(),
                },
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn digest(key: &u64, value: &u64) -> Sum {
        Sum::of(blake3::hash(&[key.to_le_bytes(), value.to_le_bytes()].concat()).as_bytes())
    }

    /// A small generator; the tests' only source of variety.
    fn step(seed: &mut u64) -> u64 {
        *seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        *seed >> 33
    }

    #[test]
    fn it_agrees_with_the_standard_map_after_every_change() {
        for mut seed in 0..20 {
            let (mut map, mut model) = (Map::new(), BTreeMap::new());
            let keys = [8, 100, 3000][usize::try_from(seed % 3).unwrap()];
            for _ in 0..4000 {
                let (key, value) = (step(&mut seed) % keys, step(&mut seed));
                if step(&mut seed).is_multiple_of(3) {
                    assert_eq!(map.remove(&key), model.remove(&key));
                } else {
                    assert_eq!(map.insert(key, value), model.insert(key, value));
                }
                let from = step(&mut seed) % keys;
                assert_eq!(map.iter_from(&from).next(), model.range(from..).next());
                assert_eq!(map.len(), model.len());
                assert_eq!(map.last(), model.last_key_value());
            }
            assert!(map.iter().eq(model.iter()));
            while let Some((&key, _)) = map.first() {
                map.remove(&key);
            }
            assert!(map.is_empty() && map.root.is_none());
        }
    }

    #[test]
    fn a_clone_keeps_what_it_saw() {
        let mut map: Map<u64, u64> = (0..1000).map(|key| (key, key)).collect();
        let before = map.clone();
        for key in 0..1000 {
            *map.get_mut(&key).unwrap() += 1;
        }
        map.remove(&7);
        assert!(before.iter().all(|(key, value)| key == value) && before.len() == 1000);
        assert_eq!(map.get(&8), Some(&9));
    }

    #[test]
    fn the_sum_depends_on_the_entries_and_not_on_their_history() {
        let mut up: Map<u64, u64> = (0..500).map(|key| (key, 1)).collect();
        let mut down: Map<u64, u64> = (0..900).rev().map(|key| (key, 1)).collect();
        assert_ne!(up.sum(&digest), down.sum(&digest));
        (500..900).for_each(|key| {
            down.remove(&key);
        });
        assert_eq!(up.sum(&digest), down.sum(&digest));
        *up.get_mut(&77).unwrap() = 2;
        assert_ne!(up.sum(&digest), down.sum(&digest));
    }
}
