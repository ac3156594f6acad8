//! Faults that a build can be told to have, so that the checkers and the benches can show that they would be found.
//!
//! Only a build with the feature `planted` has them, and there only the one that `plant` names; in every other build
//! [`has`] is the constant `false` and the broken branch is not compiled in. The rule: a plant breaks one rule, at the
//! one place where the product keeps it.

/// A rule that can be broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Plant {
    /// Supervisors let the work run on when the node lease's deadline passes.
    DeadlineIgnored = 1,
}

impl Plant {
    /// Every plant.
    pub const ALL: [Self; 1] = [Self::DeadlineIgnored];

    /// Its name, as `HOLDFAST_PLANTED` gives it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::DeadlineIgnored => "deadline-ignored",
        }
    }

    /// The plant of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|plant| plant.name() == name)
    }
}

/// The variable of the environment that names the plant of a process and of those that it starts.
pub const VARIABLE: &str = "HOLDFAST_PLANTED";

#[cfg(feature = "planted")]
mod chosen {
    use std::sync::atomic::{AtomicU8, Ordering};

    use super::Plant;

    static CHOSEN: AtomicU8 = AtomicU8::new(0);

    /// Breaks one rule from now on, or none.
    pub fn plant(plant: Option<Plant>) {
        CHOSEN.store(plant.map_or(0, |plant| plant as u8), Ordering::Relaxed);
    }

    /// Whether this rule is broken.
    #[must_use]
    pub fn has(plant: Plant) -> bool {
        CHOSEN.load(Ordering::Relaxed) == plant as u8
    }

    /// The plant that was chosen.
    #[must_use]
    pub fn chosen() -> Option<Plant> {
        Plant::ALL.into_iter().find(|plant| has(*plant))
    }
}

#[cfg(feature = "planted")]
pub use chosen::{chosen, has, plant};

/// Whether this rule is broken: never, in this build.
#[cfg(not(feature = "planted"))]
#[must_use]
pub const fn has(_: Plant) -> bool {
    false
}

/// The plant that was chosen: none, in this build.
#[cfg(not(feature = "planted"))]
#[must_use]
pub const fn chosen() -> Option<Plant> {
    None
}
