//! How values look on a screen.
//!
//! The one rule: text that came from elsewhere cannot move the cursor, change colours, hide other text or break a table.

use comfy_table::{ContentArrangement, Table, presets};
use jiff::Timestamp;
use jiff::tz::TimeZone;

/// Longest cell; the rest is cut and marked.
const CELL_CHARS_MAX: usize = 60;

/// Replaces what could act on a screen: control characters, and those that turn or hide text.
pub fn plain(text: &str) -> String {
    let acts = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}' | '\u{2028}' | '\u{2029}')
    };
    text.chars().map(|c| if acts(c) { '\u{fffd}' } else { c }).collect()
}

/// One cell of a table.
pub fn cell(text: &str) -> String {
    let mut shown: String = plain(text).chars().take(CELL_CHARS_MAX).collect();
    if text.chars().nth(CELL_CHARS_MAX).is_some() {
        shown.pop();
        shown.push('…');
    }
    if shown.is_empty() { "-".to_owned() } else { shown }
}

/// A table without lines, fitted to a width.
pub fn table(width: u16, head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(width.max(40));
    table.set_header(head.iter().map(|title| title.to_uppercase()));
    for row in rows {
        table.add_row(row.iter().map(|text| cell(text)));
    }
    table.trim_fmt() + "\n"
}

/// A point in time, in a time zone, with its offset.
pub fn when(ms: u64, zone: &TimeZone) -> String {
    let instant = i64::try_from(ms)
        .ok()
        .and_then(|ms| Timestamp::from_millisecond(ms).ok());
    match instant {
        Some(instant) => instant
            .to_zoned(zone.clone())
            .strftime("%Y-%m-%d %H:%M:%S %:z")
            .to_string(),
        None => "beyond all calendars".to_owned(),
    }
}

/// A length of time to its two biggest units.
pub fn length(ms: u64) -> String {
    let parts = [
        (ms / 86_400_000, "d"),
        (ms / 3_600_000 % 24, "h"),
        (ms / 60_000 % 60, "m"),
        (ms / 1_000 % 60, "s"),
    ];
    let shown: Vec<String> = parts
        .iter()
        .skip_while(|(amount, _)| *amount == 0)
        .take(2)
        .filter(|(amount, _)| *amount > 0)
        .map(|(amount, unit)| format!("{amount}{unit}"))
        .collect();
    if shown.is_empty() {
        "0s".to_owned()
    } else {
        shown.join("")
    }
}

/// Names and values, one a line.
pub fn fields(pairs: &[(&str, String)]) -> String {
    let widest = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    pairs
        .iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| format!("{name:widest$}  {}\n", plain(value)))
        .collect()
}

/// A command as one would type it in a shell: words that need quotes have them.
pub fn command(words: &[String]) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=@%+,".contains(c);
    let quoted = |word: &String| match !word.is_empty() && word.chars().all(is_plain) {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    };
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

/// The word by which a value is chosen on the command line.
pub fn word_of(value: &impl clap::ValueEnum) -> String {
    let possible = value.to_possible_value();
    possible.map(|word| word.get_name().to_owned()).unwrap_or_default()
}

/// The public word of an enum of the vocabulary.
pub fn word(value: &impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_from_elsewhere_cannot_act_on_a_screen() {
        let hostile = "a\u{1b}[2J\u{202e}b\n\0\r\u{200b}";
        let shown = plain(hostile);
        assert!(
            shown
                .chars()
                .all(|c| !c.is_control() && c != '\u{202e}' && c != '\u{200b}'),
            "{shown:?}"
        );
    }

    #[test]
    fn tables_stay_aligned_with_texts_of_any_script_and_length() {
        for text in [
            "",
            "é",
            "漢字漢字",
            "\u{1F600}\u{1F600}",
            "مرحبا",
            &"𝕏".repeat(10_000),
            "line\nbreak",
            "tab\there",
        ] {
            let shown = table(
                80,
                &["name", "last"],
                [
                    vec![text.to_owned(), "END".to_owned()],
                    vec!["x".to_owned(), "END".to_owned()],
                ],
            );
            let ends: Vec<&str> = shown.lines().filter(|line| line.contains("END")).collect();
            assert_eq!(ends.len(), 2, "{shown}");
            assert!(shown.lines().count() < 8, "{shown}");
        }
    }

    #[test]
    fn cells_are_cut_between_characters() {
        for length in 55..70 {
            let cut = cell(&"𝕏".repeat(length));
            assert!(cut.chars().count() <= CELL_CHARS_MAX);
        }
    }

    #[test]
    fn times_are_shown_with_the_offset_of_their_day() {
        let zone = TimeZone::get("Europe/Berlin").unwrap_or(TimeZone::UTC);
        let winter = when(1_800_000_000_000, &TimeZone::UTC);
        assert_eq!(winter, "2027-01-15 08:00:00 +00:00");
        if zone != TimeZone::UTC {
            // One hour before and after the clocks go forward on 2027-03-28.
            assert_eq!(when(1_806_193_800_000, &zone), "2027-03-28 01:30:00 +01:00");
            assert_eq!(when(1_806_197_400_000, &zone), "2027-03-28 03:30:00 +02:00");
        }
        assert_eq!(when(u64::MAX, &zone), "beyond all calendars");
    }

    #[test]
    fn a_command_is_shown_as_one_would_type_it() {
        for (words, shown) in [
            (vec!["python3", "train.py", "--lr=0.1"], "python3 train.py --lr=0.1"),
            (vec!["sh", "-c", "echo a; exit 3"], "sh -c 'echo a; exit 3'"),
            (vec!["echo", "", "it's"], "echo '' 'it'\\''s'"),
        ] {
            let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
            assert_eq!(command(&words), shown);
        }
    }

    #[test]
    fn lengths_show_their_two_biggest_units() {
        for (ms, text) in [
            (0, "0s"),
            (999, "0s"),
            (61_000, "1m1s"),
            (3_600_000, "1h"),
            (90_061_000, "1d1h"),
            (86_400_000, "1d"),
        ] {
            assert_eq!(length(ms), text);
        }
    }
}
