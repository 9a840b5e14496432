//! Setting the stage: the control plane, the proxies, the bookshop behind them, and the requests.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pilotfish_e2e::backend::{Backend, Extra, Identity};
use pilotfish_e2e::client::Client;
use pilotfish_e2e::config::{self, Workspace};
use pilotfish_e2e::control::{ControlPlane, Ports};
use pilotfish_e2e::envoy::{Envoy, Protocol};
use pilotfish_e2e::fabric::{Fabric, HUB, Interception};
use pilotfish_e2e::load::{Load, Pick};
use pilotfish_e2e::net::Net;
use pilotfish_e2e::proxy::{Proxy, Role};
use pilotfish_e2e::relay::Relay;
use pilotfish_e2e::{tools, wait};
use serde_json::{Value, json};

use crate::screen::say;

/// Where the bookshop's pods listen, as its YAML says.
const APP_PORT: u16 = 9080;
/// Where its gateway listens, as its YAML says.
const GATEWAY_PORT: u16 = 8080;
const CALLERS: usize = 2;
const PAUSE: Duration = Duration::from_millis(10);
/// From where requests come.
const VISITOR: Ipv4Addr = Ipv4Addr::new(10, 77, 9, 1);

/// All that runs. Fields are dropped in order: requests first, then what answers them, then network and files.
pub(crate) struct Stage {
    pub(crate) load: Load,
    /// The pods that count, and where they are.
    pub(crate) catalog: BTreeMap<String, SocketAddr>,
    /// The way of a request, in words.
    pub(crate) way: &'static str,
    /// Addresses for the person who watches.
    pub(crate) shop: String,
    pub(crate) debug: SocketAddr,
    _relays: Vec<Relay>,
    envoys: Vec<Envoy>,
    _backends: Vec<Backend>,
    control: ControlPlane,
    workspace: Workspace,
}

/// The bookshop as its YAML describes it.
struct Bookshop {
    pods: Vec<(Proxy, String)>,
    services: BTreeMap<String, Ipv4Addr>,
}

impl Stage {
    pub(crate) fn set() -> Result<Self> {
        match tools::namespaces_work() {
            Ok(()) => Self::in_namespaces(),
            Err(reason) => {
                say(&format!(
                    "No sidecars here: {reason:#}. The ingress Envoy calls the bookshop's pods itself, on"
                ));
                say(
                    "loopback addresses; the addresses in the copy of the YAML are changed accordingly.",
                );
                Self::on_loopback()
            }
        }
    }

    /// A namespace for each pod, with iptables sending its traffic through its sidecar.
    fn in_namespaces() -> Result<Self> {
        let workspace = Workspace::new()?;
        workspace.copy(&tools::workspace().join("examples/bookshop"), str::to_owned)?;
        let bookshop = Bookshop::read(&workspace)?;
        let fabric = Fabric::new()?;
        let hub = fabric.hub();
        say("Starting the control plane on a copy of examples/bookshop");
        let control = ControlPlane::start(
            &hub,
            HUB,
            Ports::ISTIOD,
            &workspace.config(),
            &workspace.logs(),
        )?;
        say(&format!(
            "Starting {} Envoys, each in a network namespace of its own",
            bookshop.pods.len()
        ));
        let (mut envoys, mut backends, mut ingress) = (Vec::new(), Vec::new(), None);
        for (proxy, app) in &bookshop.pods {
            let interception = match proxy.role {
                Role::Sidecar => Interception::Redirect,
                Role::Router => Interception::None,
            };
            let net = fabric.pod(&proxy.name, &[proxy.address], interception)?;
            envoys.push(Envoy::start(
                proxy,
                &net,
                control.xds(),
                Protocol::Delta,
                &workspace.logs(),
            )?);
            match proxy.role {
                Role::Router => ingress = Some((net, proxy.address)),
                Role::Sidecar => backends.push(backend(&net, proxy, app, &bookshop)?),
            }
        }
        let (ingress_net, ingress) = ingress.context("the bookshop has no gateway")?;
        let visitor = fabric.pod("visitor", &[VISITOR], Interception::None)?;
        let gateway = SocketAddr::from((ingress, GATEWAY_PORT));
        // What a person wants to reach from outside: the debug pages, and the shop.
        let debug = relay(Ports::ISTIOD.monitoring, &hub, control.monitoring())?;
        let shop = relay(GATEWAY_PORT, &ingress_net, gateway)?;
        let load = requests(
            &mut envoys,
            &visitor,
            gateway,
            "bookshop.example",
            |answer| &answer["extra"]["catalog"],
        )?;
        Ok(Self {
            load,
            catalog: bookshop.catalog(),
            way: "client → ingress → sidecar → storefront → sidecar → sidecar → catalog",
            shop: format!(
                "curl -H 'Host: bookshop.example' http://{}/",
                shop.address()
            ),
            debug: debug.address(),
            _relays: vec![debug, shop],
            envoys,
            _backends: backends,
            control,
            workspace,
        })
    }

    /// Without privileges: one Envoy, the ingress, and the pods on addresses of loopback.
    fn on_loopback() -> Result<Self> {
        let workspace = Workspace::new()?;
        let port = Net::Host.free_port()?;
        workspace.copy(&tools::workspace().join("examples/bookshop"), |text| {
            text.replace("10.77.", "127.77.")
                .replace(&format!("{GATEWAY_PORT}"), &format!("{port}"))
        })?;
        let bookshop = Bookshop::read(&workspace)?;
        let ports = Ports::free(&Net::Host)?;
        say("Starting the control plane on a copy of examples/bookshop");
        let control = ControlPlane::start(
            &Net::Host,
            Ipv4Addr::LOCALHOST,
            ports,
            &workspace.config(),
            &workspace.logs(),
        )?;
        say("Starting the ingress Envoy");
        let (mut envoys, mut backends) = (Vec::new(), Vec::new());
        for (proxy, app) in &bookshop.pods {
            match proxy.role {
                Role::Sidecar => backends.push(Backend::start(
                    &Net::Host,
                    (proxy.address, APP_PORT),
                    identity(proxy, app),
                )?),
                Role::Router => envoys.push(Envoy::start(
                    proxy,
                    &Net::Host,
                    control.xds(),
                    Protocol::Delta,
                    &workspace.logs(),
                )?),
            }
        }
        let gateway = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let load = requests(
            &mut envoys,
            &Net::Host,
            gateway,
            "catalog.bookshop.example",
            |answer| answer,
        )?;
        Ok(Self {
            load,
            catalog: bookshop.catalog(),
            way: "client → ingress → catalog",
            shop: format!("curl -H 'Host: catalog.bookshop.example' http://{gateway}/"),
            debug: control.monitoring(),
            _relays: Vec::new(),
            envoys,
            _backends: backends,
            control,
            workspace,
        })
    }

    /// An error, with the end of the log, if something that should run does not.
    pub(crate) fn check(&mut self) -> Result<()> {
        self.control.process().check()?;
        self.envoys
            .iter_mut()
            .try_for_each(|envoy| envoy.process().check())
    }

    pub(crate) fn workspace(&self) -> &Workspace {
        &self.workspace
    }
}

impl Bookshop {
    fn read(workspace: &Workspace) -> Result<Self> {
        let mut this = Self {
            pods: Vec::new(),
            services: BTreeMap::new(),
        };
        for object in config::objects(&workspace.config())? {
            if object["kind"] == "Pod" {
                let app = object["metadata"]["labels"]["app"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned();
                this.pods
                    .extend(Proxy::of_pod(&object)?.map(|proxy| (proxy, app)));
            }
            if object["kind"] == "Service" {
                let name = object["metadata"]["name"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned();
                let address = object["spec"]["clusterIP"]
                    .as_str()
                    .context("a Service without clusterIP")?;
                this.services.insert(name, address.parse()?);
            }
        }
        Ok(this)
    }

    fn catalog(&self) -> BTreeMap<String, SocketAddr> {
        let pods = self.pods.iter().filter(|(_, app)| app == "catalog");
        pods.map(|(proxy, _)| (proxy.name.clone(), (proxy.address, APP_PORT).into()))
            .collect()
    }
}

fn identity(proxy: &Proxy, app: &str) -> Identity {
    let version = proxy
        .labels
        .iter()
        .find(|(key, _)| key == "version")
        .map_or("", |(_, value)| value);
    Identity::new(app, version, &proxy.name)
}

/// The application in a pod. The storefront asks the other two for each page.
fn backend(net: &Net, proxy: &Proxy, app: &str, bookshop: &Bookshop) -> Result<Backend> {
    let extra: Option<Box<Extra>> = match app {
        "storefront" => {
            let catalog = Caller::new(net, bookshop, "catalog")?;
            let reviews = Caller::new(net, bookshop, "reviews")?;
            Some(Box::new(move |_| {
                Ok(json!({"catalog": catalog.ask()?, "reviews": reviews.ask()?}))
            }))
        }
        _ => None,
    };
    Backend::start_with(net, (proxy.address, APP_PORT), identity(proxy, app), extra)
}

/// Calls a service by its address, over connections that are kept.
struct Caller {
    net: Net,
    address: SocketAddr,
    host: String,
    idle: Mutex<Vec<Client>>,
}

impl Caller {
    fn new(net: &Net, bookshop: &Bookshop, service: &str) -> Result<Self> {
        let address = *bookshop
            .services
            .get(service)
            .with_context(|| format!("no Service {service}"))?;
        let host = format!("{service}.bookshop");
        Ok(Self {
            net: net.clone(),
            address: (address, 80).into(),
            host,
            idle: Mutex::default(),
        })
    }

    fn ask(&self) -> Result<Value> {
        let kept = self.idle.lock().expect("nobody panics with it").pop();
        let mut client = kept.unwrap_or_else(|| Client::new(&self.net, self.address, &self.host));
        let response = client.get("/")?;
        ensure!(
            response.status == 200,
            "{}: {} {}",
            self.host,
            response.status,
            response.text()
        );
        self.idle
            .lock()
            .expect("nobody panics with it")
            .push(client);
        Ok(response.json())
    }
}

/// A way in from this machine's loopback, on the usual port if that is free.
fn relay(port: u16, to: &Net, target: SocketAddr) -> Result<Relay> {
    let start = |port: u16| Relay::start(&Net::Host, (Ipv4Addr::LOCALHOST, port), to, target);
    start(port).or_else(|_| start(0))
}

/// Waits until the Envoys are configured and the shop answers, then asks it all the time.
fn requests(
    envoys: &mut [Envoy],
    from: &Net,
    gateway: SocketAddr,
    host: &str,
    pick: Pick,
) -> Result<Load> {
    for envoy in envoys.iter_mut() {
        envoy.wait_configured()?;
    }
    wait::until("the bookshop answers", Duration::from_secs(10), || {
        let response = Client::new(from, gateway, host).get("/")?;
        ensure!(
            response.status == 200,
            "{} {}",
            response.status,
            response.text()
        );
        Ok(())
    })
    .with_context(|| {
        envoys
            .iter_mut()
            .map(|envoy| envoy.process().tail())
            .collect::<Vec<_>>()
            .join("\n")
    })?;
    let clients = (0..CALLERS)
        .map(|_| Client::new(from, gateway, host))
        .collect();
    Ok(Load::start(clients, "/", PAUSE, pick))
}
