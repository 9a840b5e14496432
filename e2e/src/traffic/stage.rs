//! A scenario on its feet: control plane, proxies, upstreams and the names of the mesh.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use tokio_rustls::rustls::pki_types::ServerName;

use super::ask::Ask;
use super::certificates::Certificates;
use super::scenario::{ROWS, Scenario, Secret, Server, Step};
use super::upstream::{STEP, Upstreams};
use crate::config::{self, Workspace};
use crate::control::Options;
use crate::fabric::{HUB, Interception};
use crate::mesh::{Mesh, Pod};
use crate::net::Net;
use crate::proxy::Proxy;
use crate::wait;

/// The file of the mesh with the Secrets that were made for it.
pub(super) const SECRETS: &str = "secrets.yaml";
/// Where clients without a proxy call from. Nothing listens there, so it is also where a client connects that asks for a host
/// without an address: interception does not care, and whatever gets that far is refused at once.
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(10, 77, 9, 200);
/// Fields are dropped in order: what stands on the mesh goes first.
pub(super) struct Stage<'a> {
    pub(super) upstreams: Upstreams,
    pods: BTreeMap<String, Pod>,
    outside: Net,
    addresses: BTreeMap<String, Ipv4Addr>,
    certificates: Arc<Certificates>,
    secrets: BTreeMap<String, Secret>,
    pub(super) mesh: Mesh<'a>,
}

impl<'a> Stage<'a> {
    /// Starts everything and waits until every proxy is configured.
    pub(super) fn start(
        scenario: &Scenario,
        folder: &Path,
        workspace: &'a Workspace,
    ) -> Result<Self> {
        let run = workspace.place("run");
        fs::create_dir_all(&run)?;
        let certificates = Arc::new(Certificates::make(&scenario.certificates, &run)?);
        let run_text = run.display().to_string();
        let fill = |text: &str| text.replace("$RUN", &run_text);
        let base = folder.parent().context("the folder of scenarios")?;
        workspace.copy(base, fill)?;
        workspace.copy(folder, fill)?;
        workspace.remove(ROWS)?;
        workspace.write(SECRETS, &secrets(&scenario.secrets, &certificates)?)?;
        let mut flags = Vec::new();
        let mut hub = HUB;
        if !scenario.secrets.is_empty() {
            // Nothing here proves who a proxy is, so secrets are given only to those of the control plane's own host.
            flags.push("--insecure-trust-local-proxies".to_owned());
            hub = Ipv4Addr::LOCALHOST;
        }
        if let Some(settings) = &scenario.mesh_config {
            let file = workspace.place("mesh-config.yaml");
            fs::write(&file, settings.to_string())?;
            flags.extend(["--mesh-config".to_owned(), file.display().to_string()]);
        }
        let options = Options {
            flags,
            environment: scenario.environment.clone(),
        };
        let objects = config::objects(&workspace.config())?;
        let mesh = Mesh::serve_with(workspace, hub, options)?;

        let mut pods = BTreeMap::new();
        let mut servers = scenario.upstreams.clone();
        let mut addresses = names(&objects);
        for object in objects.iter().filter(|object| object["kind"] == "Pod") {
            let name = object["metadata"]["name"].as_str().context("a name")?;
            let address = object["status"]["podIP"].as_str().context("a podIP")?;
            addresses.insert(name.to_owned(), address.parse()?);
            let proxied = scenario.proxies.iter().any(|proxy| proxy == name);
            if proxied {
                let mut proxy = Proxy::of_pod(object)?.context("a Pod with a proxy")?;
                proxy.local_files = true;
                let pod = mesh.launch(&proxy, scenario.xds.into())?;
                pods.insert(name.to_owned(), pod);
            }
            let server = server_of(object, address.parse()?, proxied.then_some(name));
            if let Some(server) = server {
                servers.entry(name.to_owned()).or_insert(server);
            }
        }
        for proxy in &scenario.proxies {
            ensure!(pods.contains_key(proxy), "there is no Pod {proxy}");
        }
        let mut stage = Self {
            upstreams: Upstreams::new(Arc::clone(&certificates))?,
            pods,
            outside: mesh.outsider(OUTSIDE)?,
            addresses,
            certificates,
            secrets: scenario.secrets.clone(),
            mesh,
        };
        stage.serve(&servers, &run)?;
        stage.wait_configured()?;
        Ok(stage)
    }

    fn serve(&self, servers: &BTreeMap<String, Server>, run: &Path) -> Result<()> {
        // One namespace for all that have no proxy: they differ in their addresses.
        let mut apart: Vec<Ipv4Addr> = servers
            .values()
            .filter(|server| server.beside.is_none())
            .filter_map(|server| server.address)
            .collect();
        apart.sort_unstable();
        apart.dedup();
        let place = self
            .mesh
            .fabric
            .pod("upstreams", &apart, Interception::None)?;
        for (name, server) in servers {
            let net = match &server.beside {
                Some(pod) => &self.pod(pod)?.net,
                None => &place,
            };
            if let Some(socket) = &server.socket {
                self.upstreams.serve_unix(name, &run.join(socket))?;
                continue;
            }
            let address = server
                .address
                .with_context(|| format!("upstream {name} has no address"))?;
            for port in &server.ports {
                let listener = net
                    .bind((address, *port).into())
                    .with_context(|| format!("upstream {name}: bind {address}:{port}"))?;
                let tls = match &server.certificate {
                    Some(name) => Some(self.certificates.server(name, server.asks_for.as_deref())?),
                    None => None,
                };
                self.upstreams.serve(name, listener, tls)?;
            }
        }
        Ok(())
    }

    fn wait_configured(&mut self) -> Result<()> {
        for (name, pod) in &mut self.pods {
            pod.envoy
                .wait_configured()
                .with_context(|| format!("proxy {name}"))?;
            let admin = pod.envoy.admin();
            wait::until("nothing warming", Duration::from_secs(10), || {
                let warming = admin.sum("total_listeners_warming$|warming_clusters$")?;
                ensure!(warming == 0, "{name}: {warming} are warming");
                Ok(())
            })?;
        }
        Ok(())
    }

    fn pod(&self, name: &str) -> Result<&Pod> {
        self.pods
            .get(name)
            .with_context(|| format!("the scenario starts no proxy {name}"))
    }

    /// The sum of counters of a proxy.
    pub(super) fn stat(&self, proxy: &str, filter: &str) -> Result<u64> {
        self.pod(proxy)?.envoy.admin().sum(filter)
    }

    /// The updates that proxies refused, by proxy; empty is what we want.
    pub(super) fn rejected(&self) -> Result<Vec<String>> {
        let mut rejected = Vec::new();
        for (name, pod) in &self.pods {
            let stats = pod.envoy.admin().stats("update_rejected$")?;
            let refused = stats.iter().filter(|(_, count)| **count > 0);
            rejected.extend(refused.map(|(stat, count)| format!("{name}: {stat} {count}")));
        }
        Ok(rejected)
    }

    /// The file with the Secrets when some are replaced.
    pub(super) fn replaced(&self, secrets_now: &BTreeMap<String, Secret>) -> Result<String> {
        let mut all = self.secrets.clone();
        all.extend(secrets_now.clone());
        secrets(&all, &self.certificates)
    }

    /// The request of a step, marked with an id that upstreams keep their books by.
    pub(super) fn ask(&self, step: &Step, from: &str, id: &str) -> Result<Ask> {
        let from = step.from.as_deref().unwrap_or(from);
        let net = match from {
            "outside" => self.outside.clone(),
            pod => self.pod(pod)?.net.clone(),
        };
        let url = Url::parse(&step.send)?;
        let address = match &step.at {
            Some(at) => self.place(at)?,
            None => self.place(&format!("{}:{}", url.host, url.port))?,
        };
        let mut headers = step.headers.clone();
        headers
            .entry("host".to_owned())
            .or_insert_with(|| url.authority.to_owned());
        headers.insert(STEP.to_owned(), id.to_owned());
        let tls = match (url.secure, &step.tls) {
            (false, _) => None,
            (true, None) => bail!("https needs `tls`"),
            (true, Some(tls)) => {
                let name = tls.sni.clone().unwrap_or_else(|| url.host.to_owned());
                Some((self.certificates.client(tls)?, ServerName::try_from(name)?))
            }
        };
        Ok(Ask {
            net,
            address,
            first: format!("{} {} HTTP/1.1", url.method, url.path),
            headers,
            tls,
            certificates: Arc::clone(&self.certificates),
        })
    }

    fn place(&self, text: &str) -> Result<SocketAddr> {
        let (name, port) = text
            .rsplit_once(':')
            .with_context(|| format!("{text} has no port"))?;
        let address = match (name.parse::<IpAddr>(), self.addresses.get(name)) {
            (Ok(address), _) => address,
            (_, Some(address)) => (*address).into(),
            _ => OUTSIDE.into(),
        };
        Ok((address, port.parse()?).into())
    }
}

/// The parts of `GET http://catalog:80/books?x`.
struct Url<'a> {
    method: &'a str,
    secure: bool,
    authority: &'a str,
    host: &'a str,
    port: u16,
    path: &'a str,
}

impl<'a> Url<'a> {
    fn parse(text: &'a str) -> Result<Self> {
        let wrong = || format!("{text:?} is not like `GET http://host/path`");
        let (method, url) = text.split_once(' ').with_context(wrong)?;
        let (scheme, rest) = url.split_once("://").with_context(wrong)?;
        let secure = scheme == "https";
        let (authority, path) = rest
            .find('/')
            .map_or((rest, "/"), |slash| rest.split_at(slash));
        let (host, port) = match authority.split_once(':') {
            Some((host, port)) => (host, port.parse().with_context(wrong)?),
            None => (authority, if secure { 443 } else { 80 }),
        };
        Ok(Self {
            method,
            secure,
            authority,
            host,
            port,
            path,
        })
    }
}

/// What DNS would answer in this mesh: Services by each of their names, ServiceEntries by their addresses.
fn names(objects: &[Value]) -> BTreeMap<String, Ipv4Addr> {
    let mut names = BTreeMap::new();
    for object in objects {
        let (meta, spec) = (&object["metadata"], &object["spec"]);
        let (address, hosts) = match object["kind"].as_str() {
            Some("Service") => {
                let name = meta["name"].as_str().unwrap_or_default();
                let namespace = meta["namespace"].as_str().unwrap_or_default();
                let hosts = vec![
                    name.to_owned(),
                    format!("{name}.{namespace}"),
                    format!("{name}.{namespace}.svc.cluster.local"),
                ];
                (&spec["clusterIP"], hosts)
            }
            Some("ServiceEntry") => {
                let hosts = spec["hosts"].as_array().into_iter().flatten();
                let hosts = hosts.filter_map(Value::as_str).map(str::to_owned);
                (&spec["addresses"][0], hosts.collect())
            }
            _ => continue,
        };
        if let Some(Ok(address)) = address.as_str().map(str::parse) {
            names.extend(hosts.into_iter().map(|host| (host, address)));
        }
    }
    names
}

/// The application of a Pod: it listens on the ports of its containers.
fn server_of(pod: &Value, address: Ipv4Addr, beside: Option<&str>) -> Option<Server> {
    let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
    let ports: Vec<u16> = containers
        .flat_map(|container| container["ports"].as_array().into_iter().flatten())
        .filter_map(|port| u16::try_from(port["containerPort"].as_u64()?).ok())
        .collect();
    (!ports.is_empty()).then(|| Server {
        address: Some(address),
        ports,
        socket: None,
        beside: beside.map(str::to_owned),
        certificate: None,
        asks_for: None,
    })
}

/// Secrets as documents of one file.
fn secrets(wanted: &BTreeMap<String, Secret>, certificates: &Certificates) -> Result<String> {
    let mut documents = Vec::new();
    for (place, secret) in wanted {
        let (namespace, name) = place
            .split_once('/')
            .with_context(|| format!("secret {place} is not namespace/name"))?;
        let Secret {
            certificate,
            authority,
            generic,
        } = secret;
        let [cert, key, ca] = if *generic {
            ["cert", "key", "cacert"]
        } else {
            ["tls.crt", "tls.key", "ca.crt"]
        };
        let mut data = json!({});
        if let Some(certificate) = certificate {
            let (certificate, private) = certificates.pem(certificate)?;
            data[cert] = certificate.into();
            data[key] = private.into();
        }
        if let Some(authority) = authority {
            data[ca] = certificates.pem(authority)?.0.into();
        }
        let tls = !*generic && certificate.is_some();
        let document = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "namespace": namespace},
            "type": if tls { "kubernetes.io/tls" } else { "Opaque" },
            "stringData": data,
        });
        documents.push(format!("---\n{document}\n"));
    }
    Ok(documents.concat())
}
