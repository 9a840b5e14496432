//! A stock Envoy that takes everything from the control plane.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::admin::Admin;
use crate::intercept::PROXY_GID;
use crate::net::Net;
use crate::process::{Process, Start};
use crate::proxy::{Proxy, Role};
use crate::tools;
use crate::wait::SOON;

/// How the proxy speaks xDS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// State of the world.
    Sotw,
    /// Incremental.
    Delta,
}

/// A running Envoy. Dropping it kills it.
#[derive(Debug)]
pub struct Envoy {
    process: Process,
    admin: Admin,
}

impl Envoy {
    /// Starts Envoy as `proxy` in `net`, configured by the control plane at `xds`.
    pub fn start(
        proxy: &Proxy,
        net: &Net,
        xds: SocketAddr,
        protocol: Protocol,
        logs: &Path,
    ) -> Result<Self> {
        let admin = ([127, 0, 0, 1], net.free_port()?).into();
        Self::start_with(
            &proxy.name,
            &bootstrap(proxy, admin, xds, protocol),
            net,
            proxy.role,
            admin,
            logs,
        )
    }

    /// Starts Envoy with a bootstrap of the caller's, which must have its admin interface at `admin`.
    pub fn start_with(
        name: &str,
        bootstrap: &Value,
        net: &Net,
        role: Role,
        admin: SocketAddr,
        logs: &Path,
    ) -> Result<Self> {
        let file = logs.join(format!("{name}.bootstrap.json"));
        fs::write(&file, bootstrap.to_string())
            .with_context(|| format!("write {}", file.display()))?;
        let options = [
            "--log-level",
            "warning",
            // Fields that istiod sends and Envoy calls deprecated: a line for each would bury what matters.
            "--component-log-level",
            "misc:error",
            "--concurrency",
            "1",
            "--disable-hot-restart",
            "-c",
        ];
        let mut args: Vec<String> = options.map(str::to_owned).into();
        args.push(file.display().to_string());
        let process = Process::start(Start {
            name,
            program: &tools::envoy()?,
            args,
            environment: BTreeMap::new(),
            gid: (role == Role::Sidecar).then_some(PROXY_GID),
            net,
            logs,
        })?;
        Ok(Self {
            process,
            admin: Admin::new(net, admin),
        })
    }

    /// Waits until it serves with what the control plane sent.
    pub fn wait_configured(&mut self) -> Result<()> {
        let admin = &self.admin;
        self.process
            .wait_for("Envoy configured by the control plane", SOON, || {
                admin.configured()
            })
    }

    /// Its admin interface.
    pub fn admin(&self) -> &Admin {
        &self.admin
    }

    /// Its process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }
}

/// Everything dynamic, over one aggregated stream.
fn bootstrap(proxy: &Proxy, admin: SocketAddr, xds: SocketAddr, protocol: Protocol) -> Value {
    let ads = json!({"ads": {}, "initial_fetch_timeout": "0s", "resource_api_version": "V3"});
    json!({
        "node": proxy.node(),
        "admin": {"address": socket(admin)},
        "dynamic_resources": {
            "cds_config": ads,
            "lds_config": ads,
            "ads_config": {
                "api_type": match protocol {
                    Protocol::Sotw => "GRPC",
                    Protocol::Delta => "DELTA_GRPC",
                },
                "transport_api_version": "V3",
                "set_node_on_first_message_only": true,
                "grpc_services": [{"envoy_grpc": {"cluster_name": "xds-grpc"}}],
            },
        },
        "static_resources": {"clusters": [{
            "name": "xds-grpc",
            "type": "STATIC",
            "connect_timeout": "1s",
            "typed_extension_protocol_options": {
                "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                    "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                    "explicit_http_config": {"http2_protocol_options": {}},
                },
            },
            "load_assignment": {
                "cluster_name": "xds-grpc",
                "endpoints": [{"lb_endpoints": [{"endpoint": {"address": socket(xds)}}]}],
            },
        }]},
    })
}

/// Envoy's spelling of an address.
pub fn socket(address: SocketAddr) -> Value {
    json!({"socket_address": {"address": address.ip().to_string(), "port_value": address.port()}})
}
