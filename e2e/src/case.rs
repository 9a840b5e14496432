//! What every end-to-end test begins and ends with.

use std::env;

use anyhow::{Result, bail};

use crate::config::Workspace;
use crate::process::read_tail;
use crate::tools;

/// Runs a test in a workspace of its own; when it fails, shows the end of every log.
///
/// A machine that cannot run it is a failure, so that nothing is skipped in silence. `PILOTFISH_E2E=skip` is how a user
/// says that it should be.
pub fn run(test: impl FnOnce(&Workspace) -> Result<()>) {
    on_loopback(|workspace| {
        if let Err(error) = tools::namespaces_work() {
            bail!(
                "end-to-end tests cannot run here: {error:#}. PILOTFISH_E2E=skip leaves them out."
            );
        }
        test(workspace)
    });
}

/// The same for a test that makes no namespaces, and needs no root.
pub fn on_loopback(test: impl FnOnce(&Workspace) -> Result<()>) {
    if env::var_os("PILOTFISH_E2E").is_some_and(|value| value == "skip") {
        eprintln!("skipped, because PILOTFISH_E2E=skip is set");
        return;
    }
    let workspace = Workspace::new().expect("a temporary directory");
    if let Err(error) = test(&workspace) {
        for log in workspace.log_files() {
            let text = read_tail(&log).unwrap_or_else(|error| format!("(unreadable: {error})"));
            eprintln!("--- end of {}\n{text}", log.display());
        }
        panic!("{error:#}");
    }
}
