//! The command line against a node's interface: what it prints, where, and what it ends with.

// Tables of cases are long; cutting them would hide what they cover.
#![allow(clippy::unwrap_used, clippy::too_many_lines)]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Cursor;
use std::sync::Arc;

use holdfast_proto::command::Command;
use holdfast_proto::tenant::Role;
use holdfast_storage::backup::Backup;
use jiff::tz::TimeZone;
use serde_json::Value;

use super::console::Console;
use super::daemon::{Daemon, DaemonError, Ready, Recovery};
use super::error::{CliError, code};
use super::run;
use crate::api::seam::Committed;
use crate::api::tests::world::{World, shown};
use crate::bearer::Bearer;
use crate::client::View;
use crate::client::credentials::Credentials;
use crate::config::Config;
use crate::env::{OsClock, OsEntropy};
use crate::identity::pem as pem_of;
use crate::join::JoinToken;

/// A command line that runs no node.
struct NoDaemon;

impl Daemon for NoDaemon {
    fn init(&self, _: Config, _: Ready<'_>) -> Result<(), DaemonError> {
        Err(refusal())
    }
    fn join(&self, _: Config, _: &str, _: JoinToken, _: Ready<'_>) -> Result<(), DaemonError> {
        Err(refusal())
    }
    fn serve(&self, _: Config, _: Ready<'_>) -> Result<(), DaemonError> {
        Err(refusal())
    }
    fn restore(&self, _: Config, _: Backup, _: bool, _: Ready<'_>) -> Result<(), DaemonError> {
        Err(refusal())
    }
    fn recover(&self, _: Config, _: bool) -> Result<Recovery, DaemonError> {
        Err(refusal())
    }
    fn demo(&self, arguments: &[OsString], json: bool) -> Result<u8, CliError> {
        // Its flags are the real one's; none of these runs anything.
        crate::boot::RealDaemon.demo(arguments, json)
    }
    fn bench(&self, arguments: &[OsString], json: bool) -> Result<u8, CliError> {
        crate::boot::RealDaemon.bench(arguments, json)
    }
}

fn refusal() -> DaemonError {
    DaemonError {
        reason: "the data folder is in use".to_owned(),
        exit_code: code::REFUSED,
    }
}

/// What a command ended with.
#[derive(Debug)]
struct Ended {
    code: u8,
    out: String,
    err: String,
}

impl Ended {
    fn json(&self) -> Value {
        serde_json::from_str(self.out.lines().last().unwrap_or_default()).unwrap_or_else(|_| panic!("{self:?}"))
    }
}

/// A person at a terminal, or a program that pipes.
#[derive(Clone)]
struct Person {
    env: BTreeMap<String, String>,
    types: String,
    is_terminal: bool,
}

impl Person {
    fn new(world: &World, bearer: &Bearer) -> Self {
        let env = [
            ("HOLDFAST_CONFIG", "/nonexistent/holdfast".to_owned()),
            ("HOLDFAST_ADDRESS", world.address.clone()),
            ("HOLDFAST_CA", pem_of(&world.authority)),
            ("HOLDFAST_TOKEN", bearer.reveal().expose().clone()),
        ];
        let env = env.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Self {
            env,
            types: String::new(),
            is_terminal: false,
        }
    }

    fn with(mut self, name: &str, value: &str) -> Self {
        self.env.insert(name.to_owned(), value.to_owned());
        self
    }

    fn runs(&self, line: &str) -> Ended {
        self.runs_all(line.split_whitespace().map(str::to_owned).collect())
    }

    fn runs_all(&self, words: Vec<String>) -> Ended {
        let arguments = std::iter::once("holdfast".to_owned())
            .chain(words)
            .map(OsString::from)
            .collect();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let code = run(
            arguments,
            &NoDaemon,
            &mut Console {
                out: &mut out,
                err: &mut err,
                input: &mut Cursor::new(self.types.clone()),
                env: &|name| self.env.get(name).cloned(),
                is_terminal: self.is_terminal,
                width: 120,
                zone: TimeZone::UTC,
                clock: Arc::new(OsClock),
                entropy: Arc::new(OsEntropy),
                json: false,
                address: None,
                view: View::Fresh,
            },
        );
        Ended {
            code,
            out: String::from_utf8(out).unwrap(),
            err: String::from_utf8(err).unwrap(),
        }
    }

    /// Runs a command beside the world, which lives on this test's runtime.
    async fn run(&self, line: &str) -> Ended {
        let (person, line) = (self.clone(), line.to_owned());
        tokio::task::spawn_blocking(move || person.runs(&line)).await.unwrap()
    }
}

async fn operator() -> (Arc<World>, Person) {
    let world = World::start().await;
    let person = Person::new(&world, &world.operator);
    (world, person)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_failure_has_the_exit_code_of_its_class_and_is_json_when_asked_for() {
    let (world, person) = operator().await;
    let free = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string();
    let reader = world.token(Role::ReadOnly, None, None);
    let long = format!("lease 1xh100 --for 1h --name {} --yes -- true", "漢".repeat(3_400));
    let cases = [
        ("leases --colour", person.clone(), code::USAGE, "usage"),
        (
            "lease 1xh100 --for 1h --name a\u{1b}[2J\0b --yes -- true",
            person.clone(),
            code::USAGE,
            "usage",
        ),
        (long.as_str(), person.clone(), code::USAGE, "usage"),
        ("demo --colour", person.clone(), code::USAGE, "usage"),
        ("bench nothing", person.clone(), code::USAGE, "usage"),
        ("events --node nope", person.clone(), code::REFUSED, "node-unknown"),
        (
            "lease 8xh100 --for 5µ --yes -- true",
            person.clone(),
            code::USAGE,
            "usage",
        ),
        (
            "lease 2147483648xh100 --for 2h --yes -- true",
            person.clone(),
            code::USAGE,
            "usage",
        ),
        ("lease 1xh100 --for 2h -- true", person.clone(), code::USAGE, "usage"),
        ("show lease-99999999999999999999", person.clone(), code::USAGE, "usage"),
        ("join host --token hf1.nonsense", person.clone(), code::USAGE, "usage"),
        (
            "nodes",
            person.clone().with("HOLDFAST_ADDRESS", &free),
            code::UNAVAILABLE,
            "unreachable",
        ),
        (
            "nodes",
            person.clone().with("HOLDFAST_TOKEN", ""),
            code::NO_RIGHTS,
            "token-missing",
        ),
        (
            "nodes",
            person
                .clone()
                .with("HOLDFAST_TOKEN", &shown(&Bearer::draw(&OsEntropy))[7..]),
            code::NO_RIGHTS,
            "token-unknown",
        ),
        (
            "nodes",
            person.clone().with("HOLDFAST_TOKEN", "nonsense"),
            code::CONFIG,
            "credentials",
        ),
        (
            "nodes",
            person.clone().with("HOLDFAST_CA", "/nonexistent"),
            code::CONFIG,
            "credentials",
        ),
        (
            "cordon n1",
            Person::new(&world, &reader),
            code::NO_RIGHTS,
            "not-allowed",
        ),
        ("show lease-4711", person.clone(), code::REFUSED, "lease-unknown"),
        ("cordon n9", person.clone(), code::REFUSED, "node-unknown"),
        (
            "lease 9xh100 --for 2h --yes -- true",
            person.clone(),
            code::REFUSED,
            "cannot-fit",
        ),
        (
            "lease 1xh900 --for 2h --yes -- true",
            person.clone(),
            code::REFUSED,
            "model-unknown",
        ),
        (
            "serve",
            person.clone().with("HOME", "/nonexistent"),
            code::REFUSED,
            "node-failed",
        ),
        (
            "serve --config /nonexistent",
            person.clone(),
            code::CONFIG,
            "configuration",
        ),
    ];
    for (line, person, exit, word) in cases {
        let told = person.run(line).await;
        assert_eq!((told.code, told.out.as_str()), (exit, ""), "{line}: {told:?}");
        assert!(!told.err.trim().is_empty(), "{line}");
        assert!(!told.err.contains(['\u{1b}', '\0']), "{line}: {told:?}");
        let asked = format!("--json {line}");
        let told = person.run(&asked).await;
        assert_eq!((told.code, told.err.as_str()), (exit, ""), "{asked}: {told:?}");
        let error = &told.json()["error"];
        assert_eq!(
            (error["code"].as_str(), error["exit_code"].as_u64()),
            (Some(word), Some(exit.into())),
            "{asked}: {told:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_priced_agreed_to_followed_and_ends_with_the_exit_code_of_its_work() {
    for wanted in [0, 1, 3] {
        let (world, mut person) = operator().await;
        person.is_terminal = true;
        person.types = "y\n".to_owned();
        let command = person.run("lease 2xh100 --for 2h --cap 60 --name training -- python3 train.py");
        let cluster = async {
            let lease = loop {
                let state = world.state();
                if let Some((lease, _)) = state.leases.first() {
                    break *lease;
                }
                world.advanced(state.applied.index).await;
            };
            let epoch = world.run(lease);
            world.write(lease, epoch, "step 1\nstep 2\n", false);
            world.finish(lease, wanted);
        };
        let (ended, ()) = tokio::join!(command, cluster);
        assert_eq!(i32::from(ended.code), wanted, "{ended:?}");
        assert_eq!(ended.out, "step 1\nstep 2\n");
        for said in [
            "5.00 USD an hour",
            "10.00 USD for 2h",
            "lease? [y/N]",
            "asked for 2 devices of h100",
            "it runs on n1",
            "it has ended",
        ] {
            assert!(ended.err.contains(said), "{said}: {}", ended.err);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_says_no_to_the_price_leases_nothing() {
    let (world, mut person) = operator().await;
    person.is_terminal = true;
    for answer in ["n\n", "\n", "", "yess\n", "maybe\nno\n"] {
        person.types = answer.to_owned();
        let ended = person.run("lease 1xh100 --for 2h -- true").await;
        assert_eq!(ended.code, code::REFUSED, "{ended:?}");
        let asked_again = ended.err.contains("please answer y or n");
        assert_eq!(asked_again, ["yess\n", "maybe\nno\n"].contains(&answer), "{ended:?}");
    }
    assert!(world.state().leases.is_empty());
    person.types = "maybe\ny\n".to_owned();
    let ended = person.run("lease 1xh100 --for 2h --detach -- true").await;
    assert_eq!(ended.code, code::DONE, "{ended:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_print_what_a_person_reads_and_what_a_program_parses() {
    let (world, person) = operator().await;
    let accepted = person.run("lease 1xh100 --for 1h --yes --detach -- sh -c true").await;
    assert_eq!(accepted.code, code::DONE, "{accepted:?}");
    let lease = accepted.out.trim().to_owned();
    world.run(lease.parse().unwrap());
    for (line, reads, parses) in [
        ("nodes".to_owned(), "n1", "/nodes/0/label"),
        ("gpus".to_owned(), lease.as_str(), "/gpus/0/model"),
        ("leases".to_owned(), "active", "/leases/0/status"),
        (format!("show {lease}"), "GPU-01010101", "/status"),
        (format!("why {lease}"), "it runs on n1", "/lines/0/text"),
        (format!("bill {lease} --explain"), "opened at", "/open/opened_at"),
        (format!("logs {lease}"), "", ""),
        ("events --after 0 --topic cluster".to_owned(), "began", "/type"),
        ("cluster status".to_owned(), "1 of 1 ready", "/applied"),
        ("token list".to_owned(), "operator", "/tokens/0/kind"),
        (
            "token create --role worker --for 30m".to_owned(),
            "holdfast join",
            "/join_line",
        ),
        ("tenant set blue --devices 4".to_owned(), "4 devices", "/index"),
        ("tenant list".to_owned(), "default", "/tenants/0/tenant"),
        ("cordon n1 -m fan".to_owned(), "no new work", "/index"),
        ("uncordon n1".to_owned(), "takes work", "/index"),
        ("note tests hello".to_owned(), "written", "/index"),
        (format!("renew {lease} --for 1h"), "longer", "/index"),
        (format!("release {lease}"), "ends", ""),
    ] {
        let told = person.run(&line).await;
        assert_eq!(told.code, code::DONE, "{line}: {told:?}");
        assert!(told.out.contains(reads), "{line}: {told:?}");
        if !parses.is_empty() {
            let told = person.run(&format!("{line} --json")).await;
            assert_eq!(told.code, code::DONE, "{line}: {told:?}");
            assert!(
                !told.json().pointer(parses).unwrap_or(&Value::Null).is_null(),
                "{line}: {told:?}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cluster_is_shown_as_it_was_after_any_entry() {
    let (world, person) = operator().await;
    let asked = person.run("lease 1xh100 --for 1m --yes --detach -- true").await;
    assert_eq!(asked.code, code::DONE, "{asked:?}");
    let lease = world.state().leases.keys().next().copied().unwrap();
    let index = world.state().applied.index;
    world.run(lease);
    world.finish(lease, 0);
    let then = person.run(&format!("--json show {lease} --at {index}")).await.json();
    let now = person.run(&format!("--json show {lease}")).await.json();
    assert_eq!((&then["status"], &now["status"]), (&"pending".into(), &"ended".into()));
    let state = person.run(&format!("cluster state --at {index}")).await;
    assert!(
        state.out.contains("1 live, 1 waiting") && state.out.contains("8 of 8 free"),
        "{state:?}"
    );
    assert_eq!(person.run("nodes --at 3 --stale").await.code, code::USAGE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_leader_a_read_says_so_soon_and_what_one_node_knows_is_there_for_the_asking() {
    let (world, person) = operator().await;
    world.leaderless.store(true, std::sync::atomic::Ordering::SeqCst);
    let told = person.run("nodes").await;
    assert_eq!((told.code, told.out.as_str()), (code::UNAVAILABLE, ""), "{told:?}");
    assert!(
        told.err.contains("no leader") && told.err.contains("--stale"),
        "{told:?}"
    );
    for line in ["nodes --stale", "--stale leases", "gpus --stale", "tenant list --stale"] {
        assert_eq!(person.run(line).await.code, code::DONE, "{line}");
    }
    let status = person.run("cluster status --stale").await;
    for said in [
        "none heard: n1 led in term 1 and was last heard 7s ago",
        "1 of 1 ready when a leader was last heard, 7s ago",
        "n1 answers",
    ] {
        assert!(status.out.contains(said), "{said}: {status:?}");
    }
    let status = person.run("--json cluster status --stale").await.json();
    assert_eq!(status["leader_heard_ms_ago"], 7_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_named_by_its_id_or_by_its_label() {
    let (world, person) = operator().await;
    let order = "lease 1xh100 --for 1h --yes --detach --name training -- sh -c";
    let words = order
        .split_whitespace()
        .map(str::to_owned)
        .chain(["echo hi; sleep 5".to_owned()]);
    let (same, words) = (person.clone(), words.collect());
    let first = tokio::task::spawn_blocking(move || same.runs_all(words)).await.unwrap();
    let lease = first.out.trim().to_owned();
    world.run(lease.parse().unwrap());
    let shown = person.run("show training").await;
    assert!(shown.out.contains("sh -c 'echo hi; sleep 5'"), "{shown:?}");
    assert!(shown.out.contains("USD so far, as of 20"), "{shown:?}");
    let listed = person.run("leases").await;
    assert!(
        listed.out.contains("so far") && listed.out.contains("'echo hi; sleep 5'"),
        "{listed:?}"
    );
    for line in [
        "why training",
        "bill training",
        "logs training",
        "renew training --for 1h",
    ] {
        assert_eq!(person.run(line).await.code, code::DONE, "{line}");
    }
    let why = person.run("why training").await;
    assert!(why.out.contains("2.50 USD an hour"), "{why:?}");
    let unknown = person.run("show nothing").await;
    assert_eq!(unknown.code, code::REFUSED, "{unknown:?}");
    // What two live leases are called names neither.
    person
        .run("lease 1xh100 --for 1h --yes --detach --name training -- true")
        .await;
    let both = person.run("release training").await;
    assert_eq!(both.code, code::REFUSED, "{both:?}");
    assert!(both.err.contains(&lease) && both.err.contains("by its id"), "{both:?}");
    world.finish(lease.parse().unwrap(), 0);
    let ended = person.run(&format!("show {lease}")).await;
    assert!(!ended.out.contains("so far"), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_and_tenants_keep_what_was_said_of_them() {
    let (_world, person) = operator().await;
    let noted = person.run("token create -m rack7").await;
    assert_eq!(noted.code, code::USAGE, "{noted:?}");
    let made = person
        .run("--json token create --role read-only -m dashboard")
        .await
        .json();
    assert!(person.run("token list").await.out.contains("dashboard"));
    let revoke = format!("token revoke {}", made["id"].as_str().unwrap());
    assert!(person.run(&revoke).await.out.contains("is revoked"));
    let again = person.run(&revoke).await;
    assert_eq!(again.code, code::DONE, "{again:?}");
    assert!(again.out.contains("was revoked before; nothing changed"), "{again:?}");

    assert!(
        person
            .run("tenant set blue --devices 4")
            .await
            .out
            .contains("may hold 4 devices")
    );
    assert!(person.run("tenant set blue").await.out.contains("as it was"));
    assert!(person.run("tenant list").await.out.contains("4 devices"));
    assert!(
        person
            .run("tenant set blue --devices any")
            .await
            .out
            .contains("any number")
    );
    let listed = person.run("--json tenant list").await.json();
    assert!(listed["tenants"][0]["devices_max"].is_null(), "{listed}");
    assert_eq!(person.run("tenant set blue --devices many").await.code, code::USAGE);
}

/// Somebody who has read enough.
struct Gone;

impl std::io::Write for Gone {
    fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
        Err(std::io::ErrorKind::BrokenPipe.into())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn whoever_stops_reading_is_told_nothing() {
    let mut err = Vec::new();
    let code = run(
        ["holdfast", "completions", "bash"].map(OsString::from).to_vec(),
        &NoDaemon,
        &mut Console {
            out: &mut Gone,
            err: &mut err,
            input: &mut Cursor::new(""),
            env: &|_| None,
            is_terminal: false,
            width: 120,
            zone: TimeZone::UTC,
            clock: Arc::new(OsClock),
            entropy: Arc::new(OsEntropy),
            json: false,
            address: None,
            view: View::Fresh,
        },
    );
    assert_eq!((code, String::from_utf8(err).unwrap().as_str()), (code::IO, ""));
}

#[test]
fn help_names_every_exit_code_and_completions_are_made() {
    let world = Person {
        env: BTreeMap::new(),
        types: String::new(),
        is_terminal: false,
    };
    let help = world.runs("--help");
    assert_eq!((help.code, help.err.as_str()), (code::DONE, ""));
    for code in [
        code::REFUSED,
        code::LEASE_ENDED,
        code::USAGE,
        code::UNAVAILABLE,
        code::FAILED,
        code::IO,
        code::UNKNOWN,
        code::PROTOCOL,
        code::NO_RIGHTS,
        code::CONFIG,
        code::INTERRUPTED,
    ] {
        assert!(
            help.out
                .lines()
                .any(|line| line.trim_start().starts_with(&format!("{code}  "))),
            "{code}"
        );
    }
    assert!(!help.out.contains("supervise"));
    assert!(world.runs("completions bash").out.contains("holdfast"));
    assert_eq!(world.runs("nodes").code, code::CONFIG);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_command_prints_the_secret_of_its_bearer() {
    let (world, person) = operator().await;
    let text = shown(&world.operator);
    let secret = text.rsplit('.').next().unwrap();
    let broken = person.clone().with("HOLDFAST_TOKEN", &format!("hfa.{secret}"));
    for line in [
        "nodes",
        "token list",
        "events --after 0",
        "cluster status",
        "show lease-9",
        "leases --colour",
        "cordon n9",
        "--json nodes",
    ] {
        for person in [&person, &broken] {
            let told = person.run(line).await;
            assert!(!format!("{told:?}").contains(secret), "{line}");
        }
    }
}

#[test]
fn credentials_are_read_by_their_owner_alone_and_overridden_by_the_environment() {
    use std::os::unix::fs::PermissionsExt;

    use crate::client::credentials::{CredentialsError, Overrides};
    use crate::identity::authority::Authority;

    let cluster = holdfast_proto::id::ClusterId([7; 16]);
    let authority = Authority::found(cluster, crate::env::Clock::wall_ms(&OsClock)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deep").join("credentials.toml");
    let bearer = Bearer::draw(&OsEntropy);
    let credentials = Credentials {
        addresses: vec!["10.0.0.1:7400".to_owned(), "[::1]:7400".to_owned()],
        bearer: Some(bearer.clone()),
        authority: authority.certificate().clone(),
        cluster,
    };
    assert!(Credentials::read(&path).unwrap().is_none());
    assert!(matches!(
        Credentials::find(&path, &Overrides::default()),
        Err(CredentialsError::Absent)
    ));
    credentials.write(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);

    let read = Credentials::read(&path).unwrap().unwrap();
    assert_eq!(
        (&read.addresses, read.cluster, &read.authority),
        (&credentials.addresses, cluster, &credentials.authority)
    );
    assert!(read.bearer.unwrap().proves(&bearer.digest()));
    assert!(!format!("{credentials:?}").contains(bearer.reveal().expose().rsplit('.').next().unwrap()));

    let given = Overrides {
        address: Some("a:1, b:2".to_owned()),
        authority: Some(pem_of(authority.certificate())),
        token: None,
    };
    let found = Credentials::find(&path, &given).unwrap();
    assert_eq!(
        (found.addresses, found.cluster),
        (vec!["a:1".to_owned(), "b:2".to_owned()], cluster)
    );

    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
    assert!(matches!(
        Credentials::read(&path),
        Err(CredentialsError::Exposed { mode: 0o640, .. })
    ));
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    std::fs::write(&path, "token = \"hfa.marker\"").unwrap();
    let error = super::error::chain(&Credentials::read(&path).unwrap_err());
    assert!(!error.contains("marker"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscription_prints_each_event_once_while_its_reader_writes_what_it_is_told() {
    let (world, person) = operator().await;
    for level in [2, 3] {
        world.say(Command::RaiseMachineLevel { level });
    }
    let first = person.run("note tests before").await;
    assert_eq!(first.code, code::DONE, "{first:?}");
    let made = person.run("subscribe notes --type annotated --once").await;
    assert_eq!((made.code, made.out.as_str()), (code::DONE, ""), "{made:?}");
    person.run("note tests one").await;
    person.run("note tests two").await;
    let told = person.run("subscribe notes --once").await;
    assert!(
        told.out.contains("one") && told.out.contains("two") && !told.out.contains("before"),
        "{told:?}"
    );
    assert_eq!(told.out.lines().count(), 2);
    person.run("note tests three").await;
    let by_hand = person.run("--json subscribe notes --once --no-acknowledge").await;
    assert_eq!(by_hand.json()["data"]["text"], "three");
    let again = person
        .run("subscribe notes --type annotated --once --no-acknowledge")
        .await;
    assert!(again.out.contains("three"), "{again:?}");
    let id = by_hand.json()["id"].as_str().unwrap().to_owned();
    let done = person.run(&format!("acknowledge notes {id}")).await;
    assert_eq!(done.code, code::DONE, "{done:?}");
    assert_eq!(person.run("subscribe notes --once").await.out, "");

    let other = person.run("subscribe notes --topic lease --once").await;
    assert_eq!(other.code, code::USAGE, "{other:?}");
    let listed = person.run("subscriptions").await;
    assert!(
        listed.out.contains("notes") && listed.out.contains("types annotated"),
        "{listed:?}"
    );
    let shown = person.run("events").await;
    assert!(!shown.out.contains("is done up to"), "{shown:?}");
    let asked = person.run("events --type events-acknowledged").await;
    assert!(asked.out.contains("subscription notes is done up to"), "{asked:?}");
    assert_eq!(person.run("unsubscribe notes").await.code, code::DONE);
    assert_eq!(person.run("unsubscribe notes").await.code, code::REFUSED);
}
