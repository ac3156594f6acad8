//! Limits of single values: texts, names, numbers, lists. What is refused here could hurt a screen, a path or a sum.

use std::fmt::Display;

use holdfast_proto::condition::{CONDITIONS_MAX, Condition, LEVEL, PREFERRED_MAX, WEIGHT_MAX, Weight};
use holdfast_proto::id::Name;
use holdfast_proto::lease::{ResourceRequest, Terms};
use holdfast_proto::limits::{
    CAP_MICROS_MAX, DEVICE_MILLI, LEASE_DEVICES_MAX, LEASE_DURATION_MS_MAX, LEASE_DURATION_MS_MIN, REQUEST_MODELS_MAX,
    TEXT_BYTES_MAX, WORKLOAD_BYTES_MAX, WORKLOAD_WORDS_MAX,
};
use holdfast_proto::node::NodeAddress;
use holdfast_proto::rejection::Rejection;
use holdfast_proto::time::Span;
use holdfast_proto::workload::Workload;

/// Characters of a refused value that are shown back.
const SHOWN_CHARS: usize = 64;

/// Most CPU for one device, a thousand cores in thousandths.
const CPU_MILLI_PER_DEVICE_MAX: u32 = 1_000_000;

/// Most memory for one device, 16 TiB in MiB.
const MEMORY_MIB_PER_DEVICE_MAX: u32 = 16 * 1024 * 1024;

/// Longest time between SIGTERM and SIGKILL, 1 h.
const GRACE_MS_MAX: u64 = 3_600_000;

/// Refuses a value; what is shown of it is short and free of control characters.
pub(super) fn out_of_range(field: &str, given: impl Display, allowed: &str) -> Rejection {
    let given = given.to_string();
    let plain = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    let mut shown: String = given.chars().take(SHOWN_CHARS).map(plain).collect();
    if given.chars().nth(SHOWN_CHARS).is_some() {
        shown.push('…');
    }
    if shown.is_empty() {
        shown.push_str("empty");
    }
    Rejection::OutOfRange {
        field: field.to_owned(),
        given: shown,
        allowed: allowed.to_owned(),
    }
}

/// Checks that `given` lies in `range`.
pub(super) fn within<T: PartialOrd + Display>(
    field: &str,
    given: T,
    range: std::ops::RangeInclusive<T>,
) -> Result<(), Rejection> {
    if range.contains(&given) {
        return Ok(());
    }
    let allowed = match range.start() == range.end() {
        true => range.start().to_string(),
        false => format!("{} to {}", range.start(), range.end()),
    };
    Err(out_of_range(field, given, &allowed))
}

/// Checks a free text: bounded, and without control characters, which could rewrite a screen.
pub(super) fn text(field: &str, given: &str) -> Result<(), Rejection> {
    if given.len() > TEXT_BYTES_MAX {
        return Err(out_of_range(field, given, &format!("at most {TEXT_BYTES_MAX} bytes")));
    }
    // Plain ASCII is nearly all there is, and is told at a fraction of the cost of looking at each character.
    let plain = given
        .bytes()
        .fold(true, |plain, byte| plain & matches!(byte, 0x20..=0x7e));
    match !plain && given.chars().any(char::is_control) {
        true => Err(out_of_range(field, given, "free of control characters")),
        false => Ok(()),
    }
}

/// Checks a name. Names made by the edge are right; a forged frame's are not.
pub(super) fn name(field: &str, given: &Name) -> Result<(), Rejection> {
    match given.is_valid() {
        true => Ok(()),
        false => Err(out_of_range(field, given, "1 to 63 of a-z, 0-9 and inner hyphens")),
    }
}

/// Checks a list of names: short, each right, none twice.
fn names(field: &str, given: &[Name]) -> Result<(), Rejection> {
    if given.len() > REQUEST_MODELS_MAX {
        let allowed = format!("at most {REQUEST_MODELS_MAX} names");
        return Err(out_of_range(field, given.len(), &allowed));
    }
    for (place, one) in given.iter().enumerate() {
        name(field, one)?;
        if given[..place].contains(one) {
            return Err(out_of_range(field, one, "named once"));
        }
    }
    Ok(())
}

/// Checks where a node says that it is reached.
pub(super) fn address(address: &NodeAddress) -> Result<(), Rejection> {
    let host = address.host.as_str();
    let unspecified = ["", "0.0.0.0", "::", "[::]", "*"].contains(&host);
    let plain = host.len() <= 255 && host.bytes().all(|byte| byte.is_ascii_graphic());
    if unspecified || !plain {
        let allowed = "a host name or address that other nodes can reach";
        return Err(out_of_range("address", host, allowed));
    }
    for (field, port) in [
        ("main port", address.main_port),
        ("lease port", address.lease_port),
        ("bulk port", address.bulk_port),
    ] {
        within(field, port, 1..=u16::MAX)?;
    }
    Ok(())
}

/// Checks a resource request on its own, before the cluster is looked at.
pub(super) fn request(request: &ResourceRequest) -> Result<(), Rejection> {
    within("devices", request.devices_min, 1..=LEASE_DEVICES_MAX)?;
    within(
        "devices at most",
        request.devices_max,
        request.devices_min..=LEASE_DEVICES_MAX,
    )?;
    within(
        "cpu for each device",
        request.cpu_milli_per_device,
        0..=CPU_MILLI_PER_DEVICE_MAX,
    )?;
    let memory = request.memory_mib_per_device;
    within("memory for each device", memory, 0..=MEMORY_MIB_PER_DEVICE_MAX)?;
    names("models", &request.models)?;
    names("zones", &request.zones)
}

/// Checks that the rules that something needs are in force.
pub(super) fn level(present: u32, needed: u32, what: &str) -> Result<(), Rejection> {
    match present < needed {
        true => Err(out_of_range(
            &format!("level of the rules for {what}"),
            present,
            &format!("{needed}: every node must run a version that knows them"),
        )),
        false => Ok(()),
    }
}

/// Checks conditions on their own, and against the request that they belong to.
pub(super) fn conditions(level: u32, request: &ResourceRequest, conditions: &[Condition]) -> Result<(), Rejection> {
    self::level(level, LEVEL, "conditions")?;
    within("number of conditions", conditions.len(), 1..=CONDITIONS_MAX)?;
    for (place, condition) in conditions.iter().enumerate() {
        let same = |other: &Condition| std::mem::discriminant(other) == std::mem::discriminant(condition);
        if conditions[..place].iter().any(same) {
            return Err(out_of_range("conditions", "the same one twice", "each named once"));
        }
        match condition {
            Condition::Share(share) => {
                within("share in thousandths of a device", share.milli, 1..=DEVICE_MILLI - 1)?;
                within("devices of which a share is asked", request.devices_max, 1..=1)?;
            }
            Condition::Prefer(prefer) => {
                weights("model", &prefer.models, &request.models)?;
                weights("zone", &prefer.zones, &request.zones)?;
                let named = prefer.models.len() + prefer.zones.len();
                within("number of preferences", named, 1..=2 * PREFERRED_MAX)?;
            }
        }
    }
    Ok(())
}

/// Checks what is preferred: each once, within bounds, and nothing that the request rules out.
fn weights(what: &str, weights: &[Weight], accepted: &[Name]) -> Result<(), Rejection> {
    within(
        &format!("number of preferred {what}s"),
        weights.len(),
        0..=PREFERRED_MAX,
    )?;
    for (place, weight) in weights.iter().enumerate() {
        name(&format!("preferred {what}"), &weight.name)?;
        within(
            &format!("weight of {what} {}", weight.name),
            weight.weight,
            1..=WEIGHT_MAX,
        )?;
        if weights[..place].iter().any(|other| other.name == weight.name) {
            return Err(out_of_range(
                &format!("preferred {what}"),
                &weight.name,
                "each named once",
            ));
        }
        if !accepted.is_empty() && !accepted.contains(&weight.name) {
            return Err(out_of_range(
                &format!("preferred {what}"),
                &weight.name,
                &format!("one that the request accepts: {}", listed(accepted)),
            ));
        }
    }
    Ok(())
}

fn listed(names: &[Name]) -> String {
    names.iter().map(Name::as_str).collect::<Vec<_>>().join(", ")
}

/// Checks terms on their own.
pub(super) fn terms(terms: &Terms) -> Result<(), Rejection> {
    duration(terms.duration)?;
    if let Some(cap) = terms.cap_micros {
        within("cap in micro-units", cap, 1..=CAP_MICROS_MAX)?;
    }
    match terms.grace.0 <= GRACE_MS_MAX {
        true => Ok(()),
        false => Err(out_of_range("grace", terms.grace, "at most 1h")),
    }
}

/// Checks the length of a lease.
pub(super) fn duration(duration: Span) -> Result<(), Rejection> {
    if (LEASE_DURATION_MS_MIN..=LEASE_DURATION_MS_MAX).contains(&duration.0) {
        return Ok(());
    }
    let allowed = format!("{} to {}", Span(LEASE_DURATION_MS_MIN), Span(LEASE_DURATION_MS_MAX));
    Err(out_of_range("duration", duration, &allowed))
}

/// Checks what is to run: it must fit an argument list, and no word of it may end early at a NUL.
pub(super) fn workload(workload: &Workload) -> Result<(), Rejection> {
    let words = workload.command.len() + workload.environment.len();
    within("arguments and environment entries", words, 1..=WORKLOAD_WORDS_MAX)?;
    let environment = workload
        .environment
        .iter()
        .map(|(key, value)| key.len() + value.len() + 2);
    let bytes = workload
        .command
        .iter()
        .map(|word| word.len() + 1)
        .chain(environment)
        .sum();
    within("bytes of arguments and environment", bytes, 0..=WORKLOAD_BYTES_MAX)?;
    if workload.command.first().is_none_or(String::is_empty) {
        return Err(out_of_range("command", "empty", "a program and its arguments"));
    }
    for word in &workload.command {
        without_nul("command", word)?;
    }
    for (key, value) in &workload.environment {
        without_nul("environment", key)?;
        without_nul("environment", value)?;
        if key.is_empty() || key.contains('=') {
            return Err(out_of_range("environment", key, "a name without `=`, and a value"));
        }
    }
    if let Some(folder) = &workload.folder {
        without_nul("folder", folder)?;
        if !folder.starts_with('/') || folder.len() > TEXT_BYTES_MAX {
            return Err(out_of_range("folder", folder, "an absolute path on the node"));
        }
    }
    match &workload.image {
        Some(image) => Err(out_of_range(
            "image",
            image,
            "absent: this version runs on the node's own files",
        )),
        None => Ok(()),
    }
}

fn without_nul(field: &str, word: &str) -> Result<(), Rejection> {
    match word.contains('\0') {
        true => Err(out_of_range(field, word, "free of NUL")),
        false => Ok(()),
    }
}
