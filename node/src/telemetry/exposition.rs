//! Prometheus's text format, written by hand: families, samples, escaped labels.
//!
//! `/metrics` makes one, every part of the node writes its series into it, and the API sends the text. The rule kept
//! here: a family is announced before its samples and only once, and a label's value can never break a line.

use std::fmt::Write as _;

/// The content type of the text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What a series counts as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only rises.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// The text so far.
#[derive(Debug, Default)]
pub struct Exposition {
    text: String,
    families: Vec<String>,
}

impl Exposition {
    /// Announces a family; its samples follow.
    ///
    /// # Panics
    /// When it was announced before: two parts of the node then write the same series.
    pub fn family(&mut self, name: &str, kind: Kind, help: &str) {
        assert!(
            !self.families.iter().any(|known| known == name),
            "the metric {name} is announced twice"
        );
        self.families.push(name.to_owned());
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// Writes one sample of the family that was announced last.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        self.text.push_str(self.families.last().map_or("", String::as_str));
        for (index, (name, value)) in labels.iter().enumerate() {
            let opening = if index == 0 { '{' } else { ',' };
            let _ = write!(self.text, "{opening}{name}=\"{}\"", escaped(value));
        }
        let closing = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.text, "{closing} {value}");
    }

    /// The whole text.
    pub fn into_text(self) -> String {
        self.text
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_cannot_break_a_line() {
        let mut text = Exposition::default();
        text.family("holdfast_up", Kind::Gauge, "1 while\nit runs");
        text.sample(&[], 1);
        text.sample(&[("a", "x\"y\\z\n"), ("b", "")], 0.5);
        let expected = "# HELP holdfast_up 1 while\\nit runs\n# TYPE holdfast_up gauge\nholdfast_up 1\n\
                        holdfast_up{a=\"x\\\"y\\\\z\\n\",b=\"\"} 0.5\n";
        assert_eq!(text.into_text(), expected);
    }

    #[test]
    #[should_panic(expected = "announced twice")]
    fn a_family_is_announced_once() {
        let mut text = Exposition::default();
        text.family("a", Kind::Gauge, "");
        text.family("a", Kind::Gauge, "");
    }
}
