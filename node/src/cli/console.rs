//! Where a command reads and writes, and what it is told by its surroundings.
//!
//! Owns the streams, the environment and the clock of one command, so that a test can run any command in its own process. The one rule:
//! nothing below `cli` touches the process's streams or environment but through this.

use std::io::{BufRead, ErrorKind, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;

use jiff::tz::TimeZone;
use serde::Serialize;

use super::error::CliError;
use super::render;
use crate::client::credentials::{Credentials, Overrides};
use crate::client::event::lane::EventLane;
use crate::client::{Client, View};
use crate::env::{Clock, Entropy, OsClock, OsEntropy};
use crate::identity::secret::Secret;

/// Columns of a table when the terminal does not say.
const WIDTH_DEFAULT: u16 = 120;

/// The surroundings of one command.
pub struct Console<'a> {
    /// What was asked for.
    pub out: &'a mut dyn Write,
    /// What else a person wants to know.
    pub err: &'a mut dyn Write,
    /// What a person types.
    pub input: &'a mut dyn BufRead,
    /// The environment.
    pub env: &'a dyn Fn(&str) -> Option<String>,
    /// A person is at the other end.
    pub is_terminal: bool,
    /// Columns.
    pub width: u16,
    /// Where times are shown.
    pub zone: TimeZone,
    /// Tells the time.
    pub clock: Arc<dyn Clock>,
    /// Draws request ids.
    pub entropy: Arc<dyn Entropy>,
    /// JSON instead of text.
    pub json: bool,
    /// Nodes to talk to, from the command line.
    pub address: Option<String>,
    /// Which state reads are answered from.
    pub view: View,
}

impl Console<'_> {
    /// Lends the surroundings of this process.
    pub fn of_process<T>(command: impl FnOnce(&mut Console<'_>) -> T) -> T {
        let env = |name: &str| std::env::var(name).ok();
        let columns = env("COLUMNS").and_then(|text| text.parse().ok());
        command(&mut Console {
            is_terminal: std::io::stdin().is_terminal() && std::io::stderr().is_terminal(),
            out: &mut std::io::stdout(),
            err: &mut std::io::stderr(),
            input: &mut std::io::stdin().lock(),
            env: &env,
            width: columns.unwrap_or(WIDTH_DEFAULT),
            zone: TimeZone::system(),
            clock: Arc::new(OsClock),
            entropy: Arc::new(OsEntropy),
            json: false,
            address: None,
            view: View::Fresh,
        })
    }

    /// Prints text that was asked for, as it is.
    ///
    /// # Errors
    /// When the other end is gone.
    pub fn print(&mut self, text: &str) -> Result<(), CliError> {
        self.out
            .write_all(text.as_bytes())
            .and_then(|()| self.out.flush())
            .map_err(CliError::Io)
    }

    /// Prints a value as one line of JSON.
    ///
    /// # Errors
    /// When the other end is gone.
    pub fn print_json(&mut self, value: &impl Serialize) -> Result<(), CliError> {
        let text = serde_json::to_string(value).map_err(|error| CliError::Io(error.into()))?;
        self.print(&format!("{text}\n"))
    }

    /// Prints a value: as JSON, or as the text that `words` makes of it.
    ///
    /// # Errors
    /// When the other end is gone.
    pub fn show<T: Serialize>(&mut self, value: &T, words: impl FnOnce(&Self, &T) -> String) -> Result<(), CliError> {
        if self.json {
            return self.print_json(value);
        }
        let mut text = words(self, value);
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        self.print(&text)
    }

    /// Tells a person something beside what was asked for; silent with `--json`.
    pub fn tell(&mut self, text: &str) {
        if !self.json {
            // Nobody may be listening; the command goes on.
            let _ = writeln!(self.err, "{}", render::plain(text));
        }
    }

    /// Reports a failure; gives the exit code.
    pub fn fail(&mut self, error: &CliError) -> u8 {
        if matches!(error, CliError::Io(source) if source.kind() == ErrorKind::BrokenPipe) {
            // Whoever read has had enough, as after `| head`; that is no failure to tell anybody.
            return error.exit_code();
        }
        if self.json {
            let _ = self.print_json(&error.json());
        } else if let CliError::Usage(text) = error {
            // What the parser of the command line says begins with `error:`, and has its own lines.
            let said = if text.starts_with("error:") { "" } else { "holdfast: " };
            // It repeats what was typed, or pasted.
            let lines: Vec<String> = text.lines().map(render::plain).collect();
            let _ = writeln!(self.err, "{said}{}", lines.join("\n"));
        } else {
            let _ = writeln!(self.err, "holdfast: {}", render::plain(&error.told()));
        }
        error.exit_code()
    }

    /// Asks a yes-or-no question until it is answered; nothing at all is no.
    ///
    /// # Errors
    /// When nothing can be read.
    pub fn ask(&mut self, question: &str) -> Result<bool, CliError> {
        let mut question = render::plain(question);
        loop {
            let _ = write!(self.err, "{question} [y/N] ");
            let _ = self.err.flush();
            let mut answer = String::new();
            let read = self.input.read_line(&mut answer).map_err(CliError::Io)?;
            match answer.trim().to_ascii_lowercase().as_str() {
                "y" | "yes" => return Ok(true),
                "" | "n" | "no" => return Ok(false),
                _ if read == 0 => return Ok(false),
                _ => "please answer y or n".clone_into(&mut question),
            }
        }
    }

    /// Connects to the cluster that the credentials, the environment and the command line name.
    ///
    /// # Errors
    /// When they do not name one.
    pub fn client(&self) -> Result<Client, CliError> {
        let credentials = Credentials::find(&self.credentials_path()?, &self.overrides())?;
        let tls = credentials.tls()?;
        let bearer = credentials.bearer.as_ref();
        let addresses = credentials.addresses.clone();
        let client = Client::new(addresses, tls, bearer, self.clock.clone(), self.entropy.clone())?;
        let client = client.with_view(self.view);
        let lane = bearer.and_then(|bearer| EventLane::new(&credentials, bearer).ok());
        Ok(match lane {
            // Without one, events come over HTTPS.
            None => client,
            Some(lane) => client.with_lane(lane),
        })
    }

    /// Writes the nodes that answers have named into the credentials, so that the next command outlives the loss of the first node.
    /// A failure to do so is no failure of the command.
    pub fn keep_addresses(&self, client: &Client) {
        let overrides = self.overrides();
        let overridden = overrides.address.is_some() || overrides.authority.is_some();
        let Ok(path) = self.credentials_path() else { return };
        let Ok(Some(mut credentials)) = Credentials::read(&path) else {
            return;
        };
        let addresses = client.addresses();
        if !overridden && credentials.addresses != addresses {
            credentials.addresses = addresses;
            let _ = credentials.write(&path);
        }
    }

    /// Where the credentials are.
    ///
    /// # Errors
    /// When no variable says where a user's configuration is.
    pub fn credentials_path(&self) -> Result<PathBuf, CliError> {
        Ok(Credentials::path(self.env)?)
    }

    fn overrides(&self) -> Overrides {
        let set = |name: &str| (self.env)(name).filter(|value| !value.is_empty());
        Overrides {
            address: self.address.clone().or_else(|| set("HOLDFAST_ADDRESS")),
            token: set("HOLDFAST_TOKEN").map(Secret::new),
            authority: set("HOLDFAST_CA"),
        }
    }
}
