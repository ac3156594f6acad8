//! Bands: states of the pool by how much their freest devices have left, so that a request looks only where it may fit.
//!
//! The pool keeps one of each; the packer reads those that a class may fit into. The one rule: a state is in the one band
//! that its free devices put it in, and a request for more devices, or for more of one, starts at a later band.

use super::WHOLE;
use super::pool::StateName;

/// Bands of states without a whole free device: by the hundreds of milli that are free on the freest.
const PARTS: usize = 10;

/// All bands: after those, one for each power of two of whole free devices.
pub(super) const BANDS: usize = PARTS + 5;

/// What was told is remembered for so many times the number of living states, and this many.
const LOG_MIN: usize = 4096;

/// The states of one band.
#[derive(Debug, Clone, Default)]
pub(super) struct Band {
    /// Those that live, in no order.
    pub(super) living: Vec<StateName>,
    /// States that came to life or were given a lower first node, in this order, from `log_from` on.
    log: Vec<StateName>,
    log_from: u64,
}

/// The band for states of which so much is free on the freest device, and so many devices are whole.
pub(super) fn of_state(largest: u16, whole: usize) -> usize {
    match largest >= WHOLE {
        false => usize::from(largest / (WHOLE / 10)),
        true => PARTS + power(whole),
    }
}

/// The first band in which a request for so many devices, with so much of each, may fit.
pub(super) fn of_request(devices: u16, milli: u16) -> usize {
    match milli >= WHOLE {
        false => usize::from(milli / (WHOLE / 10)),
        true => PARTS + power(devices.into()),
    }
}

fn power(whole: usize) -> usize {
    let power = usize::BITS - 1 - whole.max(1).leading_zeros();
    (power as usize).min(BANDS - PARTS - 1)
}

impl Band {
    /// Notes that a state has come to life, or that a lower node has come into it.
    pub(super) fn tell(&mut self, name: StateName) {
        if self.log.len() > LOG_MIN + 2 * self.living.len() {
            let old = self.log.len() / 2;
            self.log.drain(..old);
            self.log_from += old as u64;
        }
        self.log.push(name);
    }

    /// Where the log ends now.
    pub(super) fn log_end(&self) -> u64 {
        self.log_from + self.log.len() as u64
    }

    /// What was told since `from`; none when that is too long ago.
    pub(super) fn told_since(&self, from: u64) -> Option<&[StateName]> {
        let skip = from.checked_sub(self.log_from)?;
        Some(&self.log[usize::try_from(skip).ok()?..])
    }
}

#[cfg(test)]
impl Band {
    pub(super) fn log_len(&self) -> usize {
        self.log.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_fits_into_no_band_before_its_first() {
        let free: [&[u16]; 7] = [
            &[],
            &[0, 0],
            &[90],
            &[999, 100],
            &[1000],
            &[1000, 1000, 1000, 999],
            &[1000; 40],
        ];
        for free in free {
            let largest = free.iter().copied().max().unwrap_or(0);
            let band = of_state(largest, free.iter().filter(|free| **free == WHOLE).count());
            for devices in 1..=64_u16 {
                for milli in [1, 90, 99, 100, 101, 500, 999, 1000] {
                    let fits = free.iter().filter(|free| **free >= milli).count() >= devices.into();
                    assert!(
                        !fits || of_request(devices, milli) <= band,
                        "{devices} of {milli} in {free:?}"
                    );
                }
            }
            assert!(band < BANDS);
        }
    }
}
