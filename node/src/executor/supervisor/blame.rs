//! Whose fault it is that a program did not start: the tenant's, who named what cannot be run, or the node's.
//!
//! The supervisor asks when `execve` or a step before it has failed. The rule: what another node would refuse too ends
//! the lease as a shell would, with 126 or 127; only the rest counts against the node, and is tried elsewhere.

use std::io;
use std::path::Path;

use super::process;
use super::spec::Spec;

/// Exit code of work whose program does not exist, as POSIX shells give it.
const EXIT_NOT_FOUND: i32 = 127;
/// Exit code of work whose program exists and cannot be executed, as POSIX shells give it.
const EXIT_NOT_EXECUTABLE: i32 = 126;

/// Why a program did not start, for a person, and the exit code that it stands for when the tenant named what cannot
/// be run. Otherwise a tenant with a wrong path would count as a broken node, and take one node after another out.
pub(super) fn launch_fault(spec: &Spec, folder: &Path, errno: i32) -> (String, Option<i32>) {
    let program = &spec.argv[0]; // A validated spec has one.
    let error = io::Error::from_raw_os_error(errno);
    if let Some(cwd) = spec.cwd.as_ref().filter(|cwd| !is_enterable(cwd)) {
        let text = format!(
            "the working folder {} cannot be entered on this node; does it exist, and may the daemon's user?",
            cwd.display()
        );
        return (text, Some(EXIT_NOT_EXECUTABLE));
    }
    let cwd = process::work_dir(spec, folder);
    if !cwd.is_dir() {
        return (format!("the working folder {} is gone", cwd.display()), None);
    }
    match error.kind() {
        io::ErrorKind::NotFound if program.contains('/') && Path::new(program).exists() => (
            format!("command {program} names an interpreter that does not exist on this node"),
            Some(EXIT_NOT_FOUND),
        ),
        io::ErrorKind::NotFound if program.contains('/') => (
            format!("command not found: {program} does not exist"),
            Some(EXIT_NOT_FOUND),
        ),
        io::ErrorKind::NotFound => {
            let path = spec.env.get("PATH").map(String::as_str).unwrap_or_default();
            let text = format!("command not found: {program} (searched in PATH={path})");
            (text, Some(EXIT_NOT_FOUND))
        }
        _ if is_tenants(errno) => (
            format!("command {program} may not be executed: {error}"),
            Some(EXIT_NOT_EXECUTABLE),
        ),
        _ => (format!("command {program} could not be started: {error}"), None),
    }
}

fn is_enterable(folder: &Path) -> bool {
    folder.is_dir() && nix::unistd::access(folder, nix::unistd::AccessFlags::X_OK).is_ok()
}

/// Whether an error of `execve` is about the file, the arguments or the environment that the tenant named.
fn is_tenants(errno: i32) -> bool {
    use nix::errno::Errno;
    matches!(
        Errno::from_raw(errno),
        Errno::EACCES
            | Errno::EPERM
            | Errno::ENOEXEC
            | Errno::ENOTDIR
            | Errno::EISDIR
            | Errno::ELOOP
            | Errno::ENAMETOOLONG
            | Errno::E2BIG
            | Errno::ETXTBSY
    )
}
