//! A run written down: all that it depends on besides the program, so that it can be run again and shrunk.
//!
//! `run --keep`, `sweep --keep` and `shrink` write cases, `replay` and `shrink` read them. The one rule: a case says
//! which format it has and which trace it made, so that nobody mistakes another run for the same one.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::fault::{Plan, PlanError};
use crate::mutant::Mutant;
use crate::report::Report;
use crate::world::{self, Options};

/// The format that this program writes, and the only one that it reads.
pub const FORMAT: u32 = 1;

/// Most replicas of a case, as `run --nodes` has it.
pub const REPLICAS_MAX: u8 = 9;
/// Most clients of a case.
const CLIENTS_MAX: u64 = 64;

/// One run, written down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Case {
    /// Format of this file: [`FORMAT`].
    pub format: u32,
    /// Version of the program that made it.
    pub program: String,
    /// The seed: order of tasks, delays, draws of the clients.
    pub seed: u64,
    /// Clients that send requests.
    pub clients: u64,
    /// Bug that was planted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mutant: Option<Mutant>,
    /// Whether a run that lacks a lossy crash or a change of the leader gets one after the plan.
    pub make_up: bool,
    /// The checker that fired first; none when none did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checker: Option<String>,
    /// The trace that it made, in sixteen hex digits.
    pub trace: String,
    /// What befell the cluster.
    pub plan: Plan,
}

/// A case that cannot be had, or not be kept.
#[derive(Debug, thiserror::Error)]
pub enum CaseError {
    /// The file cannot be read or written.
    #[error("{verb} the case {}", path.display())]
    File {
        /// Read or write.
        verb: &'static str,
        /// Which file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Something else than a case.
    #[error("{} is no case: `holdfast-chaos run --keep FILE` writes one", path.display())]
    Text {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
    /// Written by a program of another kind.
    #[error(
        "{} has format {format} and was written by version {program}; this is version {}, which reads format {FORMAT}",
        path.display(),
        env!("CARGO_PKG_VERSION")
    )]
    Format {
        /// Which file.
        path: PathBuf,
        /// Its format.
        format: u32,
        /// The version that wrote it.
        program: String,
    },
    /// Its plan names what is not there.
    #[error("the plan of {} fits no cluster", path.display())]
    Plan {
        /// Which file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: PlanError,
    },
    /// More than the simulator is built for, or nothing at all.
    #[error(
        "{} is for {replicas} replicas and {clients} clients: a run has 1 to {REPLICAS_MAX} and at most {CLIENTS_MAX}",
        path.display()
    )]
    Size {
        /// Which file.
        path: PathBuf,
        /// Its replicas.
        replicas: u8,
        /// Its clients.
        clients: u64,
    },
}

/// The part of every format that tells which one it is.
#[derive(Deserialize)]
struct Head {
    format: u32,
    program: String,
}

impl Case {
    /// Writes down what was run, with what it came to.
    pub fn of(report: &Report, options: &Options) -> Self {
        Self {
            format: FORMAT,
            program: env!("CARGO_PKG_VERSION").to_owned(),
            seed: report.seed,
            clients: options.clients,
            mutant: options.mutant,
            make_up: options.make_up,
            checker: report.violations.first().map(|violation| violation.checker.to_owned()),
            trace: format!("{:016x}", report.trace),
            plan: report.plan.clone(),
        }
    }

    /// How it is run.
    pub fn options(&self, complete_trace: bool) -> Options {
        Options {
            replicas: self.plan.replicas,
            clients: self.clients,
            span_ms: self.plan.span_ms,
            plan: Some(self.plan.clone()),
            make_up: self.make_up,
            mutant: self.mutant,
            complete_trace,
        }
    }

    /// Runs it.
    pub fn run(&self, complete_trace: bool) -> Report {
        world::run(self.seed, &self.options(complete_trace))
    }

    /// Runs it as it stands now, and writes down what that comes to.
    pub fn again(&self) -> Self {
        Self::of(&self.run(false), &self.options(false))
    }

    /// Reads a case.
    ///
    /// # Errors
    /// No file, no case, one of another format, or one that no cluster fits.
    pub fn read(path: &Path) -> Result<Self, CaseError> {
        let no_text = |source| CaseError::Text {
            path: path.to_owned(),
            source,
        };
        let text = std::fs::read_to_string(path).map_err(|source| CaseError::File {
            verb: "read",
            path: path.to_owned(),
            source,
        })?;
        let Head { format, program } = serde_json::from_str(&text).map_err(no_text)?;
        if format != FORMAT {
            return Err(CaseError::Format {
                path: path.to_owned(),
                format,
                program,
            });
        }
        let case: Self = serde_json::from_str(&text).map_err(no_text)?;
        let (replicas, clients) = (case.plan.replicas, case.clients);
        if !(1..=REPLICAS_MAX).contains(&replicas) || clients > CLIENTS_MAX {
            return Err(CaseError::Size {
                path: path.to_owned(),
                replicas,
                clients,
            });
        }
        case.plan.check().map_err(|source| CaseError::Plan {
            path: path.to_owned(),
            source,
        })?;
        Ok(case)
    }

    /// Writes the case: under another name first, so that an interrupted run leaves no half of one.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), CaseError> {
        let text = serde_json::to_string_pretty(self).expect("plain data serialises");
        let mut beside = path.as_os_str().to_owned();
        beside.push(".part");
        let write = || {
            let mut file = std::fs::File::create(&beside)?;
            writeln!(file, "{text}")?;
            std::fs::rename(&beside, path)
        };
        write().map_err(|source| CaseError::File {
            verb: "write",
            path: path.to_owned(),
            source,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case() -> Case {
        Case {
            format: FORMAT,
            program: "0.1.0".to_owned(),
            seed: 7,
            clients: 2,
            mutant: Some(Mutant::LyingSync),
            make_up: false,
            checker: Some("agreement".to_owned()),
            trace: "00000000000000ab".to_owned(),
            plan: Plan::calm(3, 5_000),
        }
    }

    fn said(text: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("case.json");
        std::fs::write(&path, text).unwrap();
        Case::read(&path).unwrap_err().to_string()
    }

    #[test]
    fn case_comes_back_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("case.json");
        case().write(&path).unwrap();
        assert_eq!(Case::read(&path).unwrap(), case());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "a half is left");
    }

    #[test]
    fn case_of_another_format_is_named_before_its_fields_are_looked_at() {
        let text = r#"{"format":9,"program":"4.2.0","what":"nobody knows"}"#;
        let said = said(text);
        assert!(said.contains("has format 9 and was written by version 4.2.0"), "{said}");
        assert!(said.contains("reads format 1"), "{said}");
    }

    #[test]
    fn what_is_no_case_says_how_to_make_one() {
        assert!(said("{}").contains("holdfast-chaos run --keep FILE"));
        assert!(said("seed 7").contains("is no case"));
    }

    #[test]
    fn case_of_no_size_that_a_run_has_is_refused() {
        for (replicas, clients) in [(0, 4), (10, 4), (3, 65)] {
            let mut case = case();
            case.plan.replicas = replicas;
            case.clients = clients;
            let said = said(&serde_json::to_string(&case).unwrap());
            assert!(said.contains("1 to 9 and at most 64"), "{said}");
        }
    }
}
