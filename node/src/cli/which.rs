//! Which lease is meant: by its id, or by the label that it was given with `lease --name`.
//!
//! Used by every command about one lease. The one rule: a label that several live leases bear names none of them.

use holdfast_proto::id::{LeaseId, Name};

use super::error::CliError;
use crate::client::Client;
use crate::wire::lease::{LeaseList, LeaseView};

/// Leases looked through for a label.
const LEASES_MAX: usize = 1_000;

/// A lease as a person names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    /// By its id.
    Id(LeaseId),
    /// By its label.
    Label(Name),
}

/// Reads an id or a label. What begins like an id is one, so that a mistyped id is no label that nobody has.
///
/// # Errors
/// When it is neither.
pub fn parse(text: &str) -> Result<Which, String> {
    let like_an_id = text.starts_with("lease-") || text.starts_with(|c: char| c.is_ascii_digit());
    match (text.parse::<LeaseId>(), text.parse::<Name>()) {
        (Ok(id), _) => Ok(Which::Id(id)),
        (Err(_), Ok(label)) if !like_an_id => Ok(Which::Label(label)),
        (Err(error), _) => Err(error.to_string()),
    }
}

impl Which {
    /// The lease's id. A label is looked for among live leases, then among those that have ended, the newest first.
    ///
    /// # Errors
    /// When the cluster cannot be asked, or the label names no lease, or several.
    pub async fn find(&self, client: &Client) -> Result<LeaseId, CliError> {
        let label = match self {
            Self::Id(id) => return Ok(*id),
            Self::Label(label) => label,
        };
        let live = labelled(label, false, client).await?;
        match live.as_slice() {
            [one] => return Ok(one.id),
            [] => {}
            several => {
                let ids: Vec<String> = several.iter().map(|lease| lease.id.to_string()).collect();
                let told = format!(
                    "several live leases are called {label}: {}; name one by its id",
                    ids.join(", ")
                );
                return Err(CliError::LeaseUnknown(told));
            }
        }
        let ended = labelled(label, true, client).await?;
        let newest = ended.iter().max_by_key(|lease| lease.since_ms).map(|lease| lease.id);
        newest
            .ok_or_else(|| CliError::LeaseUnknown(format!("no lease is called {label}; `holdfast leases` lists them")))
    }
}

async fn labelled(label: &Name, ended: bool, client: &Client) -> Result<Vec<LeaseView>, CliError> {
    let path = format!("/v1/leases?ended={ended}&limit={LEASES_MAX}");
    let mut leases = client.get::<LeaseList>(&path).await?.body.leases;
    leases.retain(|lease| lease.label.as_ref() == Some(label));
    Ok(leases)
}
