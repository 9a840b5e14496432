//! A real API server for tests: etcd and kube-apiserver on loopback, with everything they need made on the spot.
//!
//! There are no controllers, no scheduler and no nodes: an object is what a test applied, with the status that it gave.
//! RBAC, admission webhooks, CRDs, reviews, leases and server-side apply are the real ones.

pub mod apply;
pub mod client;
pub mod faults;
mod identity;

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::{Value, json};

use crate::client::Client;
use crate::config::Workspace;
use crate::net::Net;
use crate::process::{Process, Start};
use crate::tools;

use client::KubeClient;
use faults::Faults;
use identity::{ADMIN_TOKEN, Identity};

/// How long the API server may take to be ready, on a machine that is busy with a build.
const READY: Duration = Duration::from_mins(2);
/// Where the service accounts of restricted users live.
const USERS: &str = "pilotfish-users";
const ISSUER: &str = "https://kubernetes.default.svc";
/// Service addresses are taken from here, as in most clusters.
const SERVICE_ADDRESSES: &str = "10.96.0.0/12,fd00:10:96::/112";

/// Somebody the API server knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// For the name of the kubeconfig.
    pub name: String,
    /// What it shows.
    pub token: String,
}

impl User {
    /// The one who may do everything.
    pub fn admin() -> Self {
        Self {
            name: "admin".to_owned(),
            token: ADMIN_TOKEN.to_owned(),
        }
    }
}

/// What a cluster held at some time: what etcd has under each key, both in base64.
#[derive(Debug)]
pub struct Contents(BTreeMap<String, Stored>);

#[derive(Debug)]
struct Stored {
    revision: String,
    value: String,
}

/// A running etcd and kube-apiserver. Dropping it kills both; the data goes with the workspace.
#[derive(Debug)]
pub struct KubeServer {
    name: String,
    net: Net,
    folder: PathBuf,
    logs: PathBuf,
    ports: Ports,
    identity: Identity,
    flags: Vec<String>,
    etcd: Option<Process>,
    api: Option<Process>,
}

#[derive(Clone, Copy, Debug)]
struct Ports {
    etcd: u16,
    peers: u16,
    api: u16,
}

impl KubeServer {
    /// Starts one on free ports of the loopback of `net` and waits until it is ready. The name tells clusters of one
    /// workspace apart.
    pub fn start(net: &Net, name: &str, workspace: &Workspace) -> Result<Self> {
        Self::start_with(net, name, workspace, &[])
    }

    /// The same with more flags for kube-apiserver.
    pub fn start_with(
        net: &Net,
        name: &str,
        workspace: &Workspace,
        flags: &[&str],
    ) -> Result<Self> {
        let folder = workspace.place(name);
        let mut server = Self {
            name: name.to_owned(),
            net: net.clone(),
            logs: workspace.logs(),
            ports: Ports {
                etcd: net.free_port()?,
                peers: net.free_port()?,
                api: net.free_port()?,
            },
            identity: Identity::make(&folder)?,
            folder,
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            etcd: None,
            api: None,
        };
        // Together: the API server has enough to do before it needs etcd.
        server.launch_etcd()?;
        server.launch_api()?;
        server.wait_ready()?;
        Ok(server)
    }

    /// The time of the API server on processors until now.
    pub fn processor_time(&self) -> Result<Duration> {
        let api = self.api.as_ref().context("the API server is not running")?;
        api.processor_time()
    }

    /// Has the API server collect its garbage, as whoever asks for its heap profile may wish.
    pub fn collect_garbage(&self) -> Result<()> {
        self.admin()?.get("/debug/pprof/heap?gc=1")?.ok()?;
        Ok(())
    }

    /// Where the API server listens.
    pub fn address(&self) -> SocketAddr {
        loopback(self.ports.api)
    }

    /// A client of the one who may do everything.
    pub fn admin(&self) -> Result<KubeClient> {
        self.client(&User::admin())
    }

    /// A client of some user.
    pub fn client(&self, user: &User) -> Result<KubeClient> {
        self.client_at(user, self.address())
    }

    /// A client of some user that comes by way of `address`.
    pub fn client_at(&self, user: &User, address: SocketAddr) -> Result<KubeClient> {
        let tls = self.identity.client()?;
        Ok(KubeClient::new(&self.net, address, tls, &user.token))
    }

    /// Writes a kubeconfig for a user; its path.
    pub fn kubeconfig(&self, user: &User) -> Result<PathBuf> {
        self.write_kubeconfig(user, self.address(), &user.name)
    }

    /// The same by way of a proxy.
    pub fn kubeconfig_through(&self, user: &User, proxy: &Faults) -> Result<PathBuf> {
        let name = format!("{}-faults", user.name);
        self.write_kubeconfig(user, proxy.address(), &name)
    }

    fn write_kubeconfig(&self, user: &User, address: SocketAddr, name: &str) -> Result<PathBuf> {
        let authority = BASE64_STANDARD.encode(&self.identity.authority_pem);
        // JSON is YAML. It names no files, so that it can be handed on in a Secret.
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": self.name,
            "clusters": [{"name": self.name, "cluster": {
                "server": format!("https://{address}"),
                "certificate-authority-data": authority,
            }}],
            "users": [{"name": user.name, "user": {"token": user.token}}],
            "contexts": [{"name": self.name, "context": {"cluster": self.name, "user": user.name}}],
        });
        let path = self.folder.join(format!("{name}.kubeconfig"));
        fs::write(&path, serde_json::to_string_pretty(&config)?)
            .with_context(|| format!("write {}", path.display()))?;
        Ok(path)
    }

    /// A user (a service account) with these rules in all namespaces and nothing else. `rules` is YAML or JSON as in a
    /// ClusterRole. The same name again changes the rules and gives a new token.
    pub fn user(&self, name: &str, rules: &str) -> Result<User> {
        let rules: Value = serde_saphyr::from_str(rules).context("rules")?;
        let admin = self.admin()?;
        let group = "rbac.authorization.k8s.io";
        let api = format!("{group}/v1");
        admin.apply_objects(vec![
            json!({"apiVersion": "v1", "kind": "ServiceAccount",
                "metadata": {"name": name, "namespace": USERS}}),
            json!({"apiVersion": api, "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules}),
            json!({"apiVersion": api, "kind": "ClusterRoleBinding", "metadata": {"name": name},
                "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
                "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": USERS}]}),
        ])?;
        Ok(User {
            name: name.to_owned(),
            token: self.token(USERS, name, &[])?,
        })
    }

    /// Takes a user's account away; its tokens are worth nothing soon after.
    pub fn dismiss(&self, user: &User) -> Result<()> {
        self.admin()?
            .remove("v1", "ServiceAccount", USERS, &user.name)
    }

    /// A token of a service account that exists, for these audiences or, without any, for the API server.
    pub fn token(&self, namespace: &str, account: &str, audiences: &[&str]) -> Result<String> {
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"audiences": audiences, "expirationSeconds": 86_400}});
        let answer = self.admin()?.create(&path, &request)?.ok()?;
        let token = answer["status"]["token"].as_str();
        Ok(token.context("no token in the answer")?.to_owned())
    }

    /// A proxy that passes everything on, until told otherwise.
    pub fn faults(&self) -> Result<Faults> {
        let identity = &self.identity;
        Faults::start(
            &self.net,
            self.address(),
            identity.server()?,
            identity.client()?,
        )
    }

    /// kill -9 of the API server.
    pub fn kill_api(&mut self) {
        self.api = None;
    }

    /// Starts the API server again, at the same port, and waits until it is ready.
    pub fn start_api(&mut self) -> Result<()> {
        self.launch_api()?;
        self.wait_ready()
    }

    /// kill -9 of etcd.
    pub fn kill_etcd(&mut self) {
        self.etcd = None;
    }

    /// Starts etcd again, at the same port and with the same data, and waits until the API server can use it.
    pub fn start_etcd(&mut self) -> Result<()> {
        self.launch_etcd()?;
        self.wait_ready()
    }

    /// Makes etcd forget everything but the present. An API server still answers from its own memory what happened
    /// since its start: only after `kill_api` and `start_api` an old watch is told that it is too old (410).
    pub fn compact(&self) -> Result<()> {
        let mut etcd = self.etcd_client();
        let now = etcd.post_json("/v3/kv/range", &json!({"key": "AA=="}))?;
        let revision = now.json()["header"]["revision"].clone();
        ensure!(
            revision.is_string(),
            "etcd says no revision: {}",
            now.text()
        );
        let request = json!({"revision": revision, "physical": true});
        let answer = etcd.post_json("/v3/kv/compaction", &request)?;
        if answer.status != 200 {
            bail!("etcd does not compact: {}", answer.text());
        }
        Ok(())
    }

    /// Keeps what the cluster holds now under a name. etcd is away for a moment.
    pub fn backup(&mut self, name: &str) -> Result<()> {
        self.kill_etcd();
        copy_folder(&self.data(), &self.folder.join(name))?;
        self.start_etcd()
    }

    /// Puts the whole cluster back to what it was at a backup, resource versions too, and starts it again after a while.
    pub fn restore(&mut self, name: &str, down: Duration) -> Result<()> {
        self.kill_api();
        self.kill_etcd();
        std::thread::sleep(down);
        let data = self.data();
        fs::remove_dir_all(&data).with_context(|| format!("remove {}", data.display()))?;
        copy_folder(&self.folder.join(name), &data)?;
        self.launch_etcd()?;
        self.start_api()
    }

    /// What the cluster holds now.
    pub fn contents(&self) -> Result<Contents> {
        self.read_all(false)
    }

    /// Takes out what is not in `before` and puts back what has changed, behind the API server's back but as it notices.
    /// That takes no time, unlike deleting object by object, and waits for no controller.
    pub fn put_back(&self, before: &Contents) -> Result<()> {
        let mut etcd = self.etcd_client();
        for (key, entry) in &self.read_all(true)?.0 {
            let answer = match before.0.get(key) {
                Some(kept) if kept.revision == entry.revision => continue,
                Some(kept) => {
                    let put = json!({"key": key, "value": kept.value});
                    etcd.post_json("/v3/kv/put", &put)?
                }
                None => etcd.post_json("/v3/kv/deleterange", &json!({"key": key}))?,
            };
            ensure!(answer.status == 200, "etcd: {}", answer.text());
        }
        Ok(())
    }

    fn read_all(&self, keys_only: bool) -> Result<Contents> {
        let all = json!({"key": "AA==", "range_end": "AA==", "keys_only": keys_only});
        let answer = self.etcd_client().post_json("/v3/kv/range", &all)?.json();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let entries = answer["kvs"].as_array().context("no keys in etcd")?;
        let entries = entries.iter().map(|entry| {
            let stored = Stored {
                revision: text(&entry["mod_revision"]),
                value: text(&entry["value"]),
            };
            (text(&entry["key"]), stored)
        });
        Ok(Contents(entries.collect()))
    }

    fn etcd_client(&self) -> Client {
        Client::new(&self.net, loopback(self.ports.etcd), "etcd")
    }

    fn data(&self) -> PathBuf {
        self.folder.join("etcd")
    }

    /// An error with the end of the log if one of the two has ended by itself.
    pub fn check(&mut self) -> Result<()> {
        let running = [&mut self.etcd, &mut self.api];
        running.into_iter().flatten().try_for_each(Process::check)
    }

    fn wait_ready(&mut self) -> Result<()> {
        let client = self.admin()?.with_timeout(Duration::from_secs(5));
        let etcd = self.etcd.as_mut();
        let Some(api) = self.api.as_mut() else {
            return Ok(());
        };
        let ready = api.wait_for("the API server is ready", READY, || {
            client.get("/readyz")?.ok()
        });
        match (ready, etcd) {
            (Err(error), Some(etcd)) => bail!("{error:#}\n{}", etcd.tail()),
            (ready, _) => ready.map(drop),
        }
    }

    fn launch_etcd(&mut self) -> Result<()> {
        let client = format!("http://{}", loopback(self.ports.etcd));
        let peers = format!("http://{}", loopback(self.ports.peers));
        let data = self.data().display().to_string();
        let flags = [
            ("--data-dir", data),
            ("--listen-client-urls", client.clone()),
            ("--advertise-client-urls", client),
            ("--listen-peer-urls", peers.clone()),
            ("--initial-advertise-peer-urls", peers.clone()),
            ("--initial-cluster", format!("default={peers}")),
            ("--log-level", "warn".to_owned()),
            // A process that is killed loses nothing by it; only a machine would.
            ("--unsafe-no-fsync", "true".to_owned()),
        ];
        // The old one goes before the new one takes its port.
        self.etcd = None;
        self.etcd = Some(self.launch("etcd", &tools::etcd()?, &flags, &[])?);
        Ok(())
    }

    fn launch_api(&mut self) -> Result<()> {
        let file = |name| self.identity.file(name).display().to_string();
        let text = str::to_owned;
        let flags = [
            (
                "--etcd-servers",
                format!("http://{}", loopback(self.ports.etcd)),
            ),
            ("--bind-address", self.address().ip().to_string()),
            ("--secure-port", self.ports.api.to_string()),
            ("--tls-cert-file", file("server.pem")),
            ("--tls-private-key-file", file("server-key.pem")),
            ("--token-auth-file", file("tokens.csv")),
            ("--service-account-key-file", file("accounts.pem")),
            (
                "--service-account-signing-key-file",
                file("accounts-key.pem"),
            ),
            ("--service-account-issuer", text(ISSUER)),
            ("--service-cluster-ip-range", text(SERVICE_ADDRESSES)),
            ("--authorization-mode", text("RBAC")),
            // It wants accounts that only a controller would make.
            ("--disable-admission-plugins", text("ServiceAccount")),
            // There are no other API servers to be found in the cluster.
            ("--endpoint-reconciler-type", text("none")),
        ];
        self.api = None;
        let program = tools::kube_apiserver()?;
        self.api = Some(self.launch("kube-apiserver", &program, &flags, &self.flags)?);
        Ok(())
    }

    fn launch(
        &self,
        name: &str,
        program: &Path,
        flags: &[(&str, String)],
        more: &[String],
    ) -> Result<Process> {
        let mut args: Vec<String> = flags
            .iter()
            .map(|(flag, value)| format!("{flag}={value}"))
            .collect();
        args.extend_from_slice(more);
        Process::start(Start {
            name: &format!("{}-{name}", self.name),
            program,
            args,
            environment: BTreeMap::new(),
            gid: None,
            net: &self.net,
            logs: &self.logs,
        })
    }
}

fn loopback(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("make {}", to.display()))?;
    // etcd refuses a folder that others can read.
    fs::set_permissions(to, fs::metadata(from)?.permissions())?;
    for entry in fs::read_dir(from).with_context(|| format!("read {}", from.display()))? {
        let (from, name) = entry.map(|entry| (entry.path(), entry.file_name()))?;
        let to = to.join(name);
        if from.is_dir() {
            copy_folder(&from, &to)?;
        } else {
            fs::copy(&from, &to).with_context(|| format!("copy {}", from.display()))?;
        }
    }
    Ok(())
}
