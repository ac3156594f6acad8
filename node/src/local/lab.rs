//! A network of one's own for a local cluster: a bridge, and a network namespace for each node, whose link can be cut
//! in both directions or in one.
//!
//! Made with `ip`, `nft` and `nsenter`, so it needs root and those programs; without them it says what is missing. The
//! rule: every name carries this process's tag, and everything with that tag is removed when the lab is dropped.

use std::io::Write as _;
use std::process::{Command, Stdio};

/// Why there is no lab, or a link could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// Only root can make network namespaces here.
    #[error("network namespaces need root")]
    NotRoot,
    /// A program is not installed.
    #[error("`{program}` is missing; install it with `apt-get install {package}`")]
    Missing {
        /// The program.
        program: &'static str,
        /// The Debian package that has it.
        package: &'static str,
    },
    /// A program failed.
    #[error("`{command}` failed: {text}")]
    Failed {
        /// What was run.
        command: String,
        /// What it said.
        text: String,
    },
}

/// Which direction of a node's link is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Nothing passes.
    Both,
    /// The node is heard, but hears nothing.
    Inbound,
    /// The node hears, but is not heard.
    Outbound,
}

/// A bridge and namespaces on it.
#[derive(Debug)]
pub struct Lab {
    tag: String,
    subnet: u8,
    nodes: usize,
}

impl Lab {
    /// Makes a lab with `nodes` namespaces.
    ///
    /// # Errors
    /// [`LabError`]; what was made is removed then.
    pub fn create(nodes: usize) -> Result<Self, LabError> {
        if !rustix::process::geteuid().is_root() {
            return Err(LabError::NotRoot);
        }
        for (program, package) in [("ip", "iproute2"), ("nft", "nftables"), ("nsenter", "util-linux")] {
            if Command::new(program)
                .arg("--version")
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .is_err()
            {
                return Err(LabError::Missing { program, package });
            }
        }
        let pid = std::process::id();
        let lab = Self {
            tag: format!("hf{pid}"),
            subnet: u8::try_from(pid % 250).unwrap_or_default(),
            nodes,
        };
        let (tag, subnet) = (&lab.tag, lab.subnet);
        let mut batch =
            format!("link add {tag}b type bridge\naddr add 10.213.{subnet}.1/24 dev {tag}b\nlink set {tag}b up\n");
        for node in 0..nodes {
            let address = lab.address(node);
            batch += &format!(
                "netns add {tag}n{node}\nlink add {tag}v{node} type veth peer name eth0 netns {tag}n{node}\n\
                 link set {tag}v{node} master {tag}b up\n-n {tag}n{node} addr add {address}/24 dev eth0\n\
                 -n {tag}n{node} link set eth0 up\n-n {tag}n{node} link set lo up\n"
            );
        }
        // `-n` is an option, not a batch word: those lines run one by one.
        for line in batch.lines() {
            run("ip", &line.split(' ').collect::<Vec<_>>(), None)?;
        }
        Ok(lab)
    }

    /// The address of a node on the bridge.
    #[must_use]
    pub fn address(&self, node: usize) -> String {
        format!("10.213.{}.{}", self.subnet, 10 + node)
    }

    /// The command line prefix that runs a program on a node's network; it keeps the mounts, cgroups among them.
    #[must_use]
    pub fn enter(&self, node: usize) -> [String; 2] {
        ["nsenter".to_owned(), format!("--net=/run/netns/{}n{node}", self.tag)]
    }

    /// Cuts a node's link.
    ///
    /// # Errors
    /// [`LabError::Failed`] when the kernel refuses.
    pub fn cut(&self, node: usize, cut: Cut) -> Result<(), LabError> {
        let hook = match cut {
            Cut::Both => return run("ip", &["link", "set", &format!("{}v{node}", self.tag), "down"], None),
            Cut::Inbound => "input",
            Cut::Outbound => "output",
        };
        let (way, enter) = (
            if cut == Cut::Inbound { "iifname" } else { "oifname" },
            self.enter(node),
        );
        let rules = format!(
            "table inet cut {{\n chain drops {{\n  type filter hook {hook} priority 0; policy accept;\n  {way} \"eth0\" drop\n }}\n}}\n"
        );
        run(&enter[0], &[&enter[1], "nft", "-f", "-"], Some(&rules))
    }

    /// Mends a node's link, whichever way it was cut.
    ///
    /// # Errors
    /// [`LabError::Failed`] when the kernel refuses.
    pub fn heal(&self, node: usize) -> Result<(), LabError> {
        let enter = self.enter(node);
        run("ip", &["link", "set", &format!("{}v{node}", self.tag), "up"], None)?;
        run(
            &enter[0],
            &[&enter[1], "nft", "-f", "-"],
            Some("table inet cut\ndelete table inet cut\n"),
        )
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // What was never made cannot be removed; nothing to do about that.
        for node in 0..self.nodes {
            let _ = run("ip", &["link", "del", &format!("{}v{node}", self.tag)], None);
            let _ = run("ip", &["netns", "del", &format!("{}n{node}", self.tag)], None);
        }
        let _ = run("ip", &["link", "del", &format!("{}b", self.tag)], None);
    }
}

fn run(program: &str, arguments: &[&str], input: Option<&str>) -> Result<(), LabError> {
    let failed = |text: String| LabError::Failed {
        command: format!("{program} {}", arguments.join(" ")),
        text,
    };
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
    if let (Some(mut stdin), Some(input)) = (child.stdin.take(), input) {
        stdin
            .write_all(input.as_bytes())
            .map_err(|error| failed(error.to_string()))?;
    }
    let output = child.wait_with_output().map_err(|error| failed(error.to_string()))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}
