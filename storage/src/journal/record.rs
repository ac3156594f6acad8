//! One journal record as bytes: 40 bytes of header, the payload, zeros up to a multiple of 8.
//!
//! Used by the journal's writer, reader and recovery only. Besides its checksum each record carries how far its segment
//! was durable when it was written. That tells recovery a torn write from damage: whatever a later record calls
//! durable was synced once, so if it is bad now, the disk has changed it.
//!
//! The rule: a record is valid only where it was written. The segment's number is part of the checksum, so a block
//! that ends up in another segment does not pass.

use bytes::Bytes;

/// Bytes before the payload.
pub(super) const HEADER_BYTES: usize = 40;

/// Records start at multiples of this, so that recovery can look for them after a damaged one.
pub(super) const ALIGN: usize = 8;

/// Where a record says how far its segment was durable when it was written.
pub(super) const DURABLE: usize = 12;

/// Kinds are small numbers; a header with a larger one is not looked at further.
const KIND_MAX: u8 = 63;

/// One record. What `kind`, `term`, `node` and `index` mean is the owner's business.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The owner's tag, 1 to 63; written down with the owner and never reused.
    pub kind: u8,
    /// A number to order by; the Raft log's term, the event log's stamp.
    pub term: u64,
    /// The Raft log's leader; zero elsewhere.
    pub node: u64,
    /// The log index.
    pub index: u64,
    /// The owner's bytes.
    pub payload: Bytes,
}

/// A record that still lies in a read buffer.
#[derive(Debug, Clone, Copy)]
pub struct RecordRef<'a> {
    /// See [`Record::kind`].
    pub kind: u8,
    /// See [`Record::term`].
    pub term: u64,
    /// See [`Record::node`].
    pub node: u64,
    /// See [`Record::index`].
    pub index: u64,
    /// See [`Record::payload`].
    pub payload: &'a [u8],
}

impl RecordRef<'_> {
    /// Copies the record out of the read buffer.
    pub fn to_record(self) -> Record {
        let payload = Bytes::copy_from_slice(self.payload);
        Record {
            kind: self.kind,
            term: self.term,
            node: self.node,
            index: self.index,
            payload,
        }
    }
}

/// What the bytes at an offset turned out to be.
#[derive(Debug)]
pub(super) enum Decoded<'a> {
    /// A valid record.
    Record(RecordRef<'a>),
    /// Zeros: nothing was written here.
    End,
    /// The record is longer than the bytes at hand.
    Partial,
    /// Neither zeros nor a record.
    Bad(&'static str),
}

/// Returns how many bytes a record with this payload takes.
pub(super) fn encoded_bytes(payload: usize) -> usize {
    (HEADER_BYTES + payload).next_multiple_of(ALIGN)
}

/// Appends the record's bytes to `out`.
pub(super) fn encode(record: &Record, segment: u32, durable: u32, out: &mut Vec<u8>) {
    assert!(
        (1..=KIND_MAX).contains(&record.kind),
        "kind {} has no place in the format",
        record.kind
    );
    let start = out.len();
    // Segments are at most 1 GiB and a record fits into one, so its length fits.
    out.extend_from_slice(&(record.payload.len() as u32).to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&[record.kind, 0, 0, 0]);
    out.extend_from_slice(&durable.to_le_bytes());
    out.extend_from_slice(&record.term.to_le_bytes());
    out.extend_from_slice(&record.node.to_le_bytes());
    out.extend_from_slice(&record.index.to_le_bytes());
    out.extend_from_slice(&record.payload);
    let sum = checksum(&out[start..], segment);
    out[start + 4..start + 8].copy_from_slice(&sum.to_le_bytes());
    out.resize(start + encoded_bytes(record.payload.len()), 0);
}

/// Reads the record at the start of `bytes`.
pub(super) fn decode(bytes: &[u8], segment: u32) -> Decoded<'_> {
    let Some(header) = bytes.get(..HEADER_BYTES) else {
        return if bytes.iter().all(|byte| *byte == 0) {
            Decoded::End
        } else {
            Decoded::Bad("the record is cut off")
        };
    };
    if header.iter().all(|byte| *byte == 0) {
        return Decoded::End;
    }
    let kind = header[8];
    if kind == 0 || kind > KIND_MAX || header[9..12] != [0; 3] {
        return Decoded::Bad("this is no record header");
    }
    let size = HEADER_BYTES + u32_at(header, 0) as usize;
    let Some(whole) = bytes.get(..size) else {
        return Decoded::Partial;
    };
    if u32_at(header, 4) != checksum(whole, segment) {
        return Decoded::Bad("the checksum does not match");
    }
    Decoded::Record(RecordRef {
        kind,
        term: u64_at(header, 16),
        node: u64_at(header, 24),
        index: u64_at(header, 32),
        payload: &whole[HEADER_BYTES..],
    })
}

fn checksum(record: &[u8], segment: u32) -> u32 {
    let sum = crc32c::crc32c(&segment.to_le_bytes());
    let sum = crc32c::crc32c_append(sum, &record[..4]);
    crc32c::crc32c_append(sum, &record[8..])
}

pub(super) fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[offset..offset + 4]);
    u32::from_le_bytes(word)
}

pub(super) fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[offset..offset + 8]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Record {
        Record {
            kind: 3,
            term: 7,
            node: 1 << 60,
            index: 42,
            payload: Bytes::from_static(b"thirteen byte"),
        }
    }

    fn bytes(record: &Record) -> Vec<u8> {
        let mut out = Vec::new();
        encode(record, 9, 64, &mut out);
        out
    }

    #[test]
    fn a_record_reads_back_as_it_was_written() {
        let out = bytes(&sample());
        assert_eq!(out.len(), encoded_bytes(13));
        let Decoded::Record(read) = decode(&out, 9) else {
            panic!("no record")
        };
        assert_eq!(read.to_record(), sample());
        assert_eq!(u32_at(&out, DURABLE), 64);
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let out = bytes(&sample());
        for bit in 0..(HEADER_BYTES + 13) * 8 {
            let mut changed = out.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(!matches!(decode(&changed, 9), Decoded::Record(_)), "bit {bit} passed");
        }
    }

    #[test]
    fn a_record_in_another_segment_does_not_pass() {
        assert!(matches!(decode(&bytes(&sample()), 8), Decoded::Bad(_)));
    }

    #[test]
    fn zeros_are_an_end_and_a_short_buffer_asks_for_more() {
        assert!(matches!(decode(&[0; 200], 9), Decoded::End));
        assert!(matches!(decode(&bytes(&sample())[..HEADER_BYTES], 9), Decoded::Partial));
    }
}
