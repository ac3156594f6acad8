//! How events become keys and values: one tree, a prefix byte per kind, so that a batch is atomic over all of them.
//!
//! Integers in keys are big-endian, so keys sort as positions do. Prefixes are written down here and never reused; a
//! change of layout raises [`LAYOUT`], and a store of another layout counts as damaged and is made again.

use std::collections::BTreeMap;

use holdfast_proto::event::{Event, EventRecord};
use holdfast_proto::frame;
use holdfast_proto::id::{Cursor, LeaseId, Name, ProjectId, TenantId};
use holdfast_proto::lease::{EndReason, ResourceRequest};
use holdfast_proto::time::Timestamp;

/// Version of keys and values.
const LAYOUT: u32 = 1;

/// How far events are folded; one key.
const POSITION: u8 = 0;
/// Lease, position → nothing: the events of a lease.
const EVENT: u8 = 1;
/// Lease → [`EndedLease`] that has not ended yet.
const LIVING: u8 = 2;
/// Position of the end → [`EndedLease`].
const ENDED: u8 = 3;
/// Lease → position of its end.
const ENDED_AT: u8 = 4;
/// Tenant, zero, position of the end → nothing.
const ENDED_OF: u8 = 5;

/// Kind of the frames of values; the store is local, so one is enough.
const FRAME: u16 = frame::kind::DISK + 3;

/// A lease that has ended, as `leases --ended` shows it.
#[derive(Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct EndedLease {
    /// The lease.
    pub lease: LeaseId,
    /// Who paid.
    pub tenant: TenantId,
    /// The project that it belonged to.
    pub project: Option<ProjectId>,
    /// Label for people.
    pub label: Option<Name>,
    /// Which devices were asked for.
    pub request: ResourceRequest,
    /// When it was requested.
    pub requested_at: Timestamp,
    /// When it ended.
    pub ended_at: Timestamp,
    /// Position of its end, to page with.
    pub end: Cursor,
    /// Why it ended.
    pub reason: EndReason,
    /// Exit code for the tenant.
    pub exit_code: Option<i32>,
    /// What it cost.
    pub charged_micros: u64,
}

/// How far the store is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub(super) struct Position {
    pub(super) layout: u32,
    pub(super) at: Cursor,
    /// Events up to here were gone before they could be folded.
    pub(super) missing_upto: Option<Cursor>,
    /// Bytes of all keys and values.
    pub(super) live_bytes: u64,
}

fn corrupt(error: &frame::FrameError) -> sled::Error {
    sled::Error::Unsupported(format!("a value of the index does not decode: {error}"))
}

pub(super) fn position(db: &sled::Db) -> sled::Result<Position> {
    let Some(value) = db.get([POSITION])? else {
        return Ok(Position {
            layout: LAYOUT,
            ..Position::default()
        });
    };
    let position: Position = frame::decode(FRAME, &value).map_err(|error| corrupt(&error))?;
    if position.layout != LAYOUT {
        return Err(sled::Error::Unsupported(format!(
            "layout {} instead of {LAYOUT}",
            position.layout
        )));
    }
    Ok(position)
}

fn cursor_bytes(cursor: Cursor) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&cursor.index.to_be_bytes());
    bytes[8..].copy_from_slice(&cursor.sub.to_be_bytes());
    bytes
}

/// Reads the position at the end of a key or value.
fn cursor_at_end(bytes: &[u8]) -> Option<Cursor> {
    let bytes = bytes.last_chunk::<12>()?;
    let (index, sub) = bytes.split_at(8);
    Some(Cursor {
        index: u64::from_be_bytes(index.try_into().ok()?),
        sub: u32::from_be_bytes(sub.try_into().ok()?),
    })
}

fn lease_key(kind: u8, lease: LeaseId) -> Vec<u8> {
    let mut key = vec![kind];
    key.extend_from_slice(&lease.cell.to_be_bytes());
    key.extend_from_slice(&lease.index.to_be_bytes());
    key
}

fn with_cursor(mut key: Vec<u8>, cursor: Cursor) -> Vec<u8> {
    key.extend_from_slice(&cursor_bytes(cursor));
    key
}

fn tenant_key(tenant: &TenantId) -> Vec<u8> {
    let mut key = vec![ENDED_OF];
    // Names hold no zero byte, so no tenant's keys lie between another's.
    key.extend_from_slice(tenant.to_string().as_bytes());
    key.push(0);
    key
}

/// Events that are being folded into one batch.
pub(super) struct Fold<'a> {
    db: &'a sled::Db,
    batch: sled::Batch,
    position: Position,
    /// Leases changed in this batch, which the store does not show yet; `None` when they have ended.
    living: BTreeMap<LeaseId, Option<EndedLease>>,
}

impl<'a> Fold<'a> {
    pub(super) fn new(db: &'a sled::Db, position: Position) -> Self {
        Self {
            db,
            batch: sled::Batch::default(),
            position,
            living: BTreeMap::new(),
        }
    }

    pub(super) fn take(&mut self, record: &EventRecord) -> sled::Result<()> {
        self.position.at = record.cursor;
        if let Some(lease) = record.event.lease() {
            self.insert(with_cursor(lease_key(EVENT, lease), record.cursor), Vec::new());
        }
        match &record.event {
            Event::LeaseRequested(requested) => {
                let ended = EndedLease {
                    lease: requested.lease,
                    tenant: requested.tenant.clone(),
                    project: requested.project.clone(),
                    label: requested.label.clone(),
                    request: requested.request.clone(),
                    requested_at: record.at,
                    ended_at: record.at,
                    end: record.cursor,
                    reason: EndReason::Completed,
                    exit_code: None,
                    charged_micros: 0,
                };
                self.living.insert(requested.lease, Some(ended));
            }
            Event::LeaseCharged(line) => {
                if let Some(mut living) = self.living(line.lease)? {
                    living.charged_micros = living.charged_micros.saturating_add(line.amount_micros);
                    self.living.insert(line.lease, Some(living));
                }
            }
            Event::LeaseEnded {
                lease,
                reason,
                exit_code,
            } => {
                if let Some(living) = self.living(*lease)? {
                    let (reason, exit_code) = (*reason, *exit_code);
                    self.end(EndedLease {
                        ended_at: record.at,
                        end: record.cursor,
                        reason,
                        exit_code,
                        ..living
                    });
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Writes everything, and how far it is, in one atomic batch.
    pub(super) fn apply(mut self) -> sled::Result<Position> {
        for (lease, living) in std::mem::take(&mut self.living) {
            match living {
                Some(living) => self.insert(lease_key(LIVING, lease), frame::encode(FRAME, &living).to_vec()),
                None => self.batch.remove(lease_key(LIVING, lease)),
            }
        }
        self.batch
            .insert(&[POSITION], frame::encode(FRAME, &self.position).to_vec());
        self.db.apply_batch(self.batch)?;
        Ok(self.position)
    }

    /// A lease that has not ended; `None` when its request was gone before it could be folded.
    fn living(&self, lease: LeaseId) -> sled::Result<Option<EndedLease>> {
        if let Some(changed) = self.living.get(&lease) {
            return Ok(changed.clone());
        }
        let value = self.db.get(lease_key(LIVING, lease))?;
        value
            .map(|value| frame::decode(FRAME, &value).map_err(|error| corrupt(&error)))
            .transpose()
    }

    fn end(&mut self, ended: EndedLease) {
        self.living.insert(ended.lease, None);
        self.insert(with_cursor(tenant_key(&ended.tenant), ended.end), Vec::new());
        self.insert(lease_key(ENDED_AT, ended.lease), cursor_bytes(ended.end).to_vec());
        self.insert(
            with_cursor(vec![ENDED], ended.end),
            frame::encode(FRAME, &ended).to_vec(),
        );
    }

    fn insert(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.position.live_bytes += (key.len() + value.len()) as u64;
        self.batch.insert(key, value);
    }
}

pub(super) fn ended(
    db: &sled::Db,
    tenant: Option<&TenantId>,
    before: Option<Cursor>,
    limit: usize,
) -> sled::Result<Vec<EndedLease>> {
    let before = before.unwrap_or(Cursor {
        index: u64::MAX,
        sub: u32::MAX,
    });
    let prefix = tenant.map_or_else(|| vec![ENDED], tenant_key);
    let keys = db.range(prefix.clone()..with_cursor(prefix, before)).keys().rev();
    let mut found = Vec::new();
    for key in keys.take(limit) {
        let Some(end) = cursor_at_end(&key?) else { continue };
        found.extend(ended_at(db, end)?);
    }
    Ok(found)
}

pub(super) fn ended_lease(db: &sled::Db, lease: LeaseId) -> sled::Result<Option<EndedLease>> {
    let end = db
        .get(lease_key(ENDED_AT, lease))?
        .and_then(|value| cursor_at_end(&value));
    end.map_or(Ok(None), |end| ended_at(db, end))
}

fn ended_at(db: &sled::Db, end: Cursor) -> sled::Result<Option<EndedLease>> {
    let value = db.get(with_cursor(vec![ENDED], end))?;
    value
        .map(|value| frame::decode(FRAME, &value).map_err(|error| corrupt(&error)))
        .transpose()
}

pub(super) fn events_of(db: &sled::Db, lease: LeaseId, after: Cursor, limit: usize) -> sled::Result<Vec<Cursor>> {
    let prefix = lease_key(EVENT, lease);
    let mut found = Vec::new();
    for key in db.scan_prefix(&prefix).keys() {
        match cursor_at_end(&key?) {
            Some(cursor) if cursor > after => found.push(cursor),
            _ => {}
        }
        if found.len() >= limit {
            break;
        }
    }
    Ok(found)
}
