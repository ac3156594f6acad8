//! `holdfast token`: makes, lists and revokes tokens.

use clap::{Args, Subcommand, ValueEnum};
use holdfast_proto::id::{Name, TokenId};
use holdfast_proto::node::NodeRole;
use holdfast_proto::rejection::Rejection;
use holdfast_proto::tenant::Role;
use holdfast_proto::time::Span;
use reqwest::Method;

use super::console::Console;
use super::error::CliError;
use super::init::JOIN_HINT;
use super::{duration, render};
use crate::client::{Client, ClientError};
use crate::wire::cluster::Applied;
use crate::wire::token::{TokenList, TokenMade, TokenOrder};

/// What to do with tokens.
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Make a token. By default it admits one machine; with --role operator, tenant, subscriber or read-only it speaks for a
    /// person or a program.
    Create(CreateArgs),
    /// List tokens.
    List,
    /// Revoke a token.
    Revoke {
        /// Its id, as `holdfast token list` shows it.
        token: TokenId,
    },
}

/// What a token is made with.
#[derive(Debug, Args)]
pub struct CreateArgs {
    /// What it allows: replica, worker or witness admit a machine; operator, tenant, subscriber and read-only speak for somebody.
    #[arg(long, value_enum, default_value = "replica")]
    pub role: RoleWord,
    /// The tenant that it is bound to.
    #[arg(long)]
    pub tenant: Option<Name>,
    /// The project that its leases belong to.
    #[arg(long)]
    pub project: Option<Name>,
    /// What it is for; only of a token that speaks for somebody.
    #[arg(long, short = 'm', default_value = "")]
    pub note: String,
    /// How long it works, such as 30m [default: 15m for a machine, for ever otherwise].
    #[arg(long = "for", value_name = "DURATION", value_parser = duration::parse)]
    pub life: Option<Span>,
}

/// Every role that a token can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RoleWord {
    /// A machine with devices that may vote.
    Replica,
    /// A machine with devices that never votes.
    Worker,
    /// A machine that votes and has no devices.
    Witness,
    /// Everything.
    Operator,
    /// Leases and reads of one tenant.
    Tenant,
    /// The event stream.
    Subscriber,
    /// Reads.
    ReadOnly,
}

impl CreateArgs {
    fn order(self) -> Result<TokenOrder, CliError> {
        let life_ms = self.life.map(|life| life.0);
        let access = |role| match role {
            RoleWord::Operator => Some(Role::Operator),
            RoleWord::Tenant => Some(Role::Tenant),
            RoleWord::Subscriber => Some(Role::Subscriber),
            RoleWord::ReadOnly => Some(Role::ReadOnly),
            _ => None,
        };
        if let Some(role) = access(self.role) {
            if role == Role::Tenant && self.tenant.is_none() {
                return Err(CliError::Usage("a tenant's token needs --tenant".to_owned()));
            }
            return Ok(TokenOrder::Access {
                role,
                tenant: self.tenant,
                project: self.project,
                note: self.note,
                life_ms,
            });
        }
        let role = match self.role {
            RoleWord::Worker => NodeRole::Worker,
            RoleWord::Witness => NodeRole::Witness,
            _ => NodeRole::Replica,
        };
        if self.tenant.is_some() || self.project.is_some() {
            return Err(CliError::Usage(
                "a token that admits a machine belongs to no tenant".to_owned(),
            ));
        }
        if !self.note.is_empty() {
            return Err(CliError::Usage(
                "a token that admits a machine lives for minutes and carries no note: name the machine when it joins \
                 (`holdfast join --name`), or write one into the log (`holdfast note`)"
                    .to_owned(),
            ));
        }
        Ok(TokenOrder::Join { role, life_ms })
    }
}

/// Does it.
///
/// # Errors
/// When the cluster cannot be asked, or says no.
pub async fn token(command: TokenCommand, client: &Client, console: &mut Console<'_>) -> Result<(), CliError> {
    match command {
        TokenCommand::Create(args) => {
            let order = args.order()?;
            let made: TokenMade = client.command(Method::POST, "/v1/tokens", &order).await?.body;
            console.show(&made, |console, made| {
                let until = made.expires_ms.map_or("until it is revoked".to_owned(), |at| {
                    format!("until {}", render::when(at, &console.zone))
                });
                match &made.join_line {
                    Some(line) => format!("{line}\n# admits one machine, works {until}; {JOIN_HINT}\n"),
                    None => format!(
                        "{}\n# token {}, works {until}; it is not shown again\n",
                        made.token, made.id
                    ),
                }
            })
        }
        TokenCommand::List => {
            let list: TokenList = client.get("/v1/tokens").await?.body;
            console.show(&list, |console, list| {
                let rows = list.tokens.iter().map(|token| {
                    vec![
                        token.id.to_string(),
                        token.kind.clone(),
                        token.role.clone(),
                        token.tenant.as_ref().map(ToString::to_string).unwrap_or_default(),
                        token.state.clone(),
                        token
                            .expires_ms
                            .map(|at| render::when(at, &console.zone))
                            .unwrap_or_default(),
                        token.note.clone(),
                    ]
                });
                render::table(
                    console.width,
                    &["token", "kind", "role", "tenant", "state", "expires", "note"],
                    rows,
                )
            })
        }
        TokenCommand::Revoke { token } => {
            let revoked = client
                .command::<Applied>(Method::DELETE, &format!("/v1/tokens/{token}"), &serde_json::json!({}))
                .await;
            match revoked {
                Ok(done) => console.show(&done.body, |_, _| format!("token {token} is revoked")),
                // What was wanted is so already: nothing is refused to whoever asks again.
                Err(ClientError::Refused { problem })
                    if problem.rejection == Some(Rejection::TokenRevoked { token }) && problem.index.is_some() =>
                {
                    let index = problem.index.unwrap_or_default();
                    console.show(&Applied { index }, |_, _| {
                        format!("token {token} was revoked before; nothing changed")
                    })
                }
                Err(error) => Err(error.into()),
            }
        }
    }
}
