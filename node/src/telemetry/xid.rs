//! What the driver's fault codes (Xids) mean for a card.
//!
//! `health` asks for each announced fault. The table follows NVIDIA's Xid catalogue (its recommended immediate
//! action). The rule kept here: a fault of the application is not held against the card.

/// What to do about a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XidClass {
    /// The application's own fault, or contained in it: the card stays in use.
    Application,
    /// For information.
    Informational,
    /// The links between cards failed: no new work until someone has looked.
    Link,
    /// The card must be reset before it can be trusted.
    Reset,
    /// The card has fallen off the bus.
    Lost,
    /// Not in the catalogue: no new work until someone has looked.
    Unknown,
}

const APPLICATION: &[u32] = &[8, 13, 31, 32, 39, 40, 41, 68, 69, 94];
const INFORMATIONAL: &[u32] = &[37, 38, 43, 44, 45, 63, 92, 121, 137, 154, 160, 161];
const LINK: &[u32] = &[74, 144, 145, 149, 150];
const RESET: &[u32] = &[
    46, 48, 54, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 151, 155, 156, 158,
];
const LOST: u32 = 79;

/// The class of a code.
pub fn class_of(xid: u32) -> XidClass {
    match xid {
        LOST => XidClass::Lost,
        _ if APPLICATION.contains(&xid) => XidClass::Application,
        _ if INFORMATIONAL.contains(&xid) => XidClass::Informational,
        _ if LINK.contains(&xid) => XidClass::Link,
        _ if RESET.contains(&xid) => XidClass::Reset,
        _ => XidClass::Unknown,
    }
}

/// Whether the code is in the table; others share one label in metrics, because labels come from closed sets.
pub fn is_known(xid: u32) -> bool {
    class_of(xid) != XidClass::Unknown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_code_is_in_two_classes() {
        let mut all: Vec<u32> = [APPLICATION, INFORMATIONAL, LINK, RESET, &[LOST]].concat();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn an_application_fault_is_not_held_against_the_card() {
        assert_eq!(class_of(13), XidClass::Application);
        assert_eq!(class_of(48), XidClass::Reset);
        assert_eq!(class_of(79), XidClass::Lost);
        assert_eq!(class_of(9999), XidClass::Unknown);
    }
}
