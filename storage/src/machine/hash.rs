//! The state hash: one digest over everything that follows from the public event stream.
//!
//! It depends on the entries of each map and on nothing else, so a replica that replayed the log, one that loaded a
//! snapshot and a subscriber that folded the stream get the same. Each map's part is a sum of digests that is cached
//! in its nodes: a hash costs what has changed since the last one.

use holdfast_proto::id::Digest;
use rkyv::api::high::HighSerializer;
use rkyv::rancor::Error;
use rkyv::ser::allocator::ArenaHandle;
use rkyv::util::AlignedVec;

use super::map::{Map, Sum};
use super::state::State;

/// Bytes of a value that depend on the value alone.
fn bytes<T>(value: &T) -> AlignedVec
where
    T: for<'a> rkyv::Serialize<HighSerializer<AlignedVec, ArenaHandle<'a>, Error>>,
{
    rkyv::to_bytes::<Error>(value).expect("plain values always serialise")
}

fn sum<K, V>(map: &Map<K, V>, part: impl Fn(&K, &V) -> AlignedVec) -> [u8; 32] {
    let Sum(lanes) = map.sum(&|key, value| Sum::of(blake3::hash(&part(key, value)).as_bytes()));
    let mut out = [0; 32];
    for (place, lane) in out.chunks_exact_mut(8).zip(lanes) {
        place.copy_from_slice(&lane.to_le_bytes());
    }
    out
}

impl State {
    /// Returns the digest of the state. `applied` is no part of it.
    #[must_use]
    pub fn hash(&self) -> Digest {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&bytes(&self.cluster));
        // Values that carry their own key are hashed alone; the others with it.
        hasher.update(&sum(&self.nodes, |_, node| bytes(&**node)));
        hasher.update(&sum(&self.devices, |_, slot| bytes(&**slot)));
        hasher.update(&sum(&self.leases, |_, lease| bytes(&**lease)));
        hasher.update(&sum(&self.ended, |at, lease| bytes(&(*at, *lease))));
        hasher.update(&sum(&self.tenants, |name, tenant| bytes(&(name.clone(), *tenant))));
        hasher.update(&sum(&self.access_tokens, |_, access| bytes(&**access)));
        hasher.update(&sum(&self.join_tokens, |_, join| bytes(&**join)));
        hasher.update(&sum(&self.tariffs, |_, tariff| bytes(&**tariff)));
        hasher.update(&sum(&self.requests, |name, answer| bytes(&(*name, answer.clone()))));
        // Without any, the hash is that of builds which do not know them.
        if !self.conditions.is_empty() {
            hasher.update(&sum(&self.conditions, |lease, conditions| {
                bytes(&(*lease, (**conditions).clone()))
            }));
        }
        if !self.drains.is_empty() {
            hasher.update(b"drains");
            hasher.update(&sum(&self.drains, |node, drain| bytes(&(*node, *drain))));
        }
        if !self.subscriptions.is_empty() {
            hasher.update(b"subscriptions");
            hasher.update(&sum(&self.subscriptions, |key, one| {
                bytes(&(key.clone(), (**one).clone()))
            }));
        }
        if !self.limits.is_empty() {
            hasher.update(b"limits");
            hasher.update(&sum(&self.limits, |tenant, limits| {
                bytes(&(tenant.clone(), (**limits).clone()))
            }));
        }
        if !self.usage.is_empty() {
            hasher.update(b"usage");
            hasher.update(&sum(&self.usage, |tenant, usage| bytes(&(tenant.clone(), *usage))));
        }
        Digest(*hasher.finalize().as_bytes())
    }
}
