//! Interception: the iptables rules of an injected pod.
//!
//! The same rules as Istio's init container writes, under our own chain names. They vanish with the namespace.

use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::net::Net;
use crate::tools;

/// The group a sidecar runs as. What this group sends is not intercepted again.
pub const PROXY_GID: u32 = 1337;
/// Where the sidecar takes what the application sends.
pub const OUTBOUND_PORT: u16 = 15001;
/// Where the sidecar takes what others send to the application.
pub const INBOUND_PORT: u16 = 15006;

/// Sends all TCP of a namespace through its sidecar.
pub fn redirect(net: &Net) -> Result<()> {
    let program = tools::on_path("iptables-restore")
        .context("iptables-restore is not installed: run scripts/prepare")?;
    let rules = rules();
    let output = net
        .run(move || {
            let mut child = Command::new(program)
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()?;
            child
                .stdin
                .take()
                .expect("piped")
                .write_all(rules.as_bytes())?;
            child.wait_with_output()
        })
        .context("run iptables-restore")?;
    if !output.status.success() {
        bail!(
            "iptables-restore: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}

fn rules() -> String {
    let gid = PROXY_GID;
    format!(
        "*nat
:PILOTFISH_INBOUND - [0:0]
:PILOTFISH_OUTPUT - [0:0]
-A PREROUTING -p tcp -j PILOTFISH_INBOUND
-A OUTPUT -p tcp -j PILOTFISH_OUTPUT
-A PILOTFISH_INBOUND -p tcp -j REDIRECT --to-ports {INBOUND_PORT}
# The sidecar hands a request to the application from this address: it has arrived.
-A PILOTFISH_OUTPUT -o lo -s 127.0.0.6/32 -j RETURN
# A pod that calls its own service leaves by the sidecar and comes back in through it.
-A PILOTFISH_OUTPUT -o lo ! -d 127.0.0.1/32 -p tcp -m owner --gid-owner {gid} -j REDIRECT --to-ports {INBOUND_PORT}
-A PILOTFISH_OUTPUT -o lo -m owner ! --gid-owner {gid} -j RETURN
-A PILOTFISH_OUTPUT -m owner --gid-owner {gid} -j RETURN
-A PILOTFISH_OUTPUT -d 127.0.0.1/32 -j RETURN
-A PILOTFISH_OUTPUT -p tcp -j REDIRECT --to-ports {OUTBOUND_PORT}
COMMIT
"
    )
}
