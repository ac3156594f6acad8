//! Shares: who holds which part of a device, and how much of it is left.
//!
//! A lease holds all its devices whole, or the same part of each; which, its conditions say, so it is written down once
//! and not in every placement. Rules, scheduler and executor ask here. The one rule: the parts of one device add up to
//! the whole at most, and a device that somebody holds whole has no parts.

use std::sync::Arc;

use holdfast_proto::condition::{self, Condition};
use holdfast_proto::device::Grade;
use holdfast_proto::id::{DeviceId, LeaseId};
use holdfast_proto::limits::DEVICE_MILLI;

use super::state::{Holder, Index, Lease, Sharer, Slot, State};

impl Sharer {
    /// Returns the generation of the lease's placement that holds the part.
    #[must_use]
    pub fn holder(&self) -> Holder {
        Holder {
            lease: self.lease,
            epoch: self.epoch,
        }
    }
}

impl State {
    /// Returns what a lease was requested with beyond its resource request.
    #[must_use]
    pub fn conditions_of(&self, lease: LeaseId) -> &[Condition] {
        self.conditions.get(&lease).map_or(&[], |conditions| conditions)
    }

    /// Returns how much of each of its devices a lease holds, in thousandths.
    #[must_use]
    pub fn milli_of(&self, lease: LeaseId) -> u16 {
        condition::milli(self.conditions_of(lease))
    }

    /// Returns the leases that hold parts of a device, in order of their ids.
    #[must_use]
    pub fn sharers(&self, device: DeviceId) -> &[Sharer] {
        self.index.sharers.get(&device).map_or(&[], |sharers| sharers)
    }

    /// Returns everyone who holds the device or a part of it.
    #[must_use]
    pub fn holders(&self, device: DeviceId) -> Vec<Holder> {
        let whole = self.devices.get(&device).and_then(|slot| slot.holder);
        let parts = self.sharers(device).iter().map(Sharer::holder);
        whole.into_iter().chain(parts).collect()
    }

    /// Returns how much of a device `lease` could hold: what others do not, in thousandths.
    #[must_use]
    pub fn milli_free(&self, slot: &Slot, lease: LeaseId) -> u16 {
        if slot.holder.is_some_and(|holder| holder.lease != lease) {
            return 0;
        }
        let others = self
            .sharers(slot.device.id)
            .iter()
            .filter(|sharer| sharer.lease != lease);
        others.fold(DEVICE_MILLI, |free, sharer| free.saturating_sub(sharer.milli))
    }

    /// Reports whether anyone holds the device or a part of it.
    #[must_use]
    pub fn is_held(&self, slot: &Slot) -> bool {
        slot.holder.is_some() || !self.sharers(slot.device.id).is_empty()
    }

    /// Reports whether the whole device may be granted, as far as it is asked alone.
    #[must_use]
    pub fn is_free(&self, slot: &Slot) -> bool {
        slot.grade == Grade::Healthy && !self.is_held(slot)
    }

    /// Reports whether this generation of a lease holds the device or a part of it.
    pub(super) fn holds(&self, device: DeviceId, holder: Holder) -> bool {
        let part = |sharer: &Sharer| sharer.holder() == holder;
        let whole = self
            .devices
            .get(&device)
            .is_some_and(|slot| slot.holder == Some(holder));
        whole || self.sharers(device).iter().any(part)
    }

    /// Notes which generation of `lease` holds the device, or its part of it, from now on.
    pub(super) fn set_holder(&mut self, device: DeviceId, lease: LeaseId, holder: Option<Holder>) {
        let milli = self.milli_of(lease);
        if milli < DEVICE_MILLI {
            self.index.set_part(device, milli, lease, holder);
        } else if let Some(slot) = self.devices.get_mut(&device) {
            Arc::make_mut(slot).holder = holder;
        }
    }
}

impl Index {
    /// Enters what a lease holds, if it holds parts of devices: a later generation takes over from an earlier one.
    pub(super) fn share(&mut self, milli: u16, lease: &Lease) {
        if milli == DEVICE_MILLI {
            return;
        }
        for placement in lease.placements() {
            let members = placement.members.iter().filter(|member| !member.released);
            let holder = Holder {
                lease: lease.id(),
                epoch: placement.epoch,
            };
            for device in members.flat_map(|member| &member.allocation.devices) {
                self.set_part(*device, milli, holder.lease, Some(holder));
            }
        }
    }

    fn set_part(&mut self, device: DeviceId, milli: u16, lease: LeaseId, holder: Option<Holder>) {
        let mut parts = self
            .sharers
            .get(&device)
            .map_or_else(Vec::new, |parts| (**parts).clone());
        parts.retain(|part| part.lease != lease);
        parts.extend(holder.map(|Holder { lease, epoch }| Sharer { lease, epoch, milli }));
        parts.sort_unstable();
        match parts.is_empty() {
            true => drop(self.sharers.remove(&device)),
            false => drop(self.sharers.insert(device, Arc::new(parts))),
        }
    }
}
