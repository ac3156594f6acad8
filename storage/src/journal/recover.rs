//! What happens to a journal when it is opened: find its segments, judge its end, show its records to the owner.
//!
//! Called by `Journal::open` only. Segments before the last written one must be perfect, because each was synced before
//! the next was touched. In the last one, bad bytes after the last good record are a torn write, and are zeroed, unless
//! a valid record further on says that they had been durable: then the disk has lost what it promised to keep.
//!
//! The rule: nothing is changed on disk before everything has been judged, and what counts as recovered is synced first,
//! because bytes that only a dead process's page cache held are not durable yet.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, RwLock};

use super::error::OpenError;
use super::record::{self, Decoded, RecordRef};
use super::scan::{PIECE, Scanner, Step};
use super::segment::{self, HEADER_BYTES, HeaderError, SEAL_BYTES, Summary};
use super::{Active, Journal, Options, Position, Spare, SpareSlot};
use crate::disk::{Disk, DiskFile, Open};

pub(super) const EMPTY: Summary = Summary {
    segment: 0,
    first_index: 0,
    last_index: 0,
    last_term: 0,
    end: HEADER_BYTES,
    records: 0,
};

/// How much of a journal is read when it is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scan {
    /// Every record of every segment is checked and shown.
    All,
    /// Closed segments are taken at their seal's word, and only their first record is shown; for long journals whose
    /// records are checked when they are read.
    Tail,
}

/// What an owner has against a record that it is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Objection {
    /// It contradicts the ones before.
    Contradicts(String),
    /// Only a newer build knows what it is.
    Newer(String),
}

impl From<String> for Objection {
    fn from(what: String) -> Self {
        Self::Contradicts(what)
    }
}

/// What opening a journal found.
#[derive(Debug, Default)]
pub struct Recovered {
    /// The torn end that was cut off, if there was one.
    pub repair: Option<Repair>,
}

/// A torn write that was zeroed. It had not been acknowledged, or the disk lied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repair {
    /// The segment.
    pub file: PathBuf,
    /// Where the torn write began.
    pub offset: u32,
    /// How many bytes were zeroed.
    pub bytes: u32,
    /// What was wrong with the first of them.
    pub what: &'static str,
}

struct Opened {
    segment: u32,
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    /// The length that the segment was made with.
    bytes: u32,
    seal: Option<Summary>,
    /// The header is damaged, and there is nothing behind it: there is no more to lose.
    blank: bool,
}

impl Opened {
    fn read_error(&self, source: io::Error) -> OpenError {
        OpenError::Read {
            file: self.path.clone(),
            source,
        }
    }

    fn write_error(&self, source: io::Error) -> OpenError {
        OpenError::Write {
            file: self.path.clone(),
            source,
        }
    }

    fn corrupt(&self, offset: u32, what: impl Into<String>) -> OpenError {
        OpenError::Corrupt {
            file: self.path.clone(),
            offset,
            what: what.into(),
        }
    }

    fn objected(&self, offset: u32, objection: Objection) -> OpenError {
        match objection {
            Objection::Contradicts(what) => self.corrupt(offset, what),
            Objection::Newer(what) => OpenError::Newer {
                file: self.path.clone(),
                what,
            },
        }
    }

    fn records_end(&self) -> u32 {
        self.bytes - SEAL_BYTES
    }
}

pub(super) fn recover(
    disk: Arc<dyn Disk>,
    dir: &Path,
    options: Options,
    scan: Scan,
    mut visit: impl FnMut(Position, RecordRef<'_>) -> Result<(), Objection>,
) -> Result<(Journal, Recovered), OpenError> {
    let mut opened = open_segments(&*disk, dir, options)?;
    let tail_at = find_tail(&opened)?;
    let mut spares = opened.split_off(tail_at + 1);
    let tail = opened.pop().expect("the tail is one of the segments");

    let mut sealed = BTreeMap::new();
    for closed in &opened {
        sealed.insert(closed.segment, visit_closed(closed, scan, &mut visit)?);
    }
    let (summary, broken) = visit_records(&tail, tail.records_end(), &mut visit)?;
    if tail.blank {
        segment::write_header(&*tail.file, tail.segment, tail.bytes, options.purpose)
            .map_err(|source| tail.write_error(source))?;
    }
    let repair = settle_tail(&tail, &summary, broken)?;
    remove_surplus(&*disk, dir, &mut spares)?;

    let made = tail.segment + spares.len() as u32;
    let ready = spares.pop().map(|it| Spare {
        segment: it.segment,
        bytes: it.bytes,
        file: it.file,
    });
    let files = opened
        .iter()
        .chain([&tail])
        .map(|it| (it.segment, it.file.clone()))
        .collect();
    let active = Active {
        file: tail.file.clone(),
        bytes: tail.bytes,
        written: summary.end,
        durable: summary.end,
        staged: Vec::new(),
        summary,
    };
    let journal = Journal {
        disk,
        dir: dir.to_owned(),
        options,
        sealed,
        active,
        spare: Arc::new(Mutex::new(SpareSlot { made, ready })),
        spare_asked: made,
        files: Arc::new(RwLock::new(files)),
        stopped: None,
    };
    Ok((journal, Recovered { repair }))
}

fn open_segments(disk: &dyn Disk, dir: &Path, options: Options) -> Result<Vec<Opened>, OpenError> {
    let failed = |source| OpenError::Folder {
        dir: dir.to_owned(),
        source,
    };
    disk.create_dir(dir).map_err(failed)?;
    let names = disk.list(dir).map_err(failed)?;
    for name in names.iter().filter(|name| segment::is_unfinished(name)) {
        disk.remove(&dir.join(name)).map_err(failed)?;
    }
    let numbers: Vec<u32> = names.iter().filter_map(|name| segment::number(name)).collect();
    if numbers.is_empty() {
        if let Some(parent) = dir.parent() {
            disk.sync_dir(parent).map_err(failed)?;
        }
        return Ok(vec![first_segment(disk, dir, options)?]);
    }
    let mut opened = Vec::with_capacity(numbers.len());
    for (at, number) in numbers.iter().enumerate() {
        let wanted = numbers[0] + at as u32;
        if *number != wanted {
            let file = segment::path(dir, wanted);
            let what = format!("the file is missing, although segment {number} is there");
            return Err(OpenError::Corrupt { file, offset: 0, what });
        }
        let is_last = at > 0 && at + 1 == numbers.len();
        opened.push(match open_segment(disk, dir, *number, options) {
            Err(damaged @ OpenError::Corrupt { .. }) if is_last => {
                open_blank(disk, dir, *number, options)?.ok_or(damaged)?
            }
            other => other?,
        });
    }
    Ok(opened)
}

/// Opens the last segment when its header is damaged and nothing was ever written behind it; `None` when something was.
fn open_blank(disk: &dyn Disk, dir: &Path, number: u32, options: Options) -> Result<Option<Opened>, OpenError> {
    let path = segment::path(dir, number);
    let file = disk.open(&path, Open::Write);
    let opened = Opened {
        segment: number,
        file: file.map_err(|source| OpenError::Read {
            file: path.clone(),
            source,
        })?,
        path,
        bytes: options.segment_bytes,
        seal: None,
        blank: true,
    };
    let size = opened.file.size().map_err(|source| opened.read_error(source))?;
    let fits = size <= u64::from(opened.bytes);
    Ok((fits && last_written(&opened, HEADER_BYTES)?.is_none()).then_some(opened))
}

fn first_segment(disk: &dyn Disk, dir: &Path, options: Options) -> Result<Opened, OpenError> {
    let (segment, bytes) = (1, options.segment_bytes);
    let path = segment::path(dir, segment);
    let file = segment::prepare(disk, dir, segment, bytes, options.purpose).map_err(|source| {
        if source.kind() == io::ErrorKind::StorageFull {
            OpenError::NoSpace {
                dir: dir.to_owned(),
                bytes,
                source,
            }
        } else {
            OpenError::Write {
                file: path.clone(),
                source,
            }
        }
    })?;
    Ok(Opened {
        segment,
        path,
        file,
        bytes,
        seal: None,
        blank: false,
    })
}

fn open_segment(disk: &dyn Disk, dir: &Path, number: u32, options: Options) -> Result<Opened, OpenError> {
    let path = segment::path(dir, number);
    let failed = |source| OpenError::Read {
        file: path.clone(),
        source,
    };
    let file = disk.open(&path, Open::Write).map_err(failed)?;
    let mut header = vec![0; HEADER_BYTES as usize];
    let got = file.read_at(&mut header, 0).map_err(failed)?;
    let bytes = segment::decode_header(&header[..got], number, options.purpose).map_err(|error| match error {
        HeaderError::Wrong(what) => OpenError::Corrupt {
            file: path.clone(),
            offset: 0,
            what: what.to_owned(),
        },
        HeaderError::Newer(version) => OpenError::Newer {
            file: path.clone(),
            what: format!(
                "version {version} of the format, this build reads up to {}",
                segment::VERSION
            ),
        },
    })?;
    let mut seal = vec![0; SEAL_BYTES as usize];
    let got = file.read_at(&mut seal, u64::from(bytes - SEAL_BYTES)).map_err(failed)?;
    let seal = segment::decode_seal(&seal[..got], number);
    Ok(Opened {
        segment: number,
        path,
        file,
        bytes,
        seal,
        blank: false,
    })
}

/// Finds the segment that was being written: the first one without a seal, whose followers must be blank.
fn find_tail(opened: &[Opened]) -> Result<usize, OpenError> {
    let Some(at) = opened.iter().position(|it| it.seal.is_none()) else {
        let last = opened.last().expect("there is at least one segment");
        return Err(last.corrupt(
            last.records_end(),
            "the segment is closed, but the one after it is missing",
        ));
    };
    for later in &opened[at + 1..] {
        if last_written(later, HEADER_BYTES)?.is_some() {
            let what = format!(
                "the segment was never closed, although {} has records",
                later.path.display()
            );
            return Err(opened[at].corrupt(opened[at].records_end(), what));
        }
    }
    // A crash while a segment was being closed may keep its seal and lose its records; the next one is blank then.
    if at > 0 && last_written(&opened[at], HEADER_BYTES)?.is_none() && !is_complete(&opened[at - 1])? {
        return Ok(at - 1);
    }
    Ok(at)
}

fn is_complete(closed: &Opened) -> Result<bool, OpenError> {
    let seal = closed.seal.expect("asked of closed segments only");
    let mut scanner = Scanner::new(&*closed.file, closed.segment, HEADER_BYTES, closed.records_end());
    let mut records = 0;
    while scanner.offset() < seal.end {
        match scanner.step().map_err(|source| closed.read_error(source))? {
            Step::Record(..) => records += 1,
            _ => return Ok(false),
        }
    }
    Ok(scanner.offset() == seal.end && records == seal.records)
}

type Broken = Option<&'static str>;

/// Shows the records up to `end`, stopping where there are no more; says what was wrong there.
fn visit_records(
    opened: &Opened,
    end: u32,
    visit: &mut impl FnMut(Position, RecordRef<'_>) -> Result<(), Objection>,
) -> Result<(Summary, Broken), OpenError> {
    let mut scanner = Scanner::new(&*opened.file, opened.segment, HEADER_BYTES, end);
    let mut summary = Summary {
        segment: opened.segment,
        ..EMPTY
    };
    loop {
        match scanner.step().map_err(|source| opened.read_error(source))? {
            Step::Record(position, record) => {
                visit(position, record).map_err(|objection| opened.objected(position.offset, objection))?;
                if summary.records == 0 {
                    summary.first_index = record.index;
                }
                summary.last_index = record.index;
                summary.last_term = record.term;
                summary.records += 1;
                summary.end = position.offset + position.size;
            }
            Step::End => return Ok((summary, None)),
            Step::Bad(what) => return Ok((summary, Some(what))),
        }
    }
}

fn visit_closed(
    closed: &Opened,
    scan: Scan,
    visit: &mut impl FnMut(Position, RecordRef<'_>) -> Result<(), Objection>,
) -> Result<Summary, OpenError> {
    let seal = closed.seal.expect("only closed segments come before the tail");
    if scan == Scan::All {
        let (summary, broken) = visit_records(closed, seal.end, visit)?;
        if summary.end != seal.end || summary.records != seal.records {
            return Err(closed.corrupt(summary.end, broken.unwrap_or("records are missing")));
        }
        return Ok(summary);
    }
    let mut scanner = Scanner::new(&*closed.file, closed.segment, HEADER_BYTES, seal.end);
    match scanner.step().map_err(|source| closed.read_error(source))? {
        Step::Record(position, record) => {
            visit(position, record).map_err(|objection| closed.objected(position.offset, objection))?;
            Ok(Summary {
                first_index: record.index,
                ..seal
            })
        }
        Step::End => Err(closed.corrupt(HEADER_BYTES, "records are missing")),
        Step::Bad(what) => Err(closed.corrupt(HEADER_BYTES, what)),
    }
}

/// Cuts a torn end off, refuses damage, and makes what is left durable.
fn settle_tail(tail: &Opened, summary: &Summary, broken: Broken) -> Result<Option<Repair>, OpenError> {
    let end = summary.end;
    let mut repair = None;
    if let Some(last) = last_written(tail, end)? {
        let what = broken.unwrap_or("there are zeros where a record was");
        let bytes = last + 1 - end;
        if let Some(witness) = durable_witness(tail, end, bytes)? {
            let what = format!("{what}, and the record at byte {witness} shows that it had been durable");
            return Err(tail.corrupt(end, what));
        }
        zero(tail, end, bytes)?;
        repair = Some(Repair {
            file: tail.path.clone(),
            offset: end,
            bytes,
            what,
        });
    }
    let size = tail.file.size().map_err(|source| tail.read_error(source))?;
    if size < u64::from(tail.bytes) {
        tail.file
            .preallocate(u64::from(tail.bytes))
            .map_err(|source| tail.write_error(source))?;
    }
    tail.file.sync_data().map_err(|source| tail.write_error(source))?;
    Ok(repair)
}

fn zero(tail: &Opened, offset: u32, bytes: u32) -> Result<(), OpenError> {
    let zeros = vec![0; PIECE.min(bytes as usize)];
    let mut done = 0;
    while done < bytes {
        let piece = zeros.len().min((bytes - done) as usize);
        let at = u64::from(offset + done);
        tail.file
            .write_at(&zeros[..piece], at)
            .map_err(|source| tail.write_error(source))?;
        done += piece as u32;
    }
    Ok(())
}

/// Returns the offset of the last byte at or after `from` that is not zero.
fn last_written(opened: &Opened, from: u32) -> Result<Option<u32>, OpenError> {
    let mut piece = vec![0; PIECE];
    let mut last = None;
    let mut offset = from;
    while offset < opened.bytes {
        let got = opened
            .file
            .read_at(&mut piece, u64::from(offset))
            .map_err(|source| opened.read_error(source))?;
        if got == 0 {
            break;
        }
        if let Some(at) = piece[..got].iter().rposition(|byte| *byte != 0) {
            last = Some(offset + at as u32);
        }
        offset += got as u32;
    }
    Ok(last)
}

/// Looks in the bytes after `from` for a valid record that was written when `from` was already durable.
fn durable_witness(tail: &Opened, from: u32, bytes: u32) -> Result<Option<u32>, OpenError> {
    let mut rest = vec![0; bytes as usize];
    let got = tail
        .file
        .read_at(&mut rest, u64::from(from))
        .map_err(|source| tail.read_error(source))?;
    let rest = &rest[..got];
    for at in (0..rest.len()).step_by(record::ALIGN) {
        let Some(header) = rest.get(at..at + record::HEADER_BYTES) else {
            break;
        };
        // The cheap test first: of random bytes almost none come as far as the checksum.
        if record::u32_at(header, record::DURABLE) > from
            && let Decoded::Record(_) = record::decode(&rest[at..], tail.segment)
        {
            return Ok(Some(from + at as u32));
        }
    }
    Ok(None)
}

/// Keeps at most one blank segment ahead: the one right after the tail, if its header is whole.
fn remove_surplus(disk: &dyn Disk, dir: &Path, spares: &mut Vec<Opened>) -> Result<(), OpenError> {
    let failed = |source| OpenError::Folder {
        dir: dir.to_owned(),
        source,
    };
    while spares.len() > 1 || spares.last().is_some_and(|last| last.blank) {
        let surplus = spares.pop().expect("there is one");
        disk.remove(&surplus.path).map_err(failed)?;
    }
    disk.sync_dir(dir).map_err(failed)
}
