//! A mesh in namespaces: the control plane in the hub, and pods with their proxies.

use std::net::Ipv4Addr;

use anyhow::Result;

use crate::config::Workspace;
use crate::control::{ControlPlane, Options, Ports};
use crate::envoy::{Envoy, Protocol};
use crate::fabric::{Fabric, HUB, Interception};
use crate::net::Net;
use crate::proxy::{Proxy, Role};
use crate::relay::Relay;

/// Everything a test stands on. Fields are dropped in order: processes before namespaces.
#[derive(Debug)]
pub struct Mesh<'a> {
    /// The control plane.
    pub control: ControlPlane,
    /// The network.
    pub fabric: Fabric,
    /// The YAML and the logs.
    pub workspace: &'a Workspace,
}

/// A pod with a proxy.
#[derive(Debug)]
pub struct Pod {
    /// Its Envoy.
    pub envoy: Envoy,
    _relay: Option<Relay>,
    /// Where its application's sockets are.
    pub net: Net,
}

impl<'a> Mesh<'a> {
    /// Starts the control plane on these files (name and text).
    pub fn start(workspace: &'a Workspace, files: &[(&str, &str)]) -> Result<Self> {
        for (name, text) in files {
            workspace.write(name, text)?;
        }
        Self::serve(workspace)
    }

    /// Starts the control plane on what the workspace holds.
    pub fn serve(workspace: &'a Workspace) -> Result<Self> {
        Self::serve_with(workspace, HUB, Options::default())
    }

    /// Starts the control plane on what the workspace holds, at an address of the hub and with further options. On loopback
    /// it is reached through a relay in each pod.
    pub fn serve_with(
        workspace: &'a Workspace,
        address: Ipv4Addr,
        options: Options,
    ) -> Result<Self> {
        let fabric = Fabric::new()?;
        let (config, logs) = (workspace.config(), workspace.logs());
        let hub = fabric.hub();
        let control =
            ControlPlane::start_with(&hub, address, Ports::ISTIOD, &config, &logs, options)?;
        Ok(Self {
            control,
            fabric,
            workspace,
        })
    }

    /// Starts the proxy of a pod, in a namespace of its own, and waits until it is configured.
    pub fn proxy(&self, proxy: &Proxy, protocol: Protocol) -> Result<Pod> {
        let mut pod = self.launch(proxy, protocol)?;
        pod.envoy.wait_configured()?;
        Ok(pod)
    }

    /// Starts the proxy of a pod without waiting for it.
    pub fn launch(&self, proxy: &Proxy, protocol: Protocol) -> Result<Pod> {
        let interception = match proxy.role {
            Role::Sidecar => Interception::Redirect,
            Role::Router => Interception::None,
        };
        let net = self
            .fabric
            .pod(&proxy.name, &[proxy.address], interception)?;
        let mut xds = self.control.xds();
        let mut relay = None;
        if xds.ip().is_loopback() {
            let near = Relay::start(&net, (Ipv4Addr::LOCALHOST, 0), &self.fabric.hub(), xds)?;
            xds = near.address();
            relay = Some(near);
        }
        let envoy = Envoy::start(proxy, &net, xds, protocol, &self.workspace.logs())?;
        Ok(Pod {
            envoy,
            _relay: relay,
            net,
        })
    }

    /// A pod without a proxy, from which the world outside calls.
    pub fn outsider(&self, address: Ipv4Addr) -> Result<Net> {
        self.fabric.pod("outside", &[address], Interception::None)
    }
}
