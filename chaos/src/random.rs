//! Random streams: every draw of a simulation comes from the one seed through a named stream.
//!
//! The scheduler, each host, each link and each fault own a stream of their own, so that removing one fault from a
//! plan, or adding one message to one link, leaves every other draw where it was. Without that a failing seed cannot
//! be shrunk. The one rule: a child depends on its parent's *origin* and on its name, never on how far the parent
//! has been drawn.

use std::convert::Infallible;

use rand::TryRng;

/// Weyl increment of SplitMix64 (Steele, Lea and Flood, 2014): odd, and close to 2^64 divided by the golden ratio.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mixes one word so that each input bit moves about half of the output bits (SplitMix64's finaliser).
pub(crate) const fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// One named stream of draws.
#[derive(Debug, Clone)]
pub struct Stream {
    origin: u64,
    state: u64,
}

impl Stream {
    /// The root stream of a seed.
    pub const fn seeded(seed: u64) -> Self {
        let origin = mix(seed ^ GAMMA);
        Self { origin, state: origin }
    }

    /// The child stream of this name. Two names give unrelated streams; one name gives the same stream at any time.
    pub fn child(&self, name: &str) -> Self {
        let named = name.bytes().fold(
            self.origin,
            |hash, byte| mix(hash.wrapping_add(GAMMA) ^ u64::from(byte)),
        );
        Self {
            origin: named,
            state: named,
        }
    }

    /// The child stream of a name and numbers: a link, a host, the n-th fault.
    pub fn numbered(&self, name: &str, numbers: &[u64]) -> Self {
        let named = self.child(name).origin;
        let origin = numbers
            .iter()
            .fold(named, |hash, number| mix(hash.wrapping_add(GAMMA) ^ *number));
        Self { origin, state: origin }
    }

    /// The next 64 bits.
    pub const fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GAMMA);
        mix(self.state)
    }

    /// A number below `bound`; 0 when the bound is 0. The bias of the multiply method is below 2^-32 for the small
    /// bounds of a simulation.
    pub const fn below(&mut self, bound: u64) -> u64 {
        ((self.next() as u128 * bound as u128) >> 64) as u64
    }

    /// A number in `low..=high`.
    pub const fn between(&mut self, low: u64, high: u64) -> u64 {
        assert!(low <= high, "a range runs from low to high");
        low + self.below(high - low + 1)
    }

    /// True in `parts` of 1,000 draws.
    pub const fn chance(&mut self, parts: u64) -> bool {
        self.below(1_000) < parts
    }

    /// One element, or none of an empty slice.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        let at = self.below(of.len() as u64) as usize;
        of.get(at)
    }
}

impl TryRng for Stream {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok((self.next() >> 32) as u32)
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(self.next())
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn child_does_not_depend_on_how_far_its_parent_was_drawn() {
        let fresh = Stream::seeded(7);
        let mut drawn = Stream::seeded(7);
        drawn.next();
        assert_eq!(fresh.child("link").next(), drawn.child("link").next());
    }

    #[test]
    fn names_and_numbers_tell_streams_apart() {
        let root = Stream::seeded(7);
        let mut firsts = vec![
            root.child("link").next(),
            root.child("knil").next(),
            root.numbered("link", &[1, 2]).next(),
            root.numbered("link", &[2, 1]).next(),
            Stream::seeded(8).child("link").next(),
        ];
        firsts.sort_unstable();
        firsts.dedup();
        assert_eq!(firsts.len(), 5);
    }

    #[test]
    fn draws_stay_in_their_range_and_reach_both_ends() {
        let mut stream = Stream::seeded(1);
        let drawn: Vec<u64> = (0..1_000).map(|_| stream.between(3, 6)).collect();
        assert_eq!(drawn.iter().min(), Some(&3));
        assert_eq!(drawn.iter().max(), Some(&6));
        assert_eq!(stream.below(0), 0);
        assert!(stream.pick::<u8>(&[]).is_none());
    }
}
