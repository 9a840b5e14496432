//! The network of one test: a hub with a bridge, and a namespace for each pod.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Result;

use crate::intercept;
use crate::net::Net;
use crate::netns::{self, Namespace};

/// The hub's address. The control plane runs in the hub, and pods send what they do not know there.
pub const HUB: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// All pods of a fabric are on one link.
const PREFIX_LENGTH: u8 = 16;

/// Hub and pods. Each fabric is closed: every test can use the same addresses.
#[derive(Debug)]
pub struct Fabric {
    hub: Arc<Namespace>,
    pods: AtomicU32,
}

/// Whether a pod's traffic passes its sidecar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interception {
    /// iptables sends everything through the sidecar's ports, as in an injected pod.
    Redirect,
    /// The pod has no sidecar, or is a gateway.
    None,
}

impl Fabric {
    /// A hub without pods.
    pub fn new() -> Result<Self> {
        let hub = Namespace::new("hub")?;
        hub.ip(&["link", "add", "bridge", "type", "bridge"])?;
        // Without an address of its own a bridge takes the lowest of its ports, and changes it when a pod joins: what the
        // others send to the old one is lost until they ask again.
        hub.ip(&["link", "set", "bridge", "address", "02:00:00:00:00:01"])?;
        hub.ip(&[
            "addr",
            "add",
            &format!("{HUB}/{PREFIX_LENGTH}"),
            "dev",
            "bridge",
        ])?;
        hub.ip(&["link", "set", "bridge", "up"])?;
        Ok(Self {
            hub: Arc::new(hub),
            pods: AtomicU32::new(0),
        })
    }

    /// Where the control plane runs.
    pub fn hub(&self) -> Net {
        Net::from(&self.hub)
    }

    /// A pod on the bridge, with one or more addresses.
    pub fn pod(
        &self,
        label: &str,
        addresses: &[Ipv4Addr],
        interception: Interception,
    ) -> Result<Net> {
        let pod = Namespace::new(label)?;
        let port = format!("pod{}", self.pods.fetch_add(1, Ordering::Relaxed));
        netns::ip(&[
            "link",
            "add",
            "eth0",
            "netns",
            pod.name(),
            "type",
            "veth",
            "peer",
            "name",
            &port,
            "netns",
            self.hub.name(),
        ])?;
        self.hub
            .ip(&["link", "set", &port, "master", "bridge", "up"])?;
        for address in addresses {
            pod.ip(&[
                "addr",
                "add",
                &format!("{address}/{PREFIX_LENGTH}"),
                "dev",
                "eth0",
            ])?;
        }
        pod.ip(&["link", "set", "eth0", "up"])?;
        // Service addresses exist nowhere; a packet needs a route before iptables can send it elsewhere.
        pod.ip(&["route", "add", "default", "via", &HUB.to_string()])?;
        let net = Net::Inside(Arc::new(pod));
        if interception == Interception::Redirect {
            intercept::redirect(&net)?;
        }
        Ok(net)
    }
}
