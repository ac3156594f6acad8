//! A real trace as input: each arrival becomes a lease, each lease a real process that lives for its scaled time.
//!
//! The pod lists of the openb trace give creation and deletion times; fractions of a card are rounded up. Afterwards
//! the event stream alone must tell the outcome: every lease completed, billed to the unit, no device held twice.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use holdfast_proto::tariff::amount_micros;
use holdfast_proto::time::Span;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::story::ready;
use super::{DemoError, Stage, events, three_zones, until};
use crate::env::{Clock, OsClock};
use crate::local::LocalCluster;

/// Seconds that the arrivals take when no speed is asked for.
const ARRIVALS_S: u64 = 30;
/// Shortest life of a process, so that it is one.
const LIFE_MS_MIN: u64 = 20;
/// Requests in flight at once.
const REQUESTS_MAX: usize = 8;
/// Longest wait for the last lease to end.
const WITHIN: Duration = Duration::from_secs(600);

/// One arrival of the trace.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Arrival {
    devices: u32,
    at_s: u64,
    life_s: u64,
}

/// Sends the first `count` arrivals to a local cluster, checks what came of them, and returns a summary.
pub(super) async fn replay(
    program: &Path,
    stage: &Stage,
    path: &Path,
    count: u64,
    speed_up: Option<u64>,
) -> Result<Value, DemoError> {
    let wrong = |why: String| DemoError::Trace {
        path: path.display().to_string(),
        why,
    };
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    let arrivals = parse(&text, usize::try_from(count).unwrap_or(usize::MAX)).map_err(wrong)?;
    let (first, last) = (arrivals[0].at_s, arrivals[arrivals.len() - 1].at_s);
    let speed_up = speed_up.unwrap_or_else(|| ((last - first) / ARRIVALS_S).max(1));
    let cluster = Arc::new(LocalCluster::start(program, &three_zones()).await?);
    ready(&cluster).await?;
    stage.say(&format!(
        "{} arrivals, {speed_up} times faster than they were",
        arrivals.len()
    ));

    let clock = OsClock;
    let (began, room) = (clock.boot_ms(), Arc::new(Semaphore::new(REQUESTS_MAX)));
    let mut requests = JoinSet::new();
    for arrival in &arrivals {
        let due_ms = began + (arrival.at_s - first) * 1000 / speed_up;
        tokio::time::sleep(Duration::from_millis(due_ms.saturating_sub(clock.boot_ms()))).await;
        let life_ms = (arrival.life_s * 1000 / speed_up).max(LIFE_MS_MIN);
        let (cluster, room, devices) = (cluster.clone(), room.clone(), arrival.devices);
        requests.spawn(async move {
            let _permit = room.acquire_owned().await;
            let (shape, life) = (
                format!("{devices}xany"),
                format!("{}.{:03}", life_ms / 1000, life_ms % 1000),
            );
            let arguments = [
                "lease", &shape, "--for", "1h", "--yes", "--detach", "--", "sleep", &life,
            ];
            cluster.json(&arguments).await.map(|_| ())
        });
    }
    while let Some(done) = requests.join_next().await {
        done.map_err(|error| DemoError::Claim(error.to_string()))??;
    }
    let all = arrivals.len();
    until(
        &cluster,
        &["cluster", "status"],
        "the end of every lease",
        WITHIN,
        |status| (status["leases"].as_u64() == Some(0)).then_some(()),
    )
    .await?;
    let outcome = judge(&events(&cluster).await?)?;
    if outcome.completed != all {
        return Err(DemoError::Claim(format!(
            "{} of {all} leases completed: {:?}",
            outcome.completed, outcome.others
        )));
    }
    stage.say(&format!(
        "{all} leases completed, {} micro-units billed, no device held twice",
        outcome.billed_micros
    ));
    Ok(
        json!({ "ok": true, "leases": all, "completed": outcome.completed, "double_runs": 0,
               "bill_total_micros": outcome.billed_micros, "took_s": (clock.boot_ms() - began) / 1000 }),
    )
}

/// What the event stream alone tells.
#[derive(Debug, Default)]
struct Outcome {
    completed: usize,
    others: BTreeMap<String, usize>,
    billed_micros: u64,
}

/// What the stream has told of one lease so far.
#[derive(Debug, Default)]
struct Told {
    activated_ms: Option<u64>,
    charged_ms: u64,
    /// It was not heard, or moved: its time is not simply from its start to its end.
    was_disturbed: bool,
}

impl Told {
    /// The time from the start of a lease that ended undisturbed at `ended_ms`, less what was charged; 0 when it is right.
    fn uncharged_ms(&self, ended_ms: u64) -> u64 {
        let ran_ms = self.activated_ms.map_or(0, |began| ended_ms - began);
        if self.was_disturbed {
            0
        } else {
            ran_ms.abs_diff(self.charged_ms)
        }
    }
}

/// Folds the public events into the outcome, and checks each bill and each grant on the way.
fn judge(events: &[Value]) -> Result<Outcome, DemoError> {
    let claim = |text: String| Err(DemoError::Claim(text));
    let mut outcome = Outcome::default();
    let mut held: BTreeMap<String, String> = BTreeMap::new();
    let mut told: BTreeMap<String, Told> = BTreeMap::new();
    for event in events {
        let body = &event["data"];
        let at_ms = event["timems"].as_u64().unwrap_or_default();
        let lease = body["lease"].as_str().unwrap_or_default().to_owned();
        let of_lease = told.entry(lease.clone()).or_default();
        match body["type"].as_str() {
            Some("placement-committed") => {
                for device in devices_of(body) {
                    if let Some(holder) = held.insert(device.clone(), lease.clone())
                        && holder != lease
                    {
                        return claim(format!("{device} was granted to {lease} while {holder} held it"));
                    }
                }
            }
            Some("allocation-ended") => held.retain(|_, holder| *holder != lease),
            Some("lease-activated") => of_lease.activated_ms = of_lease.activated_ms.or(Some(at_ms)),
            Some("lease-frozen" | "lease-migrating" | "attempt-ended") => of_lease.was_disturbed = true,
            Some("lease-charged") => {
                let number = |key: &str| body[key].as_u64().unwrap_or_default();
                let span = Span(number("until") - number("from") - number("unpaid"));
                let amount = amount_micros(span, number("micros_per_hour"));
                if amount != body["amount_micros"].as_u64() {
                    return claim(format!("{lease} was charged {} for {span}", body["amount_micros"]));
                }
                of_lease.charged_ms += span.0;
                outcome.billed_micros += number("amount_micros");
            }
            Some("lease-ended") => {
                let off_ms = of_lease.uncharged_ms(at_ms);
                if off_ms > 0 {
                    return claim(format!("{lease} was charged for {off_ms} ms more or less than it ran"));
                }
                match body["reason"].as_str() {
                    Some("completed") => outcome.completed += 1,
                    other => *outcome.others.entry(other.unwrap_or("?").to_owned()).or_default() += 1,
                }
            }
            _ => {}
        }
    }
    Ok(outcome)
}

fn devices_of(placement: &Value) -> Vec<String> {
    let allocations = placement["allocations"].as_array().cloned().unwrap_or_default();
    let devices = allocations
        .iter()
        .flat_map(|allocation| allocation["devices"].as_array().cloned().unwrap_or_default());
    devices
        .filter_map(|device| device.as_str().map(str::to_owned))
        .collect()
}

/// Reads the first `count` arrivals that ask for a card and have both times, in order of arrival.
fn parse(text: &str, count: usize) -> Result<Vec<Arrival>, String> {
    let mut lines = text.lines();
    let header: Vec<&str> = lines
        .next()
        .ok_or("the file is empty")?
        .trim_start_matches('\u{feff}')
        .split(',')
        .collect();
    let column = |name: &str| {
        let found = header.iter().position(|title| title.trim() == name);
        found.ok_or_else(|| format!("its first line has no column {name}"))
    };
    let (cards, created, deleted) = (column("num_gpu")?, column("creation_time")?, column("deletion_time")?);
    let mut arrivals = Vec::new();
    for (at, line) in lines.enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let fields: Vec<&str> = line.split(',').collect();
        let field = |column: usize| fields.get(column).map(|text| text.trim()).unwrap_or_default();
        let number = |column: usize| {
            let parsed = field(column).parse::<u64>();
            parsed.map_err(|_| format!("line {}: `{}` is not a number", at + 2, field(column)))
        };
        if number(cards)? == 0 || field(deleted).is_empty() {
            continue;
        }
        let devices = u32::try_from(number(cards)?).map_err(|_| format!("line {}: too many cards", at + 2))?;
        let (at_s, until_s) = (number(created)?, number(deleted)?);
        arrivals.push(Arrival {
            devices,
            at_s,
            life_s: until_s.saturating_sub(at_s),
        });
    }
    arrivals.sort_by_key(|arrival| arrival.at_s);
    arrivals.truncate(count);
    if arrivals.is_empty() {
        Err("it holds no arrival that asks for a card".to_owned())
    } else {
        Ok(arrivals)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n";

    #[test]
    fn arrivals_are_read_in_order_and_without_those_that_ask_for_no_card() {
        let text = format!(
            "{HEADER}b,1,1,2,1000,,LS,Running,70,90,70\nnone,1,1,0,0,,LS,Running,1,2,1\na,1,1,1,460,A|B,LS,Running,5,105,5\n"
        );
        let expected = vec![
            Arrival {
                devices: 1,
                at_s: 5,
                life_s: 100,
            },
            Arrival {
                devices: 2,
                at_s: 70,
                life_s: 20,
            },
        ];
        assert_eq!(parse(&text, 9), Ok(expected.clone()));
        assert_eq!(parse(&text, 1), Ok(expected[..1].to_vec()));
    }

    #[test]
    fn a_file_that_is_no_trace_says_what_is_missing() {
        assert!(parse("", 1).unwrap_err().contains("empty"));
        assert!(parse("a,b\n", 1).unwrap_err().contains("num_gpu"));
        assert!(
            parse(&format!("{HEADER}x,1,1,one,1,,,,1,2,1\n"), 1)
                .unwrap_err()
                .contains("line 2")
        );
    }

    #[test]
    fn a_device_granted_twice_is_found_in_the_stream() {
        let grant = |lease: &str| json!({"data": {"type": "placement-committed", "lease": lease, "allocations": [{"devices": ["GPU-1"]}]}});
        let end = json!({"data": {"type": "allocation-ended", "lease": "lease-1"}});
        assert!(judge(&[grant("lease-1"), end, grant("lease-2")]).is_ok());
        assert!(judge(&[grant("lease-1"), grant("lease-2")]).is_err());
    }

    #[test]
    fn a_bill_that_is_off_by_one_unit_is_found_in_the_stream() {
        let line = |amount: u64| {
            json!({"data": {"type": "lease-charged", "lease": "lease-1", "from": 0, "until": 3_600_000, "unpaid": 0,
                            "micros_per_hour": 7, "amount_micros": amount}})
        };
        assert_eq!(judge(&[line(7)]).unwrap().billed_micros, 7);
        assert!(judge(&[line(8)]).is_err());
    }

    #[test]
    fn time_that_was_run_and_not_charged_is_found_in_the_stream() {
        let at = |ms: u64, data: Value| json!({"timems": ms, "data": data});
        let started = at(1_000, json!({"type": "lease-activated", "lease": "lease-1"}));
        let charged = json!({"type": "lease-charged", "lease": "lease-1", "from": 1_000, "until": 3_000, "unpaid": 0,
                             "micros_per_hour": 1_800, "amount_micros": 1});
        let ended = |ms| {
            at(
                ms,
                json!({"type": "lease-ended", "lease": "lease-1", "reason": "completed"}),
            )
        };
        assert!(judge(&[started.clone(), at(3_000, charged.clone()), ended(3_000)]).is_ok());
        assert!(judge(&[started.clone(), at(3_000, charged), ended(3_001)]).is_err());
        assert!(judge(&[started.clone(), ended(3_000)]).is_err());
        assert!(judge(&[started, ended(1_000)]).is_ok(), "no time, no line");
    }
}
