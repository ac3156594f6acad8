//! Fan-out of a NATS JetStream to many subscribers: the other side of `benches/versus_nats.sh`.
//!
//! Speaks the NATS protocol by hand. Makes a stream with three replicas on disk, publishes to it at a steady rate without subscribers and
//! then with them, each a push consumer of its own on a connection of its own to one server, and prints one line of JSON: what the
//! servers' processes used on top, by delivered message, and how long after storing a message it arrived.
//!
//! `nats_fan ENDPOINT SERVER_PID[,SERVER_PID…] SUBSCRIBERS RATE SECONDS`

#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::watch;
use tokio::task::JoinSet;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Length of a message, as of a note of `holdfast bench events`.
const MESSAGE_BYTES: usize = 256;
/// Messages are published in bursts this long, as there.
const BURST_MS: u64 = 20;
/// Longest wait for anything.
const WITHIN: Duration = Duration::from_secs(60);

const STREAM: &str = r#"{"name":"BENCH","subjects":["bench"],"retention":"limits","storage":"file","num_replicas":3,"max_consumers":-1,"max_msgs":-1,"max_bytes":-1,"max_age":0,"discard":"old"}"#;

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [endpoint, pids, numbers @ ..] = &arguments[..] else {
        usage();
    };
    let numbers: Vec<u64> = numbers.iter().filter_map(|number| number.parse().ok()).collect();
    let [subscribers, rate, seconds] = numbers[..] else {
        usage()
    };
    let pids: Vec<u64> = pids.split(',').filter_map(|pid| pid.parse().ok()).collect();
    match measure(endpoint, &pids, subscribers, rate, seconds).await {
        Ok(line) => println!("{line}"),
        Err(error) => {
            eprintln!("nats_fan: {error}");
            std::process::exit(1);
        }
    }
}

fn usage() -> ! {
    eprintln!("usage: nats_fan ENDPOINT SERVER_PID[,SERVER_PID…] SUBSCRIBERS RATE SECONDS");
    std::process::exit(64)
}

async fn measure(endpoint: &str, pids: &[u64], subscribers: u64, rate: u64, seconds: u64) -> Result<String, Failure> {
    let mut writer = Link::connect(endpoint).await?;
    writer.ask("$JS.API.STREAM.CREATE.BENCH", STREAM).await?;
    let (_, alone_us) = publish(&mut writer, pids, rate, seconds).await?;
    let (over, ends) = watch::channel(None);
    let mut reading = JoinSet::new();
    for at in 0..subscribers {
        let mut link = Link::connect(endpoint).await?;
        let subject = format!("deliver.{at}");
        link.say(&format!("SUB {subject} 7\r\n")).await?;
        let config = format!(
            r#"{{"stream_name":"BENCH","config":{{"deliver_subject":"{subject}","deliver_policy":"new","ack_policy":"none","replay_policy":"instant","num_replicas":1,"mem_storage":true}}}}"#
        );
        link.ask("$JS.API.CONSUMER.CREATE.BENCH", &config).await?;
        reading.spawn(read(link, ends.clone()));
    }
    let (published, crowd_us) = publish(&mut writer, pids, rate, seconds).await?;
    over.send(Some(published))?;
    let (mut delivered, mut wrong, mut latencies) = (0, 0, Vec::new());
    while let Some(done) = reading.join_next().await {
        let given = done??;
        delivered += given.latencies_us.len() as u64;
        wrong += given.wrong;
        latencies.extend(given.latencies_us);
    }
    latencies.sort_unstable();
    let complete = wrong == 0 && delivered == published * subscribers;
    let each = |us: u64| us as f64 / delivered.max(1) as f64;
    let ms = |permille: usize| {
        let at = (latencies.len() * permille).div_ceil(1000).saturating_sub(1);
        latencies.get(at).copied().unwrap_or_default() as f64 / 1e3
    };
    Ok(format!(
        r#"{{"complete":{complete},"cpu_us_per_delivery":{:.2},"cluster_cpu_us_per_delivery":{:.2},"p50_ms":{:.2},"p99_ms":{:.2},"delivered":{delivered}}}"#,
        each(crowd_us.saturating_sub(alone_us)),
        each(crowd_us),
        ms(500),
        ms(990)
    ))
}

/// Publishes at the rate, and waits until all is stored; gives how many messages, and the CPU that the servers used.
async fn publish(link: &mut Link, pids: &[u64], rate: u64, seconds: u64) -> Result<(u64, u64), Failure> {
    let before_us = cpu_us(pids);
    let text = "x".repeat(MESSAGE_BYTES);
    let message = format!("PUB bench {} {MESSAGE_BYTES}\r\n{text}\r\n", link.inbox);
    let mut every = tokio::time::interval(Duration::from_millis(BURST_MS));
    let (mut begun, mut stored) = (0, 0);
    for burst in 1..=seconds * 1_000 / BURST_MS {
        every.tick().await;
        let due = rate * BURST_MS * burst / 1_000;
        let several = message.repeat(usize::try_from(due - begun)?);
        link.say(&several).await?;
        begun = due;
        while let Ok(answer) = tokio::time::timeout(Duration::from_millis(1), link.message()).await {
            stored += u64::from(is_stored(&answer?.text)?);
        }
    }
    while stored < begun {
        let answer = tokio::time::timeout(WITHIN, link.message()).await??;
        stored += u64::from(is_stored(&answer.text)?);
    }
    Ok((begun, cpu_us(pids).saturating_sub(before_us)))
}

fn is_stored(answer: &str) -> Result<bool, Failure> {
    if answer.contains("\"error\"") {
        return Err(answer.into());
    }
    Ok(answer.contains("\"seq\""))
}

/// What one subscriber was given.
#[derive(Default)]
struct Given {
    latencies_us: Vec<u64>,
    /// Messages that do not follow the one before.
    wrong: u64,
}

async fn read(mut link: Link, mut ends: watch::Receiver<Option<u64>>) -> Result<Given, Failure> {
    let (mut given, mut last) = (Given::default(), 0);
    loop {
        let whole = *ends.borrow();
        if whole.is_some_and(|whole| given.latencies_us.len() as u64 >= whole) {
            return Ok(given);
        }
        let message = tokio::select! {
            message = tokio::time::timeout(WITHIN, link.message()) => message??,
            changed = ends.changed(), if whole.is_none() => {
                changed?;
                continue;
            }
        };
        // $JS.ACK.<stream>.<consumer>.<deliveries>.<stream sequence>.<consumer sequence>.<stored, ns>.<pending>
        let parts: Vec<u64> = message.reply.split('.').filter_map(|part| part.parse().ok()).collect();
        let [.., sequence, _, stored_ns, _] = parts[..] else {
            return Err(format!("no such reply subject is known: {}", message.reply).into());
        };
        given.wrong += u64::from(last != 0 && sequence != last + 1);
        last = sequence;
        let now_ns = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
        given
            .latencies_us
            .push(u64::try_from(now_ns.saturating_sub(u128::from(stored_ns)) / 1_000)?);
    }
}

/// A connection.
struct Link {
    from: BufReader<OwnedReadHalf>,
    to: OwnedWriteHalf,
    inbox: String,
    /// Half a line, when whoever waited for it stopped waiting.
    line: String,
    /// The head of a message whose text has not come yet, and what has.
    head: Option<(String, usize)>,
    text: Vec<u8>,
}

struct Message {
    reply: String,
    text: String,
}

impl Link {
    async fn connect(endpoint: &str) -> Result<Self, Failure> {
        let stream = TcpStream::connect(endpoint).await?;
        stream.set_nodelay(true)?;
        let inbox = format!("_INBOX.{}", stream.local_addr()?.port());
        let (from, to) = stream.into_split();
        let mut link = Self {
            from: BufReader::with_capacity(256 << 10, from),
            to,
            inbox,
            line: String::new(),
            head: None,
            text: Vec::new(),
        };
        let inbox = link.inbox.clone();
        link.say(&format!(
            "CONNECT {{\"verbose\":false,\"pedantic\":false}}\r\nSUB {inbox} 1\r\n"
        ))
        .await?;
        Ok(link)
    }

    async fn say(&mut self, text: &str) -> Result<(), Failure> {
        Ok(self.to.write_all(text.as_bytes()).await?)
    }

    /// Asks the JetStream interface, until its leaders are elected.
    async fn ask(&mut self, subject: &str, order: &str) -> Result<(), Failure> {
        let ask = format!("PUB {subject} {} {}\r\n{order}\r\n", self.inbox, order.len());
        for _ in 0..60 {
            self.say(&ask).await?;
            let answer = tokio::time::timeout(Duration::from_secs(5), self.message()).await;
            match answer {
                Ok(answer) if !answer.as_ref().is_ok_and(|answer| answer.text.contains("\"error\"")) => {
                    return answer.map(drop);
                }
                Ok(_) | Err(_) => tokio::time::sleep(Duration::from_millis(500)).await,
            }
        }
        Err(format!("{subject} is not answered").into())
    }

    /// The next message. A call that is dropped loses nothing.
    async fn message(&mut self) -> Result<Message, Failure> {
        loop {
            if let Some((reply, length)) = &self.head {
                let length = *length + 2;
                while self.text.len() < length {
                    let missing = (length - self.text.len()) as u64;
                    if (&mut self.from).take(missing).read_buf(&mut self.text).await? == 0 {
                        return Err("the server ended the connection".into());
                    }
                }
                let reply = reply.clone();
                let text = String::from_utf8_lossy(&self.text).into_owned();
                self.text.clear();
                self.head = None;
                return Ok(Message { reply, text });
            }
            if self.from.read_line(&mut self.line).await? == 0 {
                return Err("the server ended the connection".into());
            }
            let line = std::mem::take(&mut self.line);
            match line.split_whitespace().collect::<Vec<_>>()[..] {
                ["MSG", _, _, reply, length] => self.head = Some((reply.to_owned(), length.parse()?)),
                ["MSG", _, _, length] => self.head = Some((String::new(), length.parse()?)),
                ["PING"] => self.say("PONG\r\n").await?,
                ["-ERR", ..] => return Err(line.into()),
                _ => {}
            }
        }
    }
}

/// CPU time that processes have used so far.
fn cpu_us(pids: &[u64]) -> u64 {
    let of = |pid: &u64| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let after_name = stat
            .rsplit_once(')')
            .map(|(_, rest)| rest.to_owned())
            .unwrap_or_default();
        let ticks = after_name.split_whitespace().skip(11).take(2);
        ticks.filter_map(|field| field.parse::<u64>().ok()).sum::<u64>() * 10_000
    };
    pids.iter().map(of).sum()
}
