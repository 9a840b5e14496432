//! `make kube`: a real API server on loopback to try things on, until Ctrl-C.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;
use pilotfish_e2e::config::Workspace;
use pilotfish_e2e::kube::{KubeServer, User};
use pilotfish_e2e::net::Net;
use pilotfish_e2e::{interrupt, tools};

/// Starts a real etcd and kube-apiserver on free ports of loopback, with the CRDs of Istio and of the Gateway API, and
/// leaves them running until Ctrl-C. Nothing outside of a temporary directory is touched, and nothing is left behind.
///
/// It is a cluster without nodes: no controllers, no scheduler, no kubelet. Pods do not run, EndpointSlices are not made
/// for Services, and an object has the status that you give it. RBAC, CRDs, admission webhooks, token reviews and
/// server-side apply are the real ones. Any user can run it.
///
/// kube-apiserver and etcd are built by scripts/fetch-kube; `make kube` calls it first.
#[derive(Parser)]
#[command(
    name = "pilotfish-kube",
    after_help = "Examples:\n  pilotfish-kube                                  an empty cluster\n  \
        pilotfish-kube examples/bookshop/*.yaml         with these objects (status, too; namespaces are made)\n  \
        pilotfish-kube --kubeconfig /tmp/kubeconfig     the kubeconfig where you want it\n  \
        pilotfish-kube --api-flag=-v=4                  a flag for kube-apiserver"
)]
struct Args {
    /// YAML files to apply once it is ready.
    files: Vec<PathBuf>,
    /// Where to write the kubeconfig of its admin, besides the temporary directory.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Leaves the CRDs out, to see what happens when they come later (`kubectl apply --server-side -f target/tools/crds`).
    #[arg(long)]
    no_crds: bool,
    /// A further flag for kube-apiserver; can be repeated.
    #[arg(long = "api-flag", value_name = "FLAG", allow_hyphen_values = true)]
    api_flags: Vec<String>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pilotfish-kube: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let interrupt = interrupt::watch()?;
    let workspace = Workspace::new()?;
    let begin = Instant::now();
    let flags: Vec<&str> = args.api_flags.iter().map(String::as_str).collect();
    let mut server = KubeServer::start_with(&Net::Host, "kube", &workspace, &flags)?;
    eprintln!("ready after {:.1?}", begin.elapsed());
    let admin = server.admin()?;
    if !args.no_crds {
        let begin = Instant::now();
        let count = admin.install_crds(&tools::crds()?)?;
        eprintln!("{count} CRDs installed in {:.1?}", begin.elapsed());
    }
    for file in &args.files {
        let name = || file.display().to_string();
        let count = admin
            .apply(&fs::read_to_string(file).with_context(name)?)
            .with_context(name)?;
        eprintln!("{count} objects of {} applied", file.display());
    }
    let mut kubeconfig = server.kubeconfig(&User::admin())?;
    if let Some(wanted) = &args.kubeconfig {
        fs::copy(&kubeconfig, wanted).with_context(|| format!("write {}", wanted.display()))?;
        kubeconfig.clone_from(wanted);
    }
    let kubeconfig = kubeconfig.display();
    eprintln!(
        "\nA cluster without nodes is at https://{}; its logs are in {}.\nTry:\n  \
         kubectl --kubeconfig {kubeconfig} api-resources --api-group networking.istio.io\n  \
         kubectl --kubeconfig {kubeconfig} get --raw '/readyz?verbose'\n\nCtrl-C ends it.",
        server.address(),
        workspace.logs().display(),
    );
    while !interrupt.came() {
        server.check()?;
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}
