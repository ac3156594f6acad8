//! Tables in files: comma-separated values with a header, read with the place of every mistake.
//!
//! The trace reader asks it for columns by name. The one rule: a mistake is told with file, line and column; nothing is
//! guessed.

use std::path::{Path, PathBuf};

/// Largest file that is read.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// It cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        cause: std::io::Error,
    },
    /// It is larger than any table that is read.
    #[error("{} has {bytes} bytes, {FILE_BYTES_MAX} at most are read", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// Something in it is wrong.
    #[error("{}:{line}:{column}: {what}", path.display())]
    Wrong {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Character in the line, from 1.
        column: usize,
        /// What is wrong there.
        what: String,
    },
}

/// A table in memory.
#[derive(Debug)]
pub struct Table {
    path: PathBuf,
    text: String,
    columns: Vec<String>,
}

/// One line of a table.
#[derive(Debug, Clone)]
pub struct Row<'a> {
    table: &'a Table,
    line: usize,
    /// Where each field begins, as a count of characters before it, and the field.
    fields: Vec<(usize, &'a str)>,
}

/// Reads a file as text, if it is not too large.
///
/// # Errors
/// When it cannot be read, or is too large.
pub fn read(path: &Path) -> Result<String, TableError> {
    let at = || path.to_owned();
    let bytes = std::fs::metadata(path)
        .map_err(|cause| TableError::Read { path: at(), cause })?
        .len();
    if bytes > FILE_BYTES_MAX {
        return Err(TableError::TooLarge { path: at(), bytes });
    }
    std::fs::read_to_string(path).map_err(|cause| TableError::Read { path: at(), cause })
}

impl Table {
    /// Reads a file; its first line names the columns.
    ///
    /// # Errors
    /// When it cannot be read, or has no header.
    pub fn open(path: &Path) -> Result<Self, TableError> {
        Self::of(path, read(path)?)
    }

    fn of(path: &Path, text: String) -> Result<Self, TableError> {
        let header = text.lines().next().unwrap_or_default().trim_start_matches('\u{feff}');
        let columns: Vec<String> = header.split(',').map(|name| name.trim().to_owned()).collect();
        let table = Self {
            path: path.to_owned(),
            columns,
            text,
        };
        match table.columns.iter().all(String::is_empty) {
            true => Err(table.wrong(1, 1, "a first line that names the columns is expected")),
            false => Ok(table),
        }
    }

    /// The place of a column.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn column(&self, name: &str) -> Result<usize, TableError> {
        let missing = || format!("no column {name}; there are {}", self.columns.join(", "));
        self.find(name).ok_or_else(|| self.wrong(1, 1, missing()))
    }

    /// The place of a column that need not be there.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column == name)
    }

    /// The lines after the header; empty ones are left out.
    ///
    /// # Errors
    /// Each line that has another number of fields than the header, or a quote.
    pub fn rows(&self) -> impl Iterator<Item = Result<Row<'_>, TableError>> {
        let lines = (1..)
            .zip(self.text.lines())
            .skip(1)
            .filter(|(_, line)| !line.trim().is_empty());
        lines.map(|(number, line)| self.row(number, line))
    }

    fn row<'a>(&'a self, number: usize, line: &'a str) -> Result<Row<'a>, TableError> {
        if let Some((at, _)) = (1..).zip(line.chars()).find(|(_, letter)| *letter == '"') {
            return Err(self.wrong(number, at, "quoted fields are not read"));
        }
        let mut start = 0;
        let place = |field: &'a str| {
            let here = start;
            start += field.chars().count() + 1;
            (here, field)
        };
        let fields: Vec<_> = line.split(',').map(place).collect();
        let (has, needs) = (fields.len(), self.columns.len());
        if has != needs {
            let end = line.chars().count() + 1;
            let column = fields.get(needs).map_or(end, |(start, _)| start + 1);
            return Err(self.wrong(number, column, format!("{has} fields, the header has {needs}")));
        }
        Ok(Row {
            table: self,
            line: number,
            fields,
        })
    }

    fn wrong(&self, line: usize, column: usize, what: impl Into<String>) -> TableError {
        TableError::Wrong {
            path: self.path.clone(),
            line,
            column,
            what: what.into(),
        }
    }
}

impl<'a> Row<'a> {
    /// A field as it stands there.
    #[must_use]
    pub fn text(&self, column: usize) -> &'a str {
        self.fields[column].1.trim()
    }

    /// A field as a number of a range.
    ///
    /// # Errors
    /// When it is none, or out of range.
    pub fn number(&self, column: usize, range: std::ops::RangeInclusive<u64>) -> Result<u64, TableError> {
        let number = self
            .text(column)
            .parse::<u64>()
            .ok()
            .filter(|number| range.contains(number));
        let what = || {
            let (name, shown) = (&self.table.columns[column], shown(self.text(column)));
            format!(
                "{name} is {shown}, a whole number from {} to {} is expected",
                range.start(),
                range.end()
            )
        };
        number.ok_or_else(|| self.wrong(column, what()))
    }

    /// A mistake in a field.
    #[must_use]
    pub fn wrong(&self, column: usize, what: impl Into<String>) -> TableError {
        self.table.wrong(self.line, self.fields[column].0 + 1, what)
    }
}

/// A field, short and without what could act on a screen.
pub(super) fn shown(text: &str) -> String {
    let plain: String = text
        .chars()
        .take(40)
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect();
    format!("`{plain}`")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn wrong(text: &str) -> String {
        let table = Table::of(Path::new("t.csv"), text.to_owned());
        let numbers = |table: Table| -> Result<(), TableError> {
            let column = table.column("n")?;
            for row in table.rows() {
                row?.number(column, 1..=9)?;
            }
            Ok(())
        };
        table.and_then(numbers).unwrap_err().to_string()
    }

    #[test]
    fn a_mistake_is_told_with_its_place() {
        for (text, told) in [
            ("", "t.csv:1:1: a first line that names the columns is expected"),
            ("a,b\n1,2\n", "t.csv:1:1: no column n; there are a, b"),
            (
                "a,n\nü,x\n",
                "t.csv:2:3: n is `x`, a whole number from 1 to 9 is expected",
            ),
            (
                "a,n\nü,3\n\nü,10\n",
                "t.csv:4:3: n is `10`, a whole number from 1 to 9 is expected",
            ),
            ("a,n\n1\n", "t.csv:2:2: 1 fields, the header has 2"),
            ("a,n\n1,2,3\n", "t.csv:2:5: 3 fields, the header has 2"),
            ("a,n\n\"x\",2\n", "t.csv:2:1: quoted fields are not read"),
            (
                "a,n\n1,18446744073709551616\n",
                "t.csv:2:3: n is `18446744073709551616`, a whole number from 1 to 9 is expected",
            ),
        ] {
            assert_eq!(wrong(text), told);
        }
    }
}
