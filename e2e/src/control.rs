//! The control plane under test.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::client::Client;
use crate::net::Net;
use crate::process::{Process, Start};
use crate::tools;
use crate::wait::SOON;

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const STOP: Duration = Duration::from_secs(30);

/// Where it listens: xDS where proxies reach it, the rest on loopback, which is who it shows its debug pages to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    /// xDS in plain text.
    pub grpc: u16,
    /// `/ready`
    pub http: u16,
    /// `/metrics` and `/debug/`
    pub monitoring: u16,
}

impl Ports {
    /// istiod's.
    pub const ISTIOD: Self = Self {
        grpc: 15010,
        http: 8080,
        monitoring: 15014,
    };

    /// Three that are free now.
    pub fn free(net: &Net) -> Result<Self> {
        Ok(Self {
            grpc: net.free_port()?,
            http: net.free_port()?,
            monitoring: net.free_port()?,
        })
    }
}

/// What it is told when it starts, besides where to listen and what to read.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Flags.
    pub flags: Vec<String>,
    /// Variables of its environment.
    pub environment: BTreeMap<String, String>,
}

/// A running `pilotfish serve`. Dropping it kills it.
#[derive(Debug)]
pub struct ControlPlane {
    process: Process,
    net: Net,
    address: IpAddr,
    ports: Ports,
    config: Option<PathBuf>,
    logs: PathBuf,
    options: Options,
}

impl ControlPlane {
    /// Starts it on a directory and waits until it is ready.
    pub fn start(
        net: &Net,
        address: impl Into<IpAddr>,
        ports: Ports,
        config: &Path,
        logs: &Path,
    ) -> Result<Self> {
        Self::start_with(net, address, ports, config, logs, Options::default())
    }

    /// Starts it on a directory, with further options, and waits until it is ready.
    pub fn start_with(
        net: &Net,
        address: impl Into<IpAddr>,
        ports: Ports,
        config: &Path,
        logs: &Path,
        options: Options,
    ) -> Result<Self> {
        let mut this = Self::launch(net, address, ports, Some(config), logs, options)?;
        this.wait_ready()?;
        Ok(this)
    }

    /// Starts it on a directory, or on what the options say, and waits for nothing.
    pub fn launch(
        net: &Net,
        address: impl Into<IpAddr>,
        ports: Ports,
        config: Option<&Path>,
        logs: &Path,
        options: Options,
    ) -> Result<Self> {
        let address = address.into();
        let process = launch(net, address, ports, config, logs, &options)?;
        Ok(Self {
            process,
            net: net.clone(),
            address,
            ports,
            config: config.map(Path::to_owned),
            logs: logs.to_owned(),
            options,
        })
    }

    /// What `/ready` says: its status and text.
    pub fn readiness(&self) -> Result<(u16, String)> {
        let ready = SocketAddr::from((LOOPBACK, self.ports.http));
        let response = Client::new(&self.net, ready, "pilotfish").get("/ready")?;
        Ok((response.status, response.text()))
    }

    /// Waits until it is ready.
    pub fn wait_ready(&mut self) -> Result<()> {
        let (net, ready) = (
            self.net.clone(),
            SocketAddr::from((LOOPBACK, self.ports.http)),
        );
        self.process.wait_for("control plane ready", SOON, || {
            let response = Client::new(&net, ready, "pilotfish")
                .get("/ready")
                .context("GET /ready")?;
            match response.status {
                200 => Ok(()),
                status => bail!("/ready answers {status}: {}", response.text().trim()),
            }
        })
    }

    /// Where proxies connect.
    pub fn xds(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.ports.grpc)
    }

    /// Where the debug pages are.
    pub fn monitoring(&self) -> SocketAddr {
        SocketAddr::from((LOOPBACK, self.ports.monitoring))
    }

    /// A page of the monitoring port, as JSON.
    pub fn page(&self, path: &str) -> Result<Value> {
        let response = Client::new(&self.net, self.monitoring(), "pilotfish").get(path)?;
        if response.status != 200 {
            bail!("{path}: {} {}", response.status, response.text().trim());
        }
        serde_json::from_slice(&response.message.body).with_context(|| format!("JSON of {path}"))
    }

    /// Ends it as an operator would.
    pub fn stop(&mut self) -> Result<()> {
        let status = self.process.stop(STOP)?;
        if !status.success() {
            bail!(
                "the control plane ended with {status} on SIGTERM\n{}",
                self.process.tail()
            );
        }
        Ok(())
    }

    /// Starts it again at the same addresses.
    pub fn start_again(&mut self) -> Result<()> {
        self.process = launch(
            &self.net,
            self.address,
            self.ports,
            self.config.as_deref(),
            &self.logs,
            &self.options,
        )?;
        self.wait_ready()
    }

    /// Its process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }
}

fn launch(
    net: &Net,
    address: IpAddr,
    ports: Ports,
    config: Option<&Path>,
    logs: &Path,
    options: &Options,
) -> Result<Process> {
    let mut args = vec!["serve".to_owned()];
    if let Some(config) = config {
        args.extend(["--config-dir".to_owned(), config.display().to_string()]);
    }
    for (flag, address, port) in [
        ("--grpc-addr", address, ports.grpc),
        ("--http-addr", LOOPBACK, ports.http),
        ("--monitoring-addr", LOOPBACK, ports.monitoring),
    ] {
        args.extend([flag.to_owned(), SocketAddr::new(address, port).to_string()]);
    }
    args.extend_from_slice(&options.flags);
    Process::start(Start {
        name: "pilotfish",
        program: &tools::pilotfish()?,
        args,
        environment: options.environment.clone(),
        gid: None,
        net,
        logs,
    })
}
