//! Lines of a script: a verb and `key=value` words; values with spaces stand in double quotes.

#![allow(dead_code, unreachable_pub)]

use std::collections::BTreeMap;

/// A command line.
#[derive(Debug, Clone, Default)]
pub struct Words {
    pub verb: String,
    /// Bare words after the verb.
    pub bare: Vec<String>,
    pub values: BTreeMap<String, String>,
}

impl Words {
    pub fn parse(line: &str) -> Result<Self, String> {
        let mut words = Self::default();
        for word in split(line)? {
            match word.split_once('=') {
                Some((key, value)) => {
                    words.values.insert(key.to_owned(), value.to_owned());
                }
                None if words.verb.is_empty() => words.verb = word,
                None => words.bare.push(word),
            }
        }
        Ok(words)
    }

    pub fn opt(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(String::as_str)
    }

    pub fn get(&self, key: &str) -> Result<&str, String> {
        self.opt(key).ok_or(format!("`{}` needs {key}=", self.verb))
    }

    pub fn number(&self, key: &str) -> Result<u64, String> {
        let text = self.get(key)?;
        text.parse().map_err(|_| format!("{key}={text} is not a number"))
    }

    pub fn number_or(&self, key: &str, default: u64) -> Result<u64, String> {
        self.opt(key).map_or(Ok(default), |_| self.number(key))
    }

    /// Reads seconds with up to three decimals as milliseconds.
    pub fn seconds(&self, key: &str) -> Result<u64, String> {
        millis(self.get(key)?).ok_or(format!("{key}= is not a number of seconds"))
    }

    pub fn list(&self, key: &str) -> Vec<&str> {
        self.opt(key).map_or(Vec::new(), |text| {
            text.split(',').filter(|part| !part.is_empty()).collect()
        })
    }
}

pub fn millis(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let part = format!("{part:0<3}");
    whole
        .parse::<u64>()
        .ok()?
        .checked_mul(1000)?
        .checked_add(part.get(..3)?.parse().ok()?)
}

/// Splits at spaces outside double quotes. `\n`, `\0`, `\e` stand for the control characters; `*N` repeats the quoted text.
fn split(line: &str) -> Result<Vec<String>, String> {
    let (mut words, mut word, mut quoted) = (Vec::new(), String::new(), false);
    let mut rest = line.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '"' => quoted = !quoted,
            '\\' if quoted => word.push(match rest.next() {
                Some('n') => '\n',
                Some('0') => '\0',
                Some('e') => '\u{1b}',
                other => return Err(format!("unknown escape {other:?}")),
            }),
            ' ' if !quoted => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            c => word.push(c),
        }
    }
    if quoted {
        return Err("a quote is open at the end of the line".to_owned());
    }
    if !word.is_empty() {
        words.push(word);
    }
    Ok(words)
}
