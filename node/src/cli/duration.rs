//! Durations as people write them: `2h`, `1h30m`, `90s`, `250ms`.

use holdfast_proto::time::Span;

const UNITS: [(&str, u64); 5] = [
    ("ms", 1),
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1_000),
];

/// Reads a duration: whole numbers with units, each unit once, biggest first or not.
///
/// # Errors
/// A text that says what is wrong and what is right.
pub fn parse(text: &str) -> Result<Span, String> {
    let wrong = |why: &str| {
        Err(format!(
            "{why}; write whole numbers with units (d, h, m, s, ms), such as 2h or 1h30m"
        ))
    };
    let mut rest = text;
    let mut total = 0_u64;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, tail) = rest.split_at(digits);
        let letters = tail
            .char_indices()
            .find(|(_, c)| c.is_ascii_digit())
            .map_or(tail.len(), |(at, _)| at);
        let (unit, next) = tail.split_at(letters);
        if number.is_empty() {
            return wrong("a duration begins with a number");
        }
        let Some((_, ms)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            return wrong(if unit.is_empty() {
                "the duration has no unit"
            } else {
                "the duration has a unit that is not known"
            });
        };
        let part = number.parse::<u64>().ok().and_then(|number| number.checked_mul(*ms));
        match part.and_then(|part| total.checked_add(part)) {
            Some(sum) => total = sum,
            None => return wrong("the duration is longer than can be counted"),
        }
        rest = next;
    }
    if text.is_empty() {
        wrong("the duration is empty")
    } else {
        Ok(Span(total))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn durations_read_as_they_are_written() {
        for (text, ms) in [
            ("2h", 7_200_000),
            ("1h30m", 5_400_000),
            ("90s", 90_000),
            ("250ms", 250),
            ("1d", 86_400_000),
            ("0s", 0),
            ("1m1ms", 60_001),
        ] {
            assert_eq!(parse(text), Ok(Span(ms)), "{text}");
        }
    }

    #[test]
    fn what_a_span_prints_reads_back() {
        for ms in [1, 999, 1_000, 61_001, 7_200_000, 90_061_001] {
            assert_eq!(parse(&Span(ms).to_string()), Ok(Span(ms)));
        }
    }

    #[test]
    fn what_is_no_duration_is_told_without_a_panic() {
        for text in [
            "",
            "5",
            "5µ",
            "µ",
            "h",
            "-1h",
            "1.5h",
            "2 h",
            "1h2",
            "٣h",
            "5\u{1F600}",
            "1h\0",
            "9999999999999999999999h",
            "18446744073709551615h",
        ] {
            let told = parse(text).unwrap_err();
            assert!(told.contains("such as 2h"), "{text:?}: {told}");
        }
    }
}
