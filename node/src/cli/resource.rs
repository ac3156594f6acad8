//! Devices as people ask for them: `8xh100`, `4x(a100|h100)`, `2xany`, `1xa100:40%`.

use std::str::FromStr;

use holdfast_proto::id::Name;
use holdfast_proto::limits::LEASE_DEVICES_MAX;

/// How many devices, of which models.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Devices {
    /// How many.
    pub count: u32,
    /// Accepted models, best first; empty accepts any.
    pub models: Vec<Name>,
    /// How much of the one device, in thousandths; all of it when absent.
    pub share_milli: Option<u16>,
}

impl FromStr for Devices {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(meant) = meant(text) {
            return Err(wrong(
                text,
                text,
                &format!("an x is missing between count and model: {meant}"),
            ));
        }
        let (count, models) = text
            .split_once('x')
            .ok_or_else(|| wrong(text, text, "the devices are not a count and a model"))?;
        let range = || wrong(text, count, &format!("the count must be 1 to {LEASE_DEVICES_MAX}"));
        if count.is_empty() || !count.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(range());
        }
        let count: u32 = count.parse().map_err(|_| range())?;
        if count == 0 || count > LEASE_DEVICES_MAX {
            return Err(range());
        }
        let (models, share_milli) = match models.split_once(':') {
            Some((models, share)) => (models, Some(part(text, count, share)?)),
            None => (models, None),
        };
        let inner = match models.strip_prefix('(') {
            Some(open) => open
                .strip_suffix(')')
                .ok_or_else(|| wrong(text, models, "the bracket is not closed"))?,
            None => models,
        };
        if inner == "any" {
            return Ok(Self {
                count,
                models: Vec::new(),
                share_milli,
            });
        }
        let mut models = Vec::new();
        for word in inner.split(['|', ',']) {
            let name: Name = word
                .to_ascii_lowercase()
                .parse()
                .map_err(|error| wrong(text, word, &format!("{error}")))?;
            if models.contains(&name) {
                return Err(wrong(text, word, &format!("{name} is named twice")));
            }
            models.push(name);
        }
        Ok(Self {
            count,
            models,
            share_milli,
        })
    }
}

/// Reads `40%` or `12.5%`, a part of one device, in thousandths.
fn part(text: &str, count: u32, share: &str) -> Result<u16, String> {
    if count != 1 {
        return Err(wrong(text, share, "only one device can be shared"));
    }
    let range = || wrong(text, share, "a share is 0.1% to 99.9%, such as 40%");
    let (whole, tenth) = share
        .strip_suffix('%')
        .map(|share| share.split_once('.').unwrap_or((share, "0")))
        .ok_or_else(range)?;
    let number = |digits: &str, most: usize| match digits.bytes().all(|byte| byte.is_ascii_digit()) {
        true if (1..=most).contains(&digits.len()) => digits.parse::<u16>().map_err(|_| range()),
        _ => Err(range()),
    };
    match number(whole, 2)? * 10 + number(tenth, 1)? {
        0 => Err(range()),
        milli => Ok(milli),
    }
}

/// Thousandths of a device as they are written: `40%`, `12.5%`.
pub fn percent(milli: u16) -> String {
    match milli % 10 {
        0 => format!("{}%", milli / 10),
        tenth => format!("{}.{tenth}%", milli / 10),
    }
}

/// What was meant by a count and a model that stand together: 8h100.
fn meant(text: &str) -> Option<String> {
    let (count, model) = text.split_at(text.bytes().take_while(u8::is_ascii_digit).count());
    let begins = model.chars().next()?;
    (!count.is_empty() && begins.is_ascii_alphabetic() && begins != 'x' && model.parse::<Name>().is_ok())
        .then(|| format!("{count}x{model}"))
}

/// What is wrong with `part`, a piece of `text`, and at which character it begins.
fn wrong(text: &str, part: &str, why: &str) -> String {
    let before = (part.as_ptr() as usize).saturating_sub(text.as_ptr() as usize);
    let at = text.get(..before).map_or(0, |before| before.chars().count()) + 1;
    format!(
        "at character {at}: {why}; write a count, an x and models, such as 8xh100, '4x(a100|h100)', 2xany or 1xa100:40%"
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn read(text: &str) -> Result<(u32, Vec<String>), String> {
        text.parse()
            .map(|devices: Devices| (devices.count, devices.models.iter().map(ToString::to_string).collect()))
    }

    #[test]
    fn devices_read_as_they_are_written() {
        for (text, count, models) in [
            ("8xh100", 8, vec!["h100"]),
            ("1xH100", 1, vec!["h100"]),
            ("4x(a100|h100)", 4, vec!["a100", "h100"]),
            ("4xa100,h100", 4, vec!["a100", "h100"]),
            ("2xany", 2, vec![]),
            ("1xrtx-4090", 1, vec!["rtx-4090"]),
            ("1024xany", 1024, vec![]),
        ] {
            assert_eq!(
                read(text),
                Ok((count, models.into_iter().map(str::to_owned).collect())),
                "{text}"
            );
        }
    }

    #[test]
    fn a_part_of_a_device_reads_in_per_cent() {
        for (text, milli) in [
            ("1xa100:40%", 400),
            ("1xany:12.5%", 125),
            ("1x(a100|h100):0.1%", 1),
            ("1xh100:99.9%", 999),
        ] {
            let devices: Devices = text.parse().unwrap();
            assert_eq!((devices.count, devices.share_milli), (1, Some(milli)), "{text}");
            assert!(text.ends_with(&percent(milli)));
        }
    }

    #[test]
    fn a_mistake_is_told_with_its_place() {
        for (text, told) in [
            ("h100", "at character 1: the devices are not a count and a model"),
            (
                "8h100",
                "at character 1: an x is missing between count and model: 8xh100;",
            ),
            (
                "1rtx4090",
                "at character 1: an x is missing between count and model: 1xrtx4090;",
            ),
            ("0xh100", "at character 1: the count must be 1 to 1024"),
            ("4x(a100|h100", "at character 3: the bracket is not closed"),
            ("4x(a100|h_100)", "at character 9: "),
            ("4x(a100|H100|h100)", "at character 14: h100 is named twice"),
            ("8xa||b", "at character 5: "),
            ("2xa100:40%", "at character 8: only one device can be shared"),
            ("1xa100:", "at character 8: a share is 0.1% to 99.9%"),
            ("1xa100:40", "at character 8: a share is 0.1% to 99.9%"),
            ("1xa100:0%", "at character 8: a share is 0.1% to 99.9%"),
            ("1xa100:0.0%", "at character 8: a share is 0.1% to 99.9%"),
            ("1xa100:100%", "at character 8: a share is 0.1% to 99.9%"),
            ("1xa100:-4%", "at character 8: a share is 0.1% to 99.9%"),
            ("1xa100:4.25%", "at character 8: a share is 0.1% to 99.9%"),
            ("1xa100:99999999%", "at character 8: a share is 0.1% to 99.9%"),
            ("1xa_100:40%", "at character 3: "),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.starts_with(told), "{text}: {error}");
        }
    }

    #[test]
    fn what_is_out_of_range_or_no_request_is_told() {
        for text in [
            "0xh100",
            "1025xany",
            "2147483648xany",
            "4294967296xany",
            "9223372036854775807xany",
            "18446744073709551616xany",
            "-1xany",
            "+1xany",
            "xany",
        ] {
            assert!(read(text).unwrap_err().contains("1 to 1024"), "{text}");
        }
        for text in [
            "",
            "8",
            "h100",
            "8xh100\0",
            "8x\u{1b}[2J",
            "8x(a100|h100",
            "8x",
            "8xa||b",
            "8xä",
            &format!("1x{}", "a".repeat(10_000)),
        ] {
            let told = read(text).unwrap_err();
            assert!(
                told.contains("such as 8xh100") && !told.contains(['\0', '\u{1b}']) && told.len() < 400,
                "{text:?}: {told}"
            );
        }
    }
}
