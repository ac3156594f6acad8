//! Writes to etcd as fast as etcd takes it: the other side of `benches/versus_etcd.sh`.
//!
//! Speaks gRPC by hand over eight persistent HTTP/2 connections to the leader, because a client that costs much CPU would take it from
//! the servers beside it. So many clients each wait for one put of 256 bytes before they send the next. Prints one line of JSON.
//!
//! `etcd_load ENDPOINT[,ENDPOINT…] CLIENTS SECONDS`, with endpoints as `host:port`, after one second of warming up.

#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};
use h2::client::SendRequest;
use http::Request;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Persistent connections, as in etcd's own advice for load.
const CONNECTIONS: usize = 8;
/// Length of a value.
const VALUE_BYTES: usize = 256;
/// Keys that are written in turn.
const KEYS: u64 = 100_000;
/// What precedes a gRPC message: a flag and its length.
const PREFIX_BYTES: usize = 5;
const WARM_UP: Duration = Duration::from_secs(1);

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [endpoints, clients, seconds] = &arguments[..] else {
        eprintln!("usage: etcd_load ENDPOINT[,ENDPOINT…] CLIENTS SECONDS");
        std::process::exit(64);
    };
    let (Ok(clients), Ok(seconds)) = (clients.parse(), seconds.parse()) else {
        eprintln!("etcd_load: CLIENTS and SECONDS are numbers");
        std::process::exit(64);
    };
    if let Err(error) = load(endpoints, clients, seconds).await {
        eprintln!("etcd_load: {error}");
        std::process::exit(1);
    }
}

async fn load(endpoints: &str, clients: u64, seconds: u64) -> Result<(), Failure> {
    let leader = find_leader(endpoints).await?;
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        connections.push(connect(&leader).await?);
    }
    let begins = Instant::now() + WARM_UP;
    let ends = begins + Duration::from_secs(seconds);
    let mut tasks = JoinSet::new();
    for client in 0..clients {
        let connection = connections[client as usize % CONNECTIONS].clone();
        tasks.spawn(write_until(connection, client, begins, ends));
    }
    let (mut latencies, mut writes, mut failures) = (Vec::new(), 0, 0);
    while let Some(done) = tasks.join_next().await {
        let (own, made, failed) = done?;
        latencies.extend(own);
        writes += made;
        failures += failed;
    }
    latencies.sort_unstable();
    let percentile = |permille: usize| {
        let at = (latencies.len() * permille).div_ceil(1000).saturating_sub(1);
        latencies.get(at).copied().unwrap_or(0_u64) as f64 / 1000.0
    };
    println!(
        "{{\"writes_per_s\":{},\"p50_ms\":{},\"p99_ms\":{},\"clients\":{clients},\"writes\":{writes},\"failures\":{failures},\"client_cpu_us\":{}}}",
        latencies.len() as u64 / seconds,
        percentile(500),
        percentile(990),
        cpu_us(),
    );
    Ok(())
}

/// Microseconds of CPU time that this process has used.
fn cpu_us() -> u64 {
    let usage = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    usage.tv_sec as u64 * 1_000_000 + usage.tv_nsec as u64 / 1_000
}

async fn write_until(
    connection: SendRequest<Bytes>,
    client: u64,
    begins: Instant,
    ends: Instant,
) -> (Vec<u64>, u64, u64) {
    let (mut latencies, mut writes, mut failures) = (Vec::new(), 0, 0);
    let mut key = client;
    loop {
        let asked = Instant::now();
        if asked >= ends {
            return (latencies, writes, failures);
        }
        key = (key + 997) % KEYS;
        match call(&connection, "/etcdserverpb.KV/Put", put(key)).await {
            Ok(_) => {
                writes += 1;
                let told = Instant::now();
                if asked >= begins && told < ends {
                    latencies.push(told.duration_since(asked).as_micros() as u64);
                }
            }
            Err(error) => {
                failures += 1;
                if failures == 1 {
                    eprintln!("etcd_load: {error}");
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

/// The endpoint whose member leads.
async fn find_leader(endpoints: &str) -> Result<String, Failure> {
    for endpoint in endpoints.split(',') {
        let connection = connect(endpoint).await?;
        let status = call(&connection, "/etcdserverpb.Maintenance/Status", BytesMut::new()).await?;
        // StatusResponse: 1 is the header, whose 2 is this member; 4 is the leader.
        let header = field(&status, 1).map(|header| header.bytes).unwrap_or_default();
        let (member, leader) = (field(&header, 2), field(&status, 4));
        if member
            .zip(leader)
            .is_some_and(|(member, leader)| member.number == leader.number)
        {
            return Ok(endpoint.to_owned());
        }
    }
    Err("no member leads".into())
}

async fn connect(endpoint: &str) -> Result<SendRequest<Bytes>, Failure> {
    let stream = TcpStream::connect(endpoint).await?;
    stream.set_nodelay(true)?;
    let (connection, driver) = h2::client::Builder::new()
        .max_concurrent_reset_streams(0)
        .handshake(stream)
        .await?;
    tokio::spawn(driver);
    Ok(connection)
}

/// One unary call; fails unless the status is 0.
async fn call(connection: &SendRequest<Bytes>, path: &'static str, message: BytesMut) -> Result<Bytes, Failure> {
    let request = Request::post(format!("http://etcd{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())?;
    let mut ready = connection.clone().ready().await?;
    let (response, mut send) = ready.send_request(request, false)?;
    let mut frame = BytesMut::with_capacity(PREFIX_BYTES + message.len());
    frame.put_u8(0);
    frame.put_u32(message.len() as u32);
    frame.put_slice(&message);
    send.send_data(frame.freeze(), true)?;
    let response = response.await?;
    let at_once = response.headers().get("grpc-status").cloned();
    let mut body = response.into_body();
    let mut answer = BytesMut::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk?;
        body.flow_control().release_capacity(chunk.len())?;
        answer.extend_from_slice(&chunk);
    }
    let (trailers, length) = (body.trailers().await?, answer.len());
    let status = at_once.or_else(|| trailers.and_then(|trailers| trailers.get("grpc-status").cloned()));
    match status {
        Some(status) if status == "0" => Ok(answer.freeze().slice(PREFIX_BYTES.min(length)..)),
        other => Err(format!("etcd answers {other:?}").into()),
    }
}

/// `PutRequest`: 1 is the key, 2 the value.
fn put(key: u64) -> BytesMut {
    let key = format!("bench/{key:08}");
    let mut message = BytesMut::with_capacity(key.len() + VALUE_BYTES + 8);
    message.put_u8(0x0a);
    put_varint(&mut message, key.len() as u64);
    message.put_slice(key.as_bytes());
    message.put_u8(0x12);
    put_varint(&mut message, VALUE_BYTES as u64);
    message.put_bytes(b'x', VALUE_BYTES);
    message
}

fn put_varint(out: &mut BytesMut, mut value: u64) {
    while value >= 0x80 {
        out.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

/// A field of a protobuf message: its number or its bytes, whichever it has.
#[derive(Default)]
struct Field {
    number: u64,
    bytes: Bytes,
}

/// The first field with this tag, of the two wire types that are used here.
fn field(message: &Bytes, wanted: u64) -> Option<Field> {
    let mut at = 0;
    while at < message.len() {
        let tag = varint(message, &mut at)?;
        let mut found = Field {
            number: varint(message, &mut at)?,
            ..Field::default()
        };
        match tag & 7 {
            0 => {}
            2 => {
                let end = at
                    .checked_add(found.number as usize)
                    .filter(|end| *end <= message.len())?;
                found.bytes = message.slice(at..end);
                at = end;
            }
            _ => return None,
        }
        if tag >> 3 == wanted {
            return Some(found);
        }
    }
    None
}

fn varint(message: &[u8], at: &mut usize) -> Option<u64> {
    let (mut value, mut shift) = (0, 0);
    loop {
        let byte = *message.get(*at)?;
        *at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
        shift += 7;
        if shift > 63 {
            return None;
        }
    }
}
