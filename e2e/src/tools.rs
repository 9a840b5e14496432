//! The programs the harness runs, where it finds them, and what to do when one is missing.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// A file of this name on `PATH`. Debian keeps `ip` and `iptables` in folders that a user's `PATH` may leave out.
pub fn on_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}

/// The root of the workspace, which this crate lives in.
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the crate lies in the workspace")
}

/// The folder cargo builds into.
fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace().join("target"), PathBuf::from)
}

/// Stock Envoy: `$ENVOY`, or what `scripts/fetch-envoy` installed.
pub fn envoy() -> Result<PathBuf> {
    if let Some(file) = env::var_os("ENVOY") {
        return Ok(file.into());
    }
    let file = target().join("tools/envoy");
    if file.is_file() {
        return Ok(file);
    }
    bail!("{} is missing: run scripts/fetch-envoy", file.display())
}

/// `$ETCD`, or etcd as `scripts/fetch-kube` built it.
pub fn etcd() -> Result<PathBuf> {
    env::var_os("ETCD").map_or_else(|| fetched("etcd"), |file| Ok(file.into()))
}

/// `$KUBE_APISERVER`, or kube-apiserver as `scripts/fetch-kube` built it: soon built, but slower than one that inlines.
pub fn kube_apiserver() -> Result<PathBuf> {
    env::var_os("KUBE_APISERVER").map_or_else(|| fetched("kube-apiserver"), |file| Ok(file.into()))
}

/// The folder with the CRDs of Istio and of the Gateway API that `scripts/fetch-kube` fetched.
pub fn crds() -> Result<PathBuf> {
    fetched("crds")
}

fn fetched(name: &str) -> Result<PathBuf> {
    let path = target().join("tools").join(name);
    if path.exists() {
        return Ok(path);
    }
    bail!("{} is missing: run scripts/fetch-kube", path.display())
}

/// The control plane: `$PILOTFISH`, or the one built in the same profile as the program that asks.
pub fn pilotfish() -> Result<PathBuf> {
    if let Some(file) = env::var_os("PILOTFISH") {
        return Ok(file.into());
    }
    let exe = env::current_exe().context("where this program lies")?;
    let built = exe
        .ancestors()
        .skip(1)
        .take(2)
        .map(|dir| dir.join("pilotfish"));
    for file in built {
        if file.is_file() {
            return Ok(file);
        }
    }
    bail!(
        "no pilotfish beside {}: run `cargo build -p pilotfish`",
        exe.display()
    )
}

/// What keeps network namespaces with interception from working here; `Ok` if nothing does.
pub fn namespaces_work() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("network namespaces and iptables need root");
    }
    for tool in ["ip", "iptables-restore", "setpriv"] {
        on_path(tool)
            .with_context(|| format!("{tool} is not installed (scripts/prepare installs it)"))?;
    }
    crate::netns::Namespace::new("probe").map(drop)
}
