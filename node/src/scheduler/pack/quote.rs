//! Quotes: what it costs the pool to place a request on a node in some state.
//!
//! The pool keeps a [`Glance`] for each state, all of them close together, because most of the packer's time is spent
//! looking over them. The one rule: a quote depends on the state, the request and the prices alone.

use super::price::{MILLI, Prices};
use super::{Group, Request, WHOLE};

/// Devices whose free milli are kept in the glance itself.
const CLOSE: usize = 8;

/// What is looked at of a state. One cache line: a class that comes seldom looks over thousands.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
pub(super) struct Glance {
    /// Rises each time that the slot is given to another state.
    pub(super) generation: u32,
    pub(super) kind: u32,
    pub(super) cpu_milli: u32,
    /// The lowest node in it.
    pub(super) first: u32,
    /// Most milli free on one device.
    largest: u16,
    /// Free milli of all devices.
    free_milli: u32,
    pub(super) alive: bool,
    devices: u16,
    close: [u16; CLOSE],
    /// By which prices it was valued.
    epoch: u32,
    usable: i64,
    stranded: i64,
}

const _: () = assert!(size_of::<Glance>() == 64);

/// What one placement takes, and what it costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Quote {
    pub(super) cost: i64,
    /// Group, and what is free on the device taken; for several devices, the group alone.
    pub(super) group: u8,
    pub(super) residual: u16,
}

impl Glance {
    /// A state that no node is in yet.
    pub(super) fn new(kind: u32, cpu_milli: u32, free: &[u16]) -> Self {
        let mut close = [0; CLOSE];
        if free.len() <= CLOSE {
            close[..free.len()].copy_from_slice(free);
        }
        Self {
            generation: 0,
            kind,
            cpu_milli,
            first: u32::MAX,
            largest: free.iter().copied().max().unwrap_or(0),
            free_milli: free.iter().copied().map(u32::from).sum(),
            alive: true,
            devices: u16::try_from(free.len()).unwrap_or(u16::MAX),
            close,
            epoch: 0,
            usable: 0,
            stranded: 0,
        }
    }

    /// Whether a request fits as far as CPU and the freest device go.
    pub(super) fn may_fit(&self, request: &Request) -> bool {
        self.cpu_milli >= request.cpu_milli && self.largest >= request.milli
    }

    /// What decides between states in which a request costs the same: the fuller node goes first, by the share that is
    /// free in so many parts; with none, by the devices that are free.
    pub(super) fn fullness(&self, parts: u16) -> u16 {
        let all = u32::from(self.devices) * u32::from(WHOLE);
        let free = match parts {
            0 => Some(self.free_milli / u32::from(WHOLE)),
            parts => self.free_milli.saturating_mul(parts.into()).checked_div(all),
        };
        u16::try_from(free.unwrap_or(0)).unwrap_or(u16::MAX)
    }

    /// Whether what is free on each device is kept here.
    pub(super) fn is_close(&self) -> bool {
        usize::from(self.devices) <= CLOSE
    }

    /// What is free on each device: here, or where `far` says.
    fn free<'a>(&'a self, far: &'a [u16]) -> &'a [u16] {
        match self.is_close() {
            true => &self.close[..usize::from(self.devices)],
            false => far,
        }
    }

    /// Values the state by the prices of an epoch, once.
    pub(super) fn value(&mut self, far: &[u16], prices: &Prices, epoch: u32) {
        if self.epoch == epoch {
            return;
        }
        let worth = |residual: &u16| i64::from(*residual) * MILLI - prices.waste(*residual);
        self.usable = self.free(far).iter().map(worth).sum();
        self.stranded = prices.stranded(self.usable, self.cpu_milli);
        self.epoch = epoch;
    }

    /// What it costs to place a request here, at the least; `None` when it does not fit, or costs more than `most`.
    pub(super) fn quote(
        &self,
        far: &[u16],
        (groups, able): (&[Group], u64),
        request: &Request,
        prices: &Prices,
        most: i64,
    ) -> Option<Quote> {
        let cpu = self.cpu_milli.checked_sub(request.cpu_milli)?;
        if request.devices == 0 {
            return Some(Quote {
                cost: prices.stranded(self.usable, cpu) - self.stranded,
                group: 0,
                residual: 0,
            });
        }
        let milli = i64::from(request.devices) * i64::from(request.milli);
        let mut best: Option<Quote> = None;
        let mut rest = self.free(far);
        for (number, group) in (0_u8..).zip(groups) {
            let (free, after) = rest.split_at(group.devices.into());
            rest = after;
            if able >> number & 1 == 0 {
                continue;
            }
            let scarce = prices.scarcity(group.model) * milli;
            ways(free, request, prices, |residual, waste| {
                // Nothing strands less than nothing: most states are seen to cost more than the best without more work.
                let least = waste - self.stranded + scarce;
                if least > most {
                    return;
                }
                let cost = least + prices.stranded(self.usable - milli * MILLI - waste, cpu);
                // Of equal costs the later way: less is free on that device.
                if best.is_none_or(|best| cost <= best.cost) {
                    best = Some(Quote {
                        cost,
                        group: number,
                        residual,
                    });
                }
            });
        }
        best
    }
}

/// The ways to take a request from one group: what is free on the device taken, and by how much waste grows.
fn ways(free: &[u16], request: &Request, prices: &Prices, mut each: impl FnMut(u16, i64)) {
    let milli = request.milli;
    let grows = |residual: u16| prices.waste(residual - milli) - prices.waste(residual);
    if request.devices > 1 {
        if let Some(waste) = several(free, milli, request.devices.into(), &grows) {
            each(0, waste);
        }
        return;
    }
    let mut last = None;
    for residual in free.iter().copied().take_while(|residual| *residual >= milli) {
        if last.replace(residual) != Some(residual) {
            each(residual, grows(residual));
        }
    }
}

/// By how much waste grows when the devices that cost least are taken.
fn several(free: &[u16], milli: u16, devices: usize, grows: &impl Fn(u16) -> i64) -> Option<i64> {
    if *free.get(devices - 1)? < milli {
        return None;
    }
    if milli == WHOLE {
        return Some(grows(WHOLE) * i64::try_from(devices).unwrap_or(i64::MAX));
    }
    let fits = free.iter().take_while(|free| **free >= milli);
    let mut each: Vec<i64> = fits.map(|free| grows(*free)).collect();
    each.sort_unstable();
    Some(each[..devices].iter().sum())
}
