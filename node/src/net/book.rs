//! Where each node is, and which nodes are not spoken to any more.
//!
//! Owns [`AddressBook`] (committed addresses, and those that authenticated peers were heard from) and [`Admission`] (removed nodes).
//! `boot.rs` keeps both in step with applied state; the transport reads them at each dial and each handshake. The one rule: an address
//! is only a place to try, and who answers there is decided by the certificate alone.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{PoisonError, RwLock};

use holdfast_proto::id::NodeId;
use holdfast_proto::node::NodeAddress;
use tokio::sync::watch;

use super::Lane;

/// A place where a node may answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// As committed: a host name or address, and a port.
    Named(String, u16),
    /// As heard: the address that the node's own packets came from.
    Heard(SocketAddr),
}

#[derive(Debug, Default)]
struct Entry {
    committed: Option<NodeAddress>,
    heard: BTreeMap<Lane, SocketAddr>,
    /// Which place to try first; the newest knowledge comes first, and each failure turns to the next.
    turn: BTreeMap<Lane, usize>,
}

/// Addresses by node id, shared by everything that dials.
#[derive(Debug, Default)]
pub struct AddressBook {
    entries: RwLock<BTreeMap<NodeId, Entry>>,
}

impl AddressBook {
    /// Takes over a committed address. An unchanged one keeps what was learned since.
    pub fn commit(&self, node: NodeId, address: &NodeAddress) {
        self.change(node, |entry| {
            if entry.committed.as_ref() != Some(address) {
                entry.committed = Some(address.clone());
                entry.turn.clear();
            }
        });
    }

    /// Notes that an authenticated packet of `node` came from `from`: its sockets send from where they listen.
    pub fn hear(&self, node: NodeId, lane: Lane, from: SocketAddr) {
        self.change(node, |entry| {
            if entry.heard.insert(lane, from) != Some(from) {
                // New knowledge: the heard place stands after the committed one, so the turn moves to it.
                entry.turn.insert(lane, usize::from(entry.committed.is_some()));
            }
        });
    }

    /// Notes that the place tried first did not answer.
    pub fn failed(&self, node: NodeId, lane: Lane) {
        self.change(node, |entry| *entry.turn.entry(lane).or_default() += 1);
    }

    /// Where to try, best first.
    pub fn places(&self, node: NodeId, lane: Lane) -> Vec<Place> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let Some(entry) = entries.get(&node) else {
            return Vec::new();
        };
        let mut places = Vec::new();
        if let Some(address) = &entry.committed {
            let port = match lane {
                Lane::Main => address.main_port,
                Lane::Lease => address.lease_port,
                Lane::Bulk => address.bulk_port,
            };
            places.push(Place::Named(address.host.clone(), port));
        }
        places.extend(entry.heard.get(&lane).copied().map(Place::Heard));
        if !places.is_empty() {
            let turn = entry.turn.get(&lane).copied().unwrap_or(0) % places.len();
            places.rotate_left(turn);
        }
        places
    }

    /// Forgets a node.
    pub fn forget(&self, node: NodeId) {
        self.entries
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&node);
    }

    fn change(&self, node: NodeId, change: impl FnOnce(&mut Entry)) {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        change(entries.entry(node).or_default());
    }
}

/// The nodes that were removed. Anybody else with a certificate of the authority is a member: it may have joined after the last entry
/// that this replica has applied, and refusing it could cost the quorum that would teach us better.
#[derive(Debug)]
pub struct Admission {
    removed: watch::Sender<BTreeSet<NodeId>>,
}

impl Default for Admission {
    fn default() -> Self {
        Self {
            removed: watch::Sender::new(BTreeSet::new()),
        }
    }
}

impl Admission {
    /// Takes over the set from applied state.
    pub fn set_removed(&self, removed: BTreeSet<NodeId>) {
        self.removed.send_if_modified(|old| {
            let differs = *old != removed;
            *old = removed;
            differs
        });
    }

    /// Whether nothing is to be said to the node, nor heard from it.
    pub fn is_removed(&self, node: NodeId) -> bool {
        self.removed.borrow().contains(&node)
    }

    /// Waits until the node is removed.
    pub async fn until_removed(&self, node: NodeId) {
        let mut changes = self.removed.subscribe();
        if changes.wait_for(|removed| removed.contains(&node)).await.is_err() {
            // The set is gone with the daemon; nobody will be removed any more.
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId(1);

    fn address(port: u16) -> NodeAddress {
        NodeAddress {
            host: "host".into(),
            main_port: port,
            lease_port: port + 1,
            bulk_port: port + 2,
        }
    }

    fn named(port: u16) -> Place {
        Place::Named("host".into(), port)
    }

    fn heard(port: u16) -> (SocketAddr, Place) {
        let from = SocketAddr::from(([10, 0, 0, 1], port));
        (from, Place::Heard(from))
    }

    #[test]
    fn each_lane_has_its_own_port() {
        let book = AddressBook::default();
        book.commit(NODE, &address(10));
        for (lane, port) in [(Lane::Main, 10), (Lane::Lease, 11), (Lane::Bulk, 12)] {
            assert_eq!(book.places(NODE, lane), [named(port)]);
        }
        assert_eq!(book.places(NodeId(2), Lane::Main), []);
    }

    #[test]
    fn a_node_that_came_back_elsewhere_is_tried_where_it_was_heard_first() {
        let book = AddressBook::default();
        book.commit(NODE, &address(10));
        let (from, place) = heard(99);
        book.hear(NODE, Lane::Main, from);
        assert_eq!(book.places(NODE, Lane::Main), [place.clone(), named(10)]);
        assert_eq!(book.places(NODE, Lane::Lease), [named(11)]);

        book.commit(NODE, &address(99));
        assert_eq!(book.places(NODE, Lane::Main), [named(99), place]);
    }

    #[test]
    fn a_failure_turns_to_the_next_place_and_then_back() {
        let book = AddressBook::default();
        book.commit(NODE, &address(10));
        let (from, place) = heard(99);
        book.hear(NODE, Lane::Main, from);
        book.failed(NODE, Lane::Main);
        assert_eq!(book.places(NODE, Lane::Main)[0], named(10));
        book.failed(NODE, Lane::Main);
        assert_eq!(book.places(NODE, Lane::Main)[0], place);
        // Hearing the same again is no news.
        book.failed(NODE, Lane::Main);
        book.hear(NODE, Lane::Main, from);
        assert_eq!(book.places(NODE, Lane::Main)[0], named(10));
    }

    #[test]
    fn only_removed_nodes_are_refused() {
        let admission = Admission::default();
        assert!(!admission.is_removed(NODE));
        admission.set_removed(BTreeSet::from([NODE]));
        assert!(admission.is_removed(NODE));
        assert!(!admission.is_removed(NodeId(2)));
    }
}
