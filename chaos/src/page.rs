//! A run as a page: what broke, what befell whom, and when, for people who look into a failure.
//!
//! Made from a case's report with its complete trace. The one rule: the page needs nothing but itself, neither script nor
//! network, so that it can be kept and sent.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::report::{Counts, Report};
use crate::trace::{Event, Kind, LEASE_PHASES};
use crate::world::people::{CLIENTS, SUBSCRIBERS};

/// Width of the picture, and of the names left of it, in pixels.
const WIDTH: f64 = 1_100.0;
const NAMES: f64 = 110.0;
/// Height of a lane, and of the curves, in pixels.
const LANE: f64 = 26.0;
const CURVES: f64 = 160.0;
/// Height of a lease's row, in pixels, and how many are shown.
const ROW: f64 = 8.0;
const LEASES_MAX: usize = 60;
/// Points of a curve at most.
const POINTS_MAX: usize = 300;
/// Events shown at the end of a page.
const EVENTS_SHOWN: usize = 200;

/// One stretch of time on a lane, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stretch {
    from_ns: u64,
    to_ns: u64,
}

/// What the trace tells of one replica.
#[derive(Debug, Default, PartialEq, Eq)]
struct Lane {
    down: Vec<Stretch>,
    leads: Vec<Stretch>,
    /// Index applied, by time.
    applied: Vec<(u64, u64)>,
}

/// What the trace tells.
#[derive(Debug, Default, PartialEq, Eq)]
struct Times {
    end_ns: u64,
    replicas: BTreeMap<u64, Lane>,
    /// Number of the fault in the plan, by time.
    faults: Vec<(u64, u64)>,
    /// Outcome of a request, by time, for each client.
    requests: BTreeMap<u64, Vec<(u64, u64)>>,
    /// Phase of each lease, by time.
    leases: BTreeMap<u64, Vec<(u64, u64)>>,
}

impl Times {
    fn of(events: &[Event]) -> Self {
        let mut times = Self {
            end_ns: events.last().map_or(1, |event| event.at_ns.max(1)),
            ..Self::default()
        };
        let mut leader: Option<(u64, u64)> = None;
        let mut fell: BTreeMap<u64, u64> = BTreeMap::new();
        for event in events {
            let (at_ns, host) = (event.at_ns, event.host);
            let replica = (1..CLIENTS).contains(&host);
            // Only a task that runs shows that the process is back: packets to it are lost all the time.
            if event.kind == Kind::Poll
                && let Some(from_ns) = fell.remove(&host)
            {
                let down = Stretch { from_ns, to_ns: at_ns };
                times.replicas.entry(host).or_default().down.push(down);
            }
            match event.kind {
                Kind::Kill if replica => {
                    fell.insert(host, at_ns);
                    times.led(leader.take_if(|(led, _)| *led == host), at_ns);
                }
                Kind::Lead => times.led(leader.replace((host, at_ns)), at_ns),
                Kind::Apply if replica => {
                    let lane = times.replicas.entry(host).or_default();
                    lane.applied.push((at_ns, event.words[0]));
                }
                Kind::Lease => {
                    let lease = times.leases.entry(event.words[0]).or_default();
                    lease.push((at_ns, event.words[1]));
                }
                Kind::Fault => times.faults.push((at_ns, event.words[0])),
                Kind::Operation if (CLIENTS..SUBSCRIBERS).contains(&host) => {
                    let client = times.requests.entry(host - CLIENTS).or_default();
                    client.push((at_ns, event.words[1]));
                }
                _ => {}
            }
        }
        let end_ns = times.end_ns;
        times.led(leader, end_ns);
        for (host, from_ns) in fell {
            let down = Stretch { from_ns, to_ns: end_ns };
            times.replicas.entry(host).or_default().down.push(down);
        }
        times
    }

    /// A leadership ends.
    fn led(&mut self, leader: Option<(u64, u64)>, to_ns: u64) {
        if let Some((host, from_ns)) = leader {
            self.replicas
                .entry(host)
                .or_default()
                .leads
                .push(Stretch { from_ns, to_ns });
        }
    }

    fn x(&self, at_ns: u64) -> f64 {
        NAMES + (WIDTH - NAMES) * (at_ns as f64) / (self.end_ns as f64)
    }

    fn bar(&self, svg: &mut String, class: &str, stretch: Stretch, y: f64) {
        let (x, end) = (self.x(stretch.from_ns), self.x(stretch.to_ns));
        let width = (end - x).max(1.0);
        // Writing to a string cannot fail.
        let _ = write!(
            svg,
            r#"<rect class="{class}" x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{:.1}"/>"#,
            LANE - 8.0
        );
    }

    fn tick(&self, svg: &mut String, class: &str, at_ns: u64, y: f64, title: &str) {
        let x = self.x(at_ns);
        let _ = write!(
            svg,
            r#"<line class="{class}" x1="{x:.1}" x2="{x:.1}" y1="{y:.1}" y2="{:.1}"><title>{}</title></line>"#,
            y + LANE - 8.0,
            escaped(title)
        );
    }

    fn curve(&self, svg: &mut String, lane: &Lane, number: usize, top: f64, index_max: u64) {
        let each = lane.applied.len().div_ceil(POINTS_MAX).max(1);
        let mut points = String::new();
        for (at_ns, index) in lane.applied.iter().step_by(each).chain(lane.applied.last()) {
            let y = top + CURVES - CURVES * (*index as f64) / (index_max.max(1) as f64);
            let _ = write!(points, "{:.1},{y:.1} ", self.x(*at_ns));
        }
        let _ = write!(svg, r#"<polyline class="curve c{}" points="{points}"/>"#, number % 5);
    }

    /// One row for each lease, of those that were placed and did most; gives where it ends.
    fn leases(&self, svg: &mut String, top: f64) -> f64 {
        let placed = |phases: &[(u64, u64)]| phases.iter().any(|(_, phase)| *phase > 0);
        let mut rows: Vec<(&u64, &Vec<(u64, u64)>)> = self.leases.iter().filter(|(_, phases)| placed(phases)).collect();
        rows.sort_by_key(|(lease, phases)| (std::cmp::Reverse(phases.len()), **lease));
        rows.truncate(LEASES_MAX);
        rows.sort_by_key(|(lease, _)| **lease);
        let _ = write!(svg, r#"<text x="0" y="{:.1}">leases</text>"#, top + 10.0);
        let mut y = top;
        for (lease, phases) in rows {
            let ends = phases.iter().skip(1).map(|(at_ns, _)| *at_ns).chain([self.end_ns]);
            for ((from_ns, phase), to_ns) in phases.iter().zip(ends) {
                let phase = usize::try_from(*phase).unwrap_or(usize::MAX);
                let Some(name) = LEASE_PHASES.get(phase).filter(|_| phase + 1 < LEASE_PHASES.len()) else {
                    continue;
                };
                let (x, end) = (self.x(*from_ns), self.x(to_ns));
                let _ = write!(
                    svg,
                    r#"<rect class="{name}" x="{x:.1}" y="{y:.1}" width="{:.1}" height="{:.1}"><title>lease-{lease} {name}</title></rect>"#,
                    (end - x).max(1.0),
                    ROW - 2.0
                );
            }
            y += ROW;
        }
        y
    }

    fn picture(&self, report: &Report) -> String {
        let (mut svg, mut y) = (String::new(), 24.0);
        let name = |svg: &mut String, y: f64, text: &str| {
            let _ = write!(svg, r#"<text x="0" y="{:.1}">{}</text>"#, y + 13.0, escaped(text));
        };
        for second in 0..=self.end_ns / 1_000_000_000 {
            if second.is_multiple_of(5) {
                let x = self.x(second * 1_000_000_000);
                let _ = write!(svg, r#"<text class="time" x="{x:.1}" y="12">{second} s</text>"#);
            }
        }
        name(&mut svg, y, "faults");
        for (at_ns, number) in &self.faults {
            let step = usize::try_from(*number)
                .ok()
                .and_then(|number| report.plan.steps.get(number));
            let title = step.map_or_else(String::new, |step| format!("{number}: {}", told(&step.fault)));
            self.tick(&mut svg, "fault", *at_ns, y, &title);
        }
        y += LANE;
        for (host, lane) in &self.replicas {
            name(&mut svg, y, &format!("replica {host}"));
            let whole = Stretch {
                from_ns: 0,
                to_ns: self.end_ns,
            };
            self.bar(&mut svg, "up", whole, y);
            lane.leads.iter().for_each(|lead| self.bar(&mut svg, "leads", *lead, y));
            lane.down.iter().for_each(|down| self.bar(&mut svg, "down", *down, y));
            y += LANE;
        }
        for (client, requests) in &self.requests {
            name(&mut svg, y, &format!("client {client}"));
            for (at_ns, outcome) in requests {
                let class = match outcome {
                    1 => "done",
                    2 => "refused",
                    _ => "unknown",
                };
                self.tick(&mut svg, class, *at_ns, y, class);
            }
            y += LANE;
        }
        name(&mut svg, y, "index applied");
        let index_max = self
            .replicas
            .values()
            .flat_map(|lane| lane.applied.iter().map(|(_, index)| *index));
        let index_max = index_max.max().unwrap_or(1);
        for (number, lane) in self.replicas.values().enumerate() {
            self.curve(&mut svg, lane, number, y, index_max);
        }
        y += CURVES + 16.0;
        let height = self.leases(&mut svg, y) + 8.0;
        format!(r#"<svg viewBox="0 0 {WIDTH} {height:.0}" role="img" aria-label="what happened when">{svg}</svg>"#)
    }
}

/// A fault as its plan writes it.
fn told(fault: &crate::fault::Fault) -> String {
    serde_json::to_string(fault).unwrap_or_else(|error| error.to_string())
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

fn counted(counts: &Counts) -> [(&'static str, u64); 10] {
    [
        ("commands committed", counts.commands),
        ("changes of the leader", counts.leader_changes),
        ("crashes", counts.crashes),
        ("crashes that lost unsynced writes", counts.lossy_crashes),
        ("faults", counts.faults),
        ("requests acknowledged", counts.acknowledged),
        ("requests refused", counts.refused),
        ("requests of unknown fate", counts.unknown),
        ("fresh reads", counts.reads),
        ("observations judged", counts.observations),
    ]
}

fn shown(report: &Report) -> Vec<&Event> {
    let said: Vec<&Event> = report.recent.iter().filter(|event| event.kind != Kind::Poll).collect();
    said[said.len().saturating_sub(EVENTS_SHOWN)..].to_vec()
}

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:1140px;margin:2em auto;padding:0 1em;color:#1c2430;\
background:#fff}table{border-collapse:collapse}td,th{padding:.15em .8em .15em 0;text-align:left;vertical-align:top}\
pre{font-size:12px;overflow:auto;background:#f4f6f8;padding:.8em}svg{width:100%;font-size:12px}svg text{fill:currentColor}\
.time{opacity:.6}.up{fill:#d7e3f0}.leads{fill:#2f6fb7}.down{fill:#c0392b}.fault{stroke:#8e44ad;stroke-width:3}\
.waits{fill:#cfd6de}.placed{fill:#e0b050}.runs{fill:#2e8b57}.frozen{fill:#8e44ad}.done{stroke:#2e8b57}.refused{stroke:#b9770e}.unknown{stroke:#c0392b;stroke-width:2}.curve{fill:none;stroke-width:1.5}\
.c0{stroke:#2f6fb7}.c1{stroke:#2e8b57}.c2{stroke:#b9770e}.c3{stroke:#8e44ad}.c4{stroke:#16808a}.bad{color:#c0392b}\
code{overflow-wrap:anywhere}.key span{display:inline-block;margin-right:1.2em}@media(prefers-color-scheme:dark){body{background:#14181d;color:#dde3ea}\
pre{background:#1d232b}.up{fill:#2b3a4a}}";

/// The run as one page of HTML with everything in it.
pub fn html(report: &Report) -> String {
    let picture = Times::of(&report.recent).picture(report);
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>seed {seed}</title><style>{STYLE}</style>\
         <h1>Seed {seed}: {verdict:?}</h1>\n",
        seed = report.seed,
        verdict = report.verdict()
    );
    for violation in &report.violations {
        let _ = writeln!(page, "<p class=\"bad\">{}</p>", escaped(&violation.to_string()));
    }
    let _ = writeln!(
        page,
        "<p>Again: <code>{}</code></p>\n{picture}",
        escaped(&report.replay)
    );
    page.push_str(
        "<p class=\"key\"><span>blue: leads</span><span>red: down</span><span>violet: a fault strikes</span>\
         <span>green, brown, red ticks: acknowledged, refused, unknown</span>\
         <span>leases: grey waits, yellow placed, green runs, violet frozen</span></p>\n<h2>Counted</h2><table>",
    );
    for (what, count) in counted(&report.counts) {
        let _ = write!(page, "<tr><td>{what}<td>{count}");
    }
    page.push_str("</table>\n<h2>Faults</h2><table><tr><th>number<th>ms<th>fault");
    for (number, step) in report.plan.steps.iter().enumerate() {
        let fault = escaped(&told(&step.fault));
        let _ = write!(page, "<tr><td>{number}<td>{}<td><code>{fault}</code>", step.at_ms);
    }
    page.push_str("</table>\n<h2>Replicas at the end</h2><pre>");
    report
        .replicas
        .iter()
        .for_each(|line| page.push_str(&format!("{}\n", escaped(line))));
    page.push_str("</pre>\n<h2>Last events</h2><pre>");
    shown(report)
        .iter()
        .for_each(|event| page.push_str(&format!("{}\n", escaped(&event.to_string()))));
    page.push_str("</pre></html>\n");
    page
}

/// The run as Markdown, for a ticket.
pub fn markdown(report: &Report) -> String {
    let mut text = format!("# Seed {}: {:?}\n\n", report.seed, report.verdict());
    for violation in &report.violations {
        let _ = writeln!(text, "- **{violation}**");
    }
    let _ = writeln!(text, "\nAgain: `{}`\n\n| what | count |\n| --- | --- |", report.replay);
    for (what, count) in counted(&report.counts) {
        let _ = writeln!(text, "| {what} | {count} |");
    }
    text.push_str("\n| number | ms | fault |\n| --- | --- | --- |\n");
    for (number, step) in report.plan.steps.iter().enumerate() {
        let _ = writeln!(text, "| {number} | {} | `{}` |", step.at_ms, told(&step.fault));
    }
    text.push_str("\nReplicas at the end:\n\n");
    report
        .replicas
        .iter()
        .for_each(|line| text.push_str(&format!("    {line}\n")));
    text.push_str("\nLast events:\n\n");
    shown(report)
        .iter()
        .for_each(|event| text.push_str(&format!("    {event}\n")));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Violation;
    use crate::report::tests::report;

    fn event(at_ns: u64, host: u64, kind: Kind, words: [u64; 3]) -> Event {
        Event {
            at_ns,
            host,
            kind,
            words,
        }
    }

    #[test]
    fn times_tell_who_led_who_was_down_and_what_clients_heard() {
        let times = Times::of(&[
            event(10, 1, Kind::Lead, [1, 0, 0]),
            event(20, 1, Kind::Apply, [7, 0, 0]),
            event(25, 1_002, Kind::Operation, [0, 3, 0]),
            event(30, 1, Kind::Kill, [4, 0, 0]),
            event(40, 1, Kind::Lose, [1, 0, 0]),
            event(50, 2, Kind::Lead, [2, 0, 0]),
            event(60, 1, Kind::Poll, [0, 0, 0]),
            event(70, 0, Kind::Lease, [12, 1, 0]),
            event(80, 0, Kind::Lease, [12, 2, 0]),
            event(90, 0, Kind::Fault, [3, 0, 0]),
        ]);
        let first = &times.replicas[&1];
        let stretch = |from_ns, to_ns| Stretch { from_ns, to_ns };
        assert_eq!(
            (&*first.leads, &*first.down),
            (&[stretch(10, 30)][..], &[stretch(30, 60)][..])
        );
        assert_eq!(times.replicas[&2].leads, [stretch(50, 90)]);
        assert_eq!((&*first.applied, &*times.faults), (&[(20, 7)][..], &[(90, 3)][..]));
        assert_eq!(times.requests[&2], [(25, 3)]);
        assert_eq!(times.leases[&12], [(70, 1), (80, 2)]);
    }

    #[test]
    fn page_stands_alone_and_nothing_in_it_is_taken_for_markup() {
        let mut report = report();
        report.violations = vec![Violation {
            checker: "agreement",
            text: "<b>two & two</b>".to_owned(),
        }];
        let page = html(&report);
        assert!(page.contains("agreement: &lt;b&gt;two &amp; two&lt;/b&gt;"), "{page}");
        assert!(!page.contains("<script") && !page.contains("http"), "{page}");
        assert!(page.contains("<svg") && page.contains("seed 7"));
        assert!(markdown(&report).starts_with("# Seed 7: Violation\n"));
    }
}
