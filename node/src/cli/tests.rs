//! The command line against a node's interface: what it prints, where, and what it ends with.

// Tables of cases are long; cutting them would hide what they cover.
#![allow(clippy::unwrap_used, clippy::too_many_lines)]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Cursor;
use std::sync::Arc;

use holdfast_proto::tenant::Role;
use jiff::tz::TimeZone;
use serde_json::Value;

use super::console::Console;
use super::daemon::{Daemon, DaemonError, Ready};
use super::error::code;
use super::run;
use crate::api::seam::Committed;
use crate::api::tests::world::{World, shown};
use crate::bearer::Bearer;
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
    fn demo(&self, _: &[OsString], _: bool) -> u8 {
        code::FAILED
    }
    fn bench(&self, _: &[OsString], _: bool) -> u8 {
        code::FAILED
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
    let cases = [
        ("leases --colour", person.clone(), code::USAGE, "usage"),
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
    for answer in ["n\n", "\n", "", "yess\n"] {
        person.types = answer.to_owned();
        let ended = person.run("lease 1xh100 --for 2h -- true").await;
        assert_eq!(ended.code, code::REFUSED, "{ended:?}");
    }
    assert!(world.state().leases.is_empty());
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
