//! Amounts as people write them: money, CPU and memory. Exact, or refused.

use holdfast_proto::limits::CAP_MICROS_MAX;

/// Reads an amount of the currency into micro-units: `60`, `0.25`, at most six decimals.
///
/// # Errors
/// A text that says what is wrong and what is right.
pub fn money(text: &str) -> Result<u64, String> {
    let micros = decimal(text, 6)
        .ok_or_else(|| "an amount is a number with at most six decimals, such as 60 or 0.25".to_owned())?;
    if micros > CAP_MICROS_MAX {
        return Err(format!("an amount is at most {}", CAP_MICROS_MAX / 1_000_000));
    }
    Ok(micros)
}

/// Reads a number of cores into thousandths: `4`, `0.5`, or `500m`.
///
/// # Errors
/// A text that says what is right.
pub fn cpu(text: &str) -> Result<u32, String> {
    let milli = match text.strip_suffix('m') {
        Some(milli) => decimal(milli, 0),
        None => decimal(text, 3),
    };
    milli
        .and_then(|milli| u32::try_from(milli).ok())
        .ok_or_else(|| "CPU is a number of cores, such as 4, 0.5 or 500m".to_owned())
}

/// Reads an amount of memory into MiB: `512MiB`, `16GiB`, `1TiB`.
///
/// # Errors
/// A text that says what is right.
pub fn memory(text: &str) -> Result<u32, String> {
    let wrong = || "memory is a whole number with MiB, GiB or TiB, such as 16GiB".to_owned();
    let units = [("MiB", 1_u64), ("GiB", 1 << 10), ("TiB", 1 << 20)];
    let (number, mib) = units
        .iter()
        .find_map(|(unit, mib)| Some((text.strip_suffix(unit)?, mib)))
        .ok_or_else(wrong)?;
    let total = decimal(number, 0)
        .and_then(|number| number.checked_mul(*mib))
        .ok_or_else(wrong)?;
    u32::try_from(total).map_err(|_| wrong())
}

/// Reads a plain decimal number as a whole number of units of 10^-places; `None` when it is none, too fine or too large.
fn decimal(text: &str, places: usize) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || fraction.len() > places || text.ends_with('.') {
        return None;
    }
    let scale = 10_u64.checked_pow(u32::try_from(places).ok()?)?;
    let padded = format!("{fraction:0<places$}");
    let part = if places == 0 { 0 } else { padded.parse::<u64>().ok()? };
    whole.parse::<u64>().ok()?.checked_mul(scale)?.checked_add(part)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn money_is_exact_to_the_micro_unit() {
        for (text, micros) in [
            ("60", 60_000_000),
            ("0.25", 250_000),
            ("0.000001", 1),
            ("1.1", 1_100_000),
            ("0", 0),
            ("1000000000", CAP_MICROS_MAX),
        ] {
            assert_eq!(money(text), Ok(micros), "{text}");
        }
        for text in [
            "",
            ".",
            "1.",
            ".5",
            "-1",
            "+1",
            "1e3",
            "0.0000001",
            "1,5",
            "1000000001",
            "18446744073709551616",
            "٣",
            "NaN",
            "1_000",
        ] {
            assert!(money(text).is_err(), "{text}");
        }
    }

    #[test]
    fn machines_are_asked_for_in_units_that_cannot_be_mistaken() {
        assert_eq!((cpu("4"), cpu("0.5"), cpu("500m")), (Ok(4_000), Ok(500), Ok(500)));
        assert_eq!(
            (memory("512MiB"), memory("16GiB"), memory("1TiB")),
            (Ok(512), Ok(16_384), Ok(1 << 20))
        );
        for text in ["16", "16G", "16Gi", "16GB", "1.5GiB", "9999999999GiB", "GiB", "-1GiB"] {
            assert!(memory(text).is_err(), "{text}");
        }
        for text in ["", "m", "0.5m", "-1", "5000000", "1.0001"] {
            assert!(cpu(text).is_err(), "{text}");
        }
    }
}
