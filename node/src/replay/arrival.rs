//! The order in which recorded requests arrive: of the file, of a file of orders, or shuffled by a seed.
//!
//! A file of orders has lines `seed row row …`: rows of the list of requests from 0, in the order of their arrival. The
//! one rule: a seed gives the same order everywhere and for ever.

use std::path::Path;

use super::table::{TableError, read};
use super::trace::{Inventory, Trace};

/// One order of arrivals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// Its seed; 0 for the order of the file.
    pub seed: u64,
    /// Rows of the list of requests.
    pub rows: Vec<u32>,
}

/// Reads the orders of a file: all, or that of one seed.
///
/// # Errors
/// When it cannot be read, holds a mistake, or does not have the seed.
pub fn orders(path: &Path, seed: Option<u64>, requests: usize) -> Result<Vec<Order>, TableError> {
    let text = read(path)?;
    let mut orders = Vec::new();
    for (line, words) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        let mut column = 1;
        let mut numbers = Vec::new();
        for word in words.split(' ') {
            let below = if numbers.is_empty() { u64::MAX } else { requests as u64 };
            match word.parse::<u64>() {
                Ok(number) if number < below => numbers.push(number),
                Err(_) if word.is_empty() => {}
                _ => {
                    let what = match numbers.is_empty() {
                        true => "a seed is expected".to_owned(),
                        false => format!("a row from 0 to {} is expected", requests.saturating_sub(1)),
                    };
                    return Err(wrong(path, line, column, what));
                }
            }
            column += word.chars().count() + 1;
        }
        let (of, rows) = numbers.split_first().map_or((0, &[][..]), |(seed, rows)| (*seed, rows));
        if seed.is_none_or(|seed| seed == of) {
            let rows = rows.iter().map(|row| u32::try_from(*row).unwrap_or(u32::MAX)).collect();
            orders.push(Order { seed: of, rows });
        }
    }
    match (orders.is_empty(), seed) {
        (true, Some(seed)) => Err(wrong(path, 1, 1, format!("no order of seed {seed}"))),
        (true, None) => Err(wrong(path, 1, 1, "no order".to_owned())),
        _ => Ok(orders),
    }
}

fn wrong(path: &Path, line: usize, column: usize, what: String) -> TableError {
    TableError::Wrong {
        path: path.to_owned(),
        line,
        column,
        what,
    }
}

/// The order of the file, or one shuffled by a seed; then again from its start until enough has arrived to fill every
/// device a good third over.
#[must_use]
pub fn endless(inventory: &Inventory, trace: &Trace, seed: Option<u64>) -> Order {
    let count = u32::try_from(trace.requests.len()).unwrap_or(u32::MAX);
    let mut rows: Vec<u32> = (0..count).collect();
    if let Some(seed) = seed {
        let mut draw = Draws::new(seed);
        for last in (1..rows.len()).rev() {
            rows.swap(last, draw.below(last + 1));
        }
    }
    let once: u64 = trace.requests.iter().map(|request| request.total_milli()).sum();
    let enough = inventory.milli().saturating_mul(14) / 10;
    if let Some(times) = enough.checked_div(once) {
        // A list of almost nothing is not repeated for ever.
        let most = 50_000_000 / rows.len().max(1);
        let times = usize::try_from(times).map_or(most, |times| times.min(most));
        rows = rows.repeat(times + 1);
    }
    Order {
        seed: seed.unwrap_or(0),
        rows,
    }
}

/// Numbers from a seed: SplitMix64 (Steele, Lea and Flood, 2014).
#[derive(Debug, Clone, Copy)]
pub struct Draws(u64);

impl Draws {
    /// The numbers of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// The next number below a bound; 0 when the bound is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        let wide = u128::from(self.draw()) * bound as u128;
        usize::try_from(wide >> 64).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn orders_are_read_by_seed_and_mistakes_have_a_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("order.txt");
        let told = |text: &str, seed| {
            std::fs::write(&path, text).unwrap();
            let shown = |error: TableError| error.to_string().replace(&path.display().to_string(), "o");
            orders(&path, seed, 3).map_err(shown)
        };
        let order = |seed, rows: &[u32]| Order {
            seed,
            rows: rows.to_vec(),
        };
        assert_eq!(
            told("42 0 2\n43 1\n", None),
            Ok(vec![order(42, &[0, 2]), order(43, &[1])])
        );
        assert_eq!(told("42 0 2\n43 1\n", Some(43)), Ok(vec![order(43, &[1])]));
        assert_eq!(
            told("42 0 3\n", None),
            Err("o:1:6: a row from 0 to 2 is expected".to_owned())
        );
        assert_eq!(told("x 0\n", None), Err("o:1:1: a seed is expected".to_owned()));
        assert_eq!(told("42 0\n", Some(7)), Err("o:1:1: no order of seed 7".to_owned()));
        assert_eq!(told("", None), Err("o:1:1: no order".to_owned()));
    }

    #[test]
    fn a_seed_gives_one_order_for_ever() {
        let mut draws = Draws::new(1);
        assert_eq!([draws.below(100), draws.below(100), draws.below(100)], [56, 74, 97]);
        assert_eq!(draws.below(0), 0);
    }
}
