//! What is to happen to simulated cards, and when: the text form that people, tests and the fault runner write.
//!
//! One action a line: `TIME gpuSLOT ACTION [VALUE]`, for example `10s gpu3 xid 79`. `#` starts a comment. Times count
//! from the simulator's start. The rule kept here: a script is checked whole before any of it happens, and an error
//! names the line.

use std::str::FromStr;

/// What happens to one card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// `temperature C`: the core is held at this temperature.
    Temperature(i32),
    /// `cool`: the temperature follows the load again.
    Cool,
    /// `ecc-single N`: so many corrected errors more.
    EccSingle(u32),
    /// `ecc-double N`: so many uncorrected errors more.
    EccDouble(u32),
    /// `xid CODE`: the driver announces a fault.
    Xid(u32),
    /// `remap-pending`: a row remap waits for a reset.
    RemapPending,
    /// `remap-failed`: a row remap failed.
    RemapFailed,
    /// `pcie-replays N`: so many replays more.
    PcieReplays(u32),
    /// `nvlink-errors N`: so many CRC errors more.
    NvlinkErrors(u32),
    /// `throttle MASK`: clocks are held down for these reasons; 0 ends it.
    Throttle(u64),
    /// `leak MIB`: memory stays in use after the work has ended; 0 ends it.
    Leak(u32),
    /// `lose`: it falls off the bus (with Xid 79).
    Lose,
    /// `hang`: calls for this card do not come back.
    Hang,
    /// `mend`: it answers again, and everything that was done to it is undone.
    Mend,
}

/// One action at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cue {
    /// When, in milliseconds after the simulator's start.
    pub at_ms: u64,
    /// Which card, counted from 0 in the order of the specification.
    pub slot: u32,
    /// What.
    pub action: Action,
}

/// A whole script, ordered by time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Script {
    /// The cues; of two at one time the one that was written first comes first.
    pub cues: Vec<Cue>,
}

/// A line that is not a cue.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}; write for example `10s gpu3 xid 79`")]
pub struct ScriptError {
    /// Counted from 1.
    pub line: usize,
    /// What is wrong.
    pub problem: String,
}

impl FromStr for Script {
    type Err = ScriptError;

    fn from_str(text: &str) -> Result<Self, ScriptError> {
        let mut cues = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let cue = parse_cue(line).map_err(|problem| ScriptError {
                line: index + 1,
                problem,
            })?;
            cues.push(cue);
        }
        cues.sort_by_key(|cue| cue.at_ms);
        Ok(Self { cues })
    }
}

fn parse_cue(line: &str) -> Result<Cue, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (time, card, action, value) = match words[..] {
        [time, card, action] => (time, card, action, None),
        [time, card, action, value] => (time, card, action, Some(value)),
        _ => return Err("expected a time, a card, an action and at most one value".to_owned()),
    };
    let at_ms = parse_time(time).ok_or_else(|| format!("{time:?} is not a time such as 250ms, 10s or 2m"))?;
    let slot = card.strip_prefix("gpu").and_then(|digits| digits.parse().ok());
    let slot = slot.ok_or_else(|| format!("{card:?} is not a card such as gpu0"))?;
    Ok(Cue {
        at_ms,
        slot,
        action: parse_action(action, value)?,
    })
}

fn parse_time(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit_ms = match &text[digits.len()..] {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit_ms)
}

fn parse_action(action: &str, value: Option<&str>) -> Result<Action, String> {
    let plain = match action {
        "cool" => Some(Action::Cool),
        "remap-pending" => Some(Action::RemapPending),
        "remap-failed" => Some(Action::RemapFailed),
        "lose" => Some(Action::Lose),
        "hang" => Some(Action::Hang),
        "mend" => Some(Action::Mend),
        _ => None,
    };
    match (plain, value) {
        (Some(action), None) => Ok(action),
        (Some(_), Some(_)) => Err(format!("{action} takes no value")),
        (None, value) => parse_valued(action, value),
    }
}

fn parse_valued(action: &str, value: Option<&str>) -> Result<Action, String> {
    match action {
        "temperature" => number(action, value).map(Action::Temperature),
        "ecc-single" => number(action, value).map(Action::EccSingle),
        "ecc-double" => number(action, value).map(Action::EccDouble),
        "xid" => number(action, value).map(Action::Xid),
        "pcie-replays" => number(action, value).map(Action::PcieReplays),
        "nvlink-errors" => number(action, value).map(Action::NvlinkErrors),
        "throttle" => number(action, value).map(Action::Throttle),
        "leak" => number(action, value).map(Action::Leak),
        _ => Err(format!("there is no action {action:?}")),
    }
}

fn number<T: FromStr>(action: &str, value: Option<&str>) -> Result<T, String> {
    value
        .and_then(|value| value.parse().ok())
        .ok_or_else(|| format!("{action} needs a number"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_script_reads_as_cues_in_order_of_time() {
        let script: Script = "# two faults\n2m gpu1 lose\n\n10s gpu3 xid 79  # off the bus\n10s gpu0 ecc-double 1\n"
            .parse()
            .unwrap();
        let expected = [
            Cue {
                at_ms: 10_000,
                slot: 3,
                action: Action::Xid(79),
            },
            Cue {
                at_ms: 10_000,
                slot: 0,
                action: Action::EccDouble(1),
            },
            Cue {
                at_ms: 120_000,
                slot: 1,
                action: Action::Lose,
            },
        ];
        assert_eq!(script.cues, expected);
    }

    #[test]
    fn a_wrong_line_is_named_with_what_is_wrong() {
        for (line, problem) in [
            ("10s gpu0", "expected a time"),
            ("10s gpu0 xid 7 9", "expected a time"),
            ("10 gpu0 lose", "is not a time"),
            ("99999999999999999999s gpu0 lose", "is not a time"),
            ("18446744073709551615h gpu0 lose", "is not a time"),
            ("10s card0 lose", "is not a card"),
            ("10s gpu-1 lose", "is not a card"),
            ("10s gpu0 explode", "there is no action"),
            ("10s gpu0 xid", "needs a number"),
            ("10s gpu0 xid -1", "needs a number"),
            ("10s gpu0 lose 1", "takes no value"),
        ] {
            let error = format!("\n{line}").parse::<Script>().unwrap_err();
            assert_eq!(error.line, 2);
            assert!(error.problem.contains(problem), "{line}: {}", error.problem);
        }
    }
}
