//! Compression of answers, for clients that take gzip.
//!
//! Each write of a body is compressed by itself and flushed: it refers to nothing before it, so a stream keeps no compressor between its
//! writes, and thousands of streams share a few. The one rule: what an endpoint has written goes out at once; nothing waits in a
//! compressor for more.

use std::sync::{Arc, Mutex, PoisonError};

use axum::body::{Body, BodyDataStream, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, VARY};
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use flate2::{Compress, Compression, Crc, FlushCompress};
use futures_util::{StreamExt, stream};

/// Answers below this are sent as they are: they fit in a packet, and one that has a secret never shows how it compresses.
const WORTH_BYTES: u64 = 1_024;
/// Writes above this are compressed off the runtime's workers.
const LONG_BYTES: usize = 128 * 1_024;
/// Compressors kept for the next write; each has about 300 KiB.
const KEPT_MAX: usize = 4;
/// Fastest: twice the time of this level saves a tenth of the bytes of JSON.
const LEVEL: u32 = 1;

/// What every gzip stream begins with: no name, no time, any system.
const HEAD: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
/// A last block without content.
const LAST_BLOCK: [u8; 2] = [3, 0];

/// Compressors between two writes.
#[derive(Default)]
pub struct Compressors(Mutex<Vec<Compress>>);

impl Compressors {
    /// Compresses one write up to a byte's end, as blocks that others may follow.
    fn compress(&self, bytes: &[u8]) -> Vec<u8> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut compressor = kept.unwrap_or_else(|| Compress::new(Compression::new(LEVEL), false));
        compressor.reset();
        let mut out = Vec::with_capacity(bytes.len() / 4 + 64);
        loop {
            let taken = usize::try_from(compressor.total_in()).unwrap_or(usize::MAX);
            let rest = bytes.get(taken..).unwrap_or_default();
            let done = compressor.compress_vec(rest, &mut out, FlushCompress::Full);
            let all = usize::try_from(compressor.total_in()).is_ok_and(|taken| taken == bytes.len());
            // Room is left only when the flush is complete.
            if done.is_err() || (all && out.len() < out.capacity()) {
                break;
            }
            out.reserve(out.capacity());
        }
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < KEPT_MAX {
            kept.push(compressor);
        }
        out
    }
}

/// Compresses answers for clients that take it, where it is worth it.
pub async fn squeeze(State(compressors): State<Arc<Compressors>>, request: Request, next: Next) -> Response {
    let takes = takes_gzip(request.headers());
    let mut response = next.run(request).await;
    if !is_text(response.headers()) || response.headers().contains_key(CONTENT_ENCODING) {
        return response;
    }
    response
        .headers_mut()
        .append(VARY, HeaderValue::from_static("accept-encoding"));
    let small = response
        .body()
        .size_hint()
        .exact()
        .is_some_and(|bytes| bytes < WORTH_BYTES);
    if !takes || small {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    parts.headers.remove(CONTENT_LENGTH);
    parts.headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    let squeezed = Squeezed {
        compressors,
        body: body.into_data_stream(),
        crc: Crc::new(),
        begun: false,
    };
    Response::from_parts(parts, Body::from_stream(stream::unfold(Some(squeezed), next_piece)))
}

/// A body on its way through.
struct Squeezed {
    compressors: Arc<Compressors>,
    body: BodyDataStream,
    /// Of all that came through; the end of the stream shows it.
    crc: Crc,
    begun: bool,
}

async fn next_piece(squeezed: Option<Squeezed>) -> Option<(Result<Bytes, axum::Error>, Option<Squeezed>)> {
    let mut squeezed = squeezed?;
    let mut out = match std::mem::replace(&mut squeezed.begun, true) {
        true => Vec::new(),
        false => HEAD.to_vec(),
    };
    match squeezed.body.next().await {
        Some(Ok(bytes)) => {
            squeezed.crc.update(&bytes);
            out.extend(compressed(&squeezed.compressors, bytes).await);
            Some((Ok(out.into()), Some(squeezed)))
        }
        Some(Err(error)) => Some((Err(error), None)),
        None => {
            out.extend(LAST_BLOCK);
            out.extend(squeezed.crc.sum().to_le_bytes());
            out.extend(squeezed.crc.amount().to_le_bytes());
            Some((Ok(out.into()), None))
        }
    }
}

async fn compressed(compressors: &Arc<Compressors>, bytes: Bytes) -> Vec<u8> {
    if bytes.len() <= LONG_BYTES {
        return compressors.compress(&bytes);
    }
    let compressors = compressors.clone();
    let work = tokio::task::spawn_blocking(move || compressors.compress(&bytes));
    work.await.unwrap_or_default()
}

/// Whether the client names gzip, or anything, and does not rule it out.
fn takes_gzip(headers: &HeaderMap) -> bool {
    let said = headers.get_all(ACCEPT_ENCODING).iter();
    let words = said
        .filter_map(|value| value.to_str().ok())
        .flat_map(|text| text.split(','));
    let mut any = false;
    for word in words {
        let mut parts = word.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let weight = parts.find_map(|part| part.strip_prefix("q="));
        let takes = weight.is_none_or(|weight| weight.parse::<f32>().is_ok_and(|weight| weight > 0.0));
        match name {
            "gzip" | "x-gzip" => return takes,
            "*" => any = takes,
            _ => {}
        }
    }
    any
}

/// Only text is compressed: what else the interface serves is compressed or sealed already.
fn is_text(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next()).unwrap_or_default();
    kind.starts_with("text/") || kind.ends_with("json")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Read;

    use super::*;

    fn accepts(text: &'static str) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(text));
        takes_gzip(&headers)
    }

    #[test]
    fn gzip_is_taken_when_it_is_named_and_not_ruled_out() {
        for yes in ["gzip", "br, gzip;q=0.5", "*", "x-gzip", "deflate, gzip ; q=1"] {
            assert!(accepts(yes), "{yes}");
        }
        for no in [
            "",
            "br",
            "gzip;q=0",
            "gzip;q=0.0, *",
            "identity",
            "*;q=0",
            "gzip;q=much",
        ] {
            assert!(!accepts(no), "{no}");
        }
    }

    #[test]
    fn writes_of_any_size_follow_one_another_to_one_gzip_stream() {
        let compressors = Compressors::default();
        let (mut whole, mut crc, mut stream) = (Vec::new(), Crc::new(), HEAD.to_vec());
        for size in [0, 1, 63, 64, 65, 1_000, 40_000, 300_000] {
            let write: Vec<u8> = (0..size).map(|at: u64| (at * at / 7 % 251) as u8).collect();
            crc.update(&write);
            stream.extend(compressors.compress(&write));
            whole.extend(write);
            // What was written so far is there, though more follows.
            let mut so_far = vec![0; whole.len()];
            flate2::read::GzDecoder::new(&stream[..])
                .read_exact(&mut so_far)
                .unwrap();
            assert!(so_far == whole, "after a write of {size}");
        }
        stream.extend(LAST_BLOCK);
        stream.extend(crc.sum().to_le_bytes());
        stream.extend(crc.amount().to_le_bytes());
        let mut read = Vec::new();
        flate2::read::GzDecoder::new(&stream[..])
            .read_to_end(&mut read)
            .unwrap();
        assert!(read == whole);
    }
}
