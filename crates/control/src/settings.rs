//! Everything that can be set, resolved once at start from the command line and the environment. Nothing else in the
//! program reads the environment.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use pilotfish_mesh::Text;
use pilotfish_sources::kube::{Access, Timing};
use pilotfish_writers::Part;

use crate::address::Address;
use crate::cli::{DebugAccess, ServeArgs};
use crate::environment::Environment;
use crate::guard::Guard;
use crate::kubernetes::{Kubernetes, Others};
use crate::logging::Levels;
use crate::scribe::Writing;
use crate::workloads::Enrolment;
use crate::writer::{Origin, Plan};

/// Where istiod looks for its mesh configuration if it is not told; used if the file is there.
const MESH_CONFIG: &str = "./etc/istio/config/mesh";
const MESH_NETWORKS: &str = "./etc/istio/config/meshNetworks";

/// Too short to be felt; what follows the first change is collected for longer.
const FIRST_CHANGE_WAIT: Duration = Duration::from_millis(2);

/// The name, among what is written, of workloads that register themselves.
const WORKLOADS: &str = "workloads";

/// Variables that [`Settings::resolve`] reads itself.
const VARIABLES: &[&str] = &[
    "PILOT_DEBOUNCE_AFTER",
    "PILOT_DEBOUNCE_MAX",
    "PILOT_ENABLE_EDS_DEBOUNCE",
    "PILOT_PUSH_THROTTLE",
    "PILOT_MAX_REQUESTS_PER_SECOND",
    "PILOT_XDS_SEND_TIMEOUT",
    "PILOT_FLOW_CONTROL_TIMEOUT",
    "PILOT_ENABLE_WORKLOAD_ENTRY_AUTOREGISTRATION",
    "PILOT_WORKLOAD_ENTRY_GRACE_PERIOD",
    "PILOT_ENABLE_CROSS_CLUSTER_WORKLOAD_ENTRY",
    "PILOT_INSECURE_MULTICLUSTER_KUBECONFIG_OPTIONS",
    "PILOT_REMOTE_CLUSTER_TIMEOUT",
    "TOKEN_AUDIENCES",
];

/// What a server is to do.
#[derive(Debug)]
pub(crate) struct Settings {
    /// Directories to read, in order of precedence.
    pub(crate) config_dirs: Vec<PathBuf>,
    /// The namespace of the control plane.
    pub(crate) namespace: String,
    /// What this replica is called.
    pub(crate) instance: String,
    /// What is done about workloads that register themselves.
    pub(crate) enrolment: Enrolment,
    /// The cluster to read; there is one, or a directory.
    pub(crate) kubernetes: Option<Kubernetes>,
    pub(crate) mesh_config: Option<PathBuf>,
    pub(crate) mesh_networks: Option<PathBuf>,
    /// What translation may know.
    pub(crate) mesh: pilotfish_mesh::Settings,
    pub(crate) grpc: Option<Address>,
    pub(crate) secure: Option<Secure>,
    /// How proxies are treated.
    pub(crate) treatment: Treatment,
    pub(crate) http: Option<Address>,
    pub(crate) monitoring: Option<Address>,
    pub(crate) debounce: Debounce,
    pub(crate) guard: Guard,
    pub(crate) push: Push,
    pub(crate) shutdown: Duration,
    /// How often a part of what proxies were given is audited at most; never if absent.
    pub(crate) audit_interval: Option<Duration>,
    pub(crate) debug: Debug,
    pub(crate) log: Log,
    /// What was set and has no effect, for the log.
    pub(crate) notes: Vec<String>,
}

/// Other names of clusters, and which ones they stand for; cloning shares them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Aliases(Arc<BTreeMap<String, String>>);

impl Aliases {
    pub(crate) fn parse(flags: &[String]) -> Result<Self> {
        let mut all = BTreeMap::new();
        let flags = flags.iter().map(|flag| flag.trim());
        for flag in flags.filter(|flag| !flag.is_empty()) {
            let pair = flag.split_once('=');
            let Some((alias, name)) = pair.filter(|(a, n)| !a.is_empty() && !n.is_empty()) else {
                bail!("--cluster-aliases {flag}: give ALIAS=NAME, such as east-old=east");
            };
            if let Some(other) = all.insert(alias.to_owned(), name.to_owned()) {
                bail!("--cluster-aliases {flag}: {alias} stands for {other} already");
            }
        }
        Ok(Self(Arc::new(all)))
    }

    /// The name of the cluster that this one stands for, if it does.
    pub(crate) fn get(&self, alias: &str) -> Option<&str> {
        self.0.get(alias).map(String::as_str)
    }
}

/// How proxies are treated when they connect.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Treatment {
    /// Proxies that connect from this host are who they say they are.
    pub(crate) trust_local: bool,
    /// Proxies that can take virtual hosts one by one get whole route tables all the same.
    pub(crate) whole_tables: bool,
    /// Under which other names they may know their clusters.
    pub(crate) aliases: Aliases,
}

/// xDS over TLS.
#[derive(Debug, Clone)]
pub(crate) struct Secure {
    pub(crate) address: Address,
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    /// Authorities whose clients are believed.
    pub(crate) client_roots: Option<PathBuf>,
}

/// When changes are pushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Debounce {
    /// How long the first change after a quiet time waits for others.
    pub(crate) first: Duration,
    /// Quiet time to wait for.
    pub(crate) after: Duration,
    /// Longest wait.
    pub(crate) max: Duration,
    /// Whether changes of endpoints alone wait too.
    pub(crate) endpoints: bool,
}

/// How proxies are served.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Push {
    /// Pushes at a time.
    pub(crate) concurrent: usize,
    /// New streams a second; none: as fast as they can be configured.
    pub(crate) streams_per_second: Option<u32>,
    /// Longest time to write one response.
    pub(crate) send_timeout: Option<Duration>,
    /// How long an answer to the last response of a type is waited for.
    pub(crate) flow_control_timeout: Duration,
    pub(crate) keepalive_interval: Duration,
    pub(crate) keepalive_timeout: Duration,
    pub(crate) max_connection_age: Option<Duration>,
    /// Streams in all.
    pub(crate) max_streams: u32,
    /// Largest request in bytes.
    pub(crate) max_request_bytes: usize,
}

/// The debug pages and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Debug {
    pub(crate) enabled: bool,
    pub(crate) access: DebugAccess,
    /// Whether metrics are for this host only.
    pub(crate) metrics_local_only: bool,
}

/// The log.
#[derive(Debug, Clone)]
pub(crate) struct Log {
    pub(crate) levels: Levels,
    pub(crate) json: bool,
    pub(crate) stdout: bool,
}

/// What translation may know of flags and environment.
pub(crate) fn translation(
    cluster: Option<&str>,
    domain: &str,
    env: &Environment,
) -> Result<pilotfish_mesh::Settings> {
    let cluster = cluster.or(env.text("CLUSTER_ID")).unwrap_or("Kubernetes");
    let features = env.features()?.into_iter();
    Ok(pilotfish_mesh::Settings {
        cluster: Text::from(cluster),
        domain: Text::from(domain),
        dual_stack: env.bool("ISTIO_DUAL_STACK", false)?,
        features: features
            .map(|(name, value)| (Text::from(name), Text::from(value)))
            .collect(),
    })
}

impl Settings {
    /// What the writer is to expect.
    pub(crate) fn plan(&self) -> Plan {
        let (cluster, files) = (Some(Origin::Kubernetes), Some(Origin::Files));
        let kubernetes = self.kubernetes.as_ref();
        let objects = [
            files.filter(|_| !self.config_dirs.is_empty()),
            cluster.filter(|_| kubernetes.is_some()),
            Some(Origin::OtherClusters).filter(|_| kubernetes.is_some()),
        ];
        let from_files = self.mesh_config.is_some() || self.mesh_networks.is_some();
        let mesh = [
            files.filter(|_| from_files || kubernetes.is_none()),
            cluster.filter(|_| kubernetes.is_some_and(|k| k.mesh || k.networks)),
        ];
        Plan {
            objects: objects.into_iter().flatten().collect(),
            mesh: mesh.into_iter().flatten().collect(),
            debounce: self.debounce,
            guard: self.guard,
        }
    }

    /// Puts flags, environment and defaults together. The error says what to change.
    pub(crate) fn resolve(args: ServeArgs, env: &Environment, cores: usize) -> Result<Self> {
        let mut notes = args.notes;
        notes.extend(env.notes(VARIABLES));
        check_directories(&args.config_dir)?;
        let mesh_config = file_or_default(args.mesh_config, "--mesh-config", MESH_CONFIG)?;
        let mesh_networks = file_or_default(args.mesh_networks, "--mesh-networks", MESH_NETWORKS)?;
        let access = access(
            &args.config_dir,
            args.kubeconfig.as_deref(),
            args.registries.as_deref(),
            args.istiod,
            env,
        )?;
        let given = |flag: Option<String>, name: &str| {
            flag.filter(|value| !value.is_empty())
                .or_else(|| env.text(name).map(str::to_owned))
        };
        let (namespace, revision) = (
            given(args.namespace, "POD_NAMESPACE"),
            given(args.revision, "REVISION"),
        );
        let in_cluster = access.is_some();
        // As with istiod, a file goes before what the cluster says, if it is there.
        let file = |path: Option<PathBuf>| path.filter(|path| !in_cluster || path.is_file());
        let (mesh_config, mesh_networks) = (file(mesh_config), file(mesh_networks));
        let shared_mesh_config = env.text("SHARED_MESH_CONFIG").map(str::to_owned);
        if let (true, Some(path)) = (shared_mesh_config.is_some(), &mesh_config) {
            notes.push(format!(
                "SHARED_MESH_CONFIG has no effect: the mesh configuration comes from the file {}",
                path.display()
            ));
        }
        let standard = Timing::default();
        let timing = Timing {
            silence: env.time("PILOTFISH_WATCH_SILENCE", standard.silence)?,
            ..standard
        };
        let namespace = namespace.unwrap_or_else(|| "istio-system".to_owned());
        let (writing, writes_workloads) =
            writing(args.kube_writes.as_deref(), args.leader_election, env)?;
        let max_connection_age = args
            .max_connection_age
            .and_then(|age| some_if_set(age.get()));
        let enrolment = enrolment(!in_cluster || writes_workloads, max_connection_age, env)?;
        let mesh = translation(args.cluster_id.as_deref(), &args.domain, env)?;
        let others = others(&mesh.cluster, env)?;
        let kubernetes = access.map(|access| Kubernetes {
            access,
            others,
            only: only(args.namespaces, &namespace),
            namespace: namespace.clone(),
            revision: revision.unwrap_or_default(),
            shared_mesh_config,
            mesh: mesh_config.is_none(),
            networks: mesh_networks.is_none(),
            timing,
            audiences: audiences(env),
            writing,
        });
        let guard = guard(args.loss_guard, args.loss_guard_time, env)?;
        let fair_share = (15 + 5 * cores).min(100);
        let debounce = debounce(args.first_change_wait, env)?;
        let flag_or = |flag: Option<pilotfish_config::Duration>, name, default| {
            flag.map_or_else(
                || env.time(name, Duration::from_secs(default)),
                |given| Ok(given.get()),
            )
        };
        let push = Push {
            concurrent: or_if_zero(env.number("PILOT_PUSH_THROTTLE", 0_usize)?, fair_share),
            streams_per_second: match env.number("PILOT_MAX_REQUESTS_PER_SECOND", 0.0_f64)? {
                #[expect(clippy::cast_sign_loss, reason = "clamped")]
                rate if rate > 0.0 => Some(rate.ceil().clamp(1.0, 1e6) as u32),
                _ => None,
            },
            send_timeout: some_if_set(env.time("PILOT_XDS_SEND_TIMEOUT", Duration::ZERO)?),
            flow_control_timeout: env
                .time("PILOT_FLOW_CONTROL_TIMEOUT", Duration::from_secs(15))?,
            keepalive_interval: flag_or(args.keepalive_interval, "GRPC_KEEPALIVE_INTERVAL", 30)?,
            keepalive_timeout: flag_or(args.keepalive_timeout, "GRPC_KEEPALIVE_TIMEOUT", 10)?,
            max_connection_age,
            max_streams: env.number("ISTIO_GPRC_MAXSTREAMS", 100_000)?,
            max_request_bytes: env.number("ISTIO_GPRC_MAXRECVMSGSIZE", 4 << 20)?,
        };
        let debug = Debug {
            enabled: env.bool("ENABLE_DEBUG_ON_HTTP", true)?,
            access: args.debug_access,
            metrics_local_only: env.bool("METRICS_LOCALHOST_ACCESS_ONLY", false)?,
        };
        let grpc = Address::parse(&args.grpc_addr, "--grpc-addr")?;
        let secure_address = Address::parse(&args.secure_grpc_addr, "--secure-grpc-addr")?;
        let secure = secure(
            secure_address,
            args.tls_cert_file,
            args.tls_key_file,
            args.ca_cert_file,
            args.secure_given,
            &mut notes,
        )?;
        if !args.https_addr.is_empty() && args.https_addr != ":15017" {
            notes.push(format!(
                "https port {} stays closed: webhooks come with a later release",
                args.https_addr
            ));
        }
        Ok(Self {
            config_dirs: args.config_dir,
            namespace,
            instance: env.text("POD_NAME").unwrap_or("pilotfish").to_owned(),
            enrolment,
            kubernetes,
            mesh_config,
            mesh_networks,
            mesh,
            treatment: Treatment {
                trust_local: trust_local(args.insecure_trust_local_proxies, grpc.as_ref())?,
                whole_tables: args.whole_route_tables,
                aliases: Aliases::parse(&args.cluster_aliases)?,
            },
            grpc,
            secure,
            http: Address::parse(&args.http_addr, "--http-addr")?,
            monitoring: Address::parse(&args.monitoring_addr, "--monitoring-addr")?,
            debounce,
            guard,
            push,
            shutdown: args.shutdown_duration.get(),
            audit_interval: some_if_set(args.audit_interval.get()),
            debug,
            log: log(
                &args.log_level,
                args.log_as_json,
                &args.log_target,
                &mut notes,
            )?,
            notes,
        })
    }
}

/// The namespaces to read. The control plane's own has settings that hold for all, and is always among them.
fn only(mut given: Vec<String>, own: &str) -> Vec<String> {
    given.retain(|name| !name.is_empty());
    if !given.is_empty() {
        given.push(own.to_owned());
        given.sort();
        given.dedup();
    }
    given
}

/// What is done about workloads that register themselves.
fn enrolment(
    is_wanted: bool,
    max_connection_age: Option<Duration>,
    env: &Environment,
) -> Result<Enrolment> {
    let is_on = |name| Ok::<_, anyhow::Error>(env.bool(name, true)? && is_wanted);
    let host = env.text("POD_NAME").or(env.text("HOSTNAME"));
    Ok(Enrolment {
        registers: is_on("PILOT_ENABLE_WORKLOAD_ENTRY_AUTOREGISTRATION")?,
        checks_health: is_on("PILOT_ENABLE_WORKLOAD_ENTRY_HEALTHCHECKS")?,
        validates: env.bool("ISTIO_WORKLOAD_ENTRY_VALIDATE_IDENTITY", true)?,
        grace: env.time("PILOT_WORKLOAD_ENTRY_GRACE_PERIOD", Duration::from_secs(10))?,
        max_connection_age,
        pod: env.text("POD_NAME").map(str::to_owned),
        host: host.unwrap_or("pilotfish").to_owned(),
    })
}

/// What tokens of service accounts must be meant for.
fn audiences(env: &Environment) -> Vec<String> {
    let all = env.text("TOKEN_AUDIENCES").unwrap_or("istio-ca").split(',');
    let all = all.map(str::trim).filter(|name| !name.is_empty());
    all.map(str::to_owned).collect()
}

/// How other clusters are read.
fn others(own: &str, env: &Environment) -> Result<Others> {
    let allowed = env.text("PILOT_INSECURE_MULTICLUSTER_KUBECONFIG_OPTIONS");
    let allowed = allowed.unwrap_or_default().split(',').map(str::trim);
    // istiod reads them for Services above all, so that there are none where Services choose none.
    let chosen = env.bool("PILOT_ENABLE_K8S_SELECT_WORKLOAD_ENTRIES", true)?;
    Ok(Others {
        own: own.to_owned(),
        entries: chosen && env.bool("PILOT_ENABLE_CROSS_CLUSTER_WORKLOAD_ENTRY", true)?,
        timeout: env.time("PILOT_REMOTE_CLUSTER_TIMEOUT", Duration::from_secs(30))?,
        allowed: allowed
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect(),
    })
}

/// What is written to the cluster by whoever leads, and whether workloads that register themselves are written by all.
fn writing(
    parts: Option<&str>,
    leader_election: Option<bool>,
    env: &Environment,
) -> Result<(Option<Writing>, bool)> {
    let all = format!("{},{WORKLOADS}", Part::ALL.map(Part::name).join(","));
    let wanted = parts.or(env.text("PILOTFISH_KUBE_WRITES")).unwrap_or(&all);
    let names = wanted.split(',').map(str::trim);
    let (mut parts, mut workloads) = (Vec::new(), false);
    for name in names.filter(|name| !name.is_empty() && *name != "none") {
        match Part::ALL.into_iter().find(|part| part.name() == name) {
            Some(part) => parts.push(part),
            None if name == WORKLOADS => workloads = true,
            None => {
                bail!("--kube-writes {wanted}: {name:?} is unknown; choose from {all}, or none")
            }
        }
    }
    let election = match leader_election {
        Some(election) => election,
        None => env.bool("ENABLE_LEADER_ELECTION", true)?,
    };
    let standard = pilotfish_writers::Timing::default();
    let duration = env.time("PILOTFISH_LEASE_DURATION", standard.duration())?;
    let host = env.text("POD_NAME").or(env.text("HOSTNAME"));
    let writing = (!parts.is_empty()).then(|| Writing {
        parts,
        lease: election.then(|| pilotfish_writers::Timing::new(duration)),
        host: host.unwrap_or("pilotfish").to_owned(),
    });
    Ok((writing, workloads))
}

/// How much may be lost at once.
fn guard(
    percent: Option<u8>,
    time: Option<pilotfish_config::Duration>,
    env: &Environment,
) -> Result<Guard> {
    let percent = match percent {
        Some(percent) => percent,
        None => env.number("PILOTFISH_LOSS_GUARD", 50)?,
    };
    if percent > 100 {
        bail!("--loss-guard {percent}: give a percentage, from 0 (off) to 100");
    }
    let time = match time {
        Some(time) => time.get(),
        None => env.time("PILOTFISH_LOSS_GUARD_TIME", Duration::from_secs(30))?,
    };
    Ok(Guard { percent, time })
}

/// Whoever sets istiod's variable gets what it says: then every change waits, the first one too.
fn debounce(first: Option<pilotfish_config::Duration>, env: &Environment) -> Result<Debounce> {
    const AFTER: &str = "PILOT_DEBOUNCE_AFTER";
    let after = env.time(AFTER, Duration::from_millis(100))?;
    let first = match first {
        Some(first) => first.get(),
        None if env.text(AFTER).is_some() => after,
        None => FIRST_CHANGE_WAIT,
    };
    Ok(Debounce {
        first: first.min(after),
        after,
        max: env.time("PILOT_DEBOUNCE_MAX", Duration::from_secs(10))?,
        endpoints: env.bool("PILOT_ENABLE_EDS_DEBOUNCE", true)?,
    })
}

fn or_if_zero(value: usize, default: usize) -> usize {
    if value == 0 { default } else { value }
}

fn some_if_set(time: Duration) -> Option<Duration> {
    (!time.is_zero()).then_some(time)
}

/// The cluster to read. Whoever names directories and no cluster means the directories alone, unless it is istiod's
/// command that is used, which knows no mesh without a cluster.
fn access(
    dirs: &[PathBuf],
    kubeconfig: Option<&Path>,
    registries: Option<&str>,
    istiod: bool,
    env: &Environment,
) -> Result<Option<Access>> {
    let wanted = registries.is_none_or(|all| {
        all.split(',')
            .any(|name| name.trim().eq_ignore_ascii_case("kubernetes"))
    });
    let variable = env.text("KUBECONFIG").filter(|_| dirs.is_empty());
    let in_cluster = env.text("KUBERNETES_SERVICE_HOST").is_some() && (dirs.is_empty() || istiod);
    let access = Access::find(kubeconfig, variable, in_cluster).filter(|_| wanted);
    if access.is_none() && dirs.is_empty() {
        bail!(
            "nothing to serve: give a directory of Istio and Kubernetes YAML with --config-dir DIR, or a Kubernetes cluster \
             with --kubeconfig FILE (`pilotfish serve --help` has examples)"
        );
    }
    Ok(access)
}

fn check_directories(dirs: &[PathBuf]) -> Result<()> {
    for dir in dirs {
        match std::fs::metadata(dir) {
            Err(error) => bail!(
                "--config-dir {}: {error}; create it, or name a directory that exists",
                dir.display()
            ),
            Ok(meta) if !meta.is_dir() => {
                bail!(
                    "--config-dir {} is not a directory; name the directory that holds the file",
                    dir.display()
                )
            }
            Ok(_) => {}
        }
    }
    Ok(())
}

/// A file that was named must be there; the default is used if it is.
fn file_or_default(named: Option<PathBuf>, flag: &str, default: &str) -> Result<Option<PathBuf>> {
    match named.filter(|path| !path.as_os_str().is_empty()) {
        Some(path) if path.is_file() => Ok(Some(path)),
        // istiod starts with the default mesh if its file is missing, and a ConfigMap may be mounted empty at first.
        Some(path) if path == Path::new(default) => Ok(Some(path)),
        Some(path) => bail!(
            "{flag} {}: no such file; correct the path, or leave the flag out",
            path.display()
        ),
        None => Ok(Some(PathBuf::from(default)).filter(|path| path.is_file())),
    }
}

/// Whoever may open the port could claim to be any proxy, so it must be this host's alone.
fn trust_local(wanted: bool, grpc: Option<&Address>) -> Result<bool> {
    if wanted && !grpc.is_some_and(Address::is_loopback) {
        bail!(
            "--insecure-trust-local-proxies needs a --grpc-addr on loopback, such as 127.0.0.1:15010: \
             otherwise secrets would be given to anybody"
        );
    }
    Ok(wanted)
}

fn secure(
    address: Option<Address>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    client_roots: Option<PathBuf>,
    given: bool,
    notes: &mut Vec<String>,
) -> Result<Option<Secure>> {
    let set = |path: Option<PathBuf>| path.filter(|path| !path.as_os_str().is_empty());
    let client_roots = set(client_roots);
    match (address, set(certificate), set(key)) {
        (Some(address), Some(certificate), Some(key)) => {
            let roots = client_roots.iter().map(|p| ("--ca-cert-file", p));
            let files = [("--tls-cert-file", &certificate), ("--tls-key-file", &key)];
            for (flag, path) in files.into_iter().chain(roots) {
                if !path.is_file() {
                    bail!("{flag} {}: no such file", path.display());
                }
            }
            Ok(Some(Secure {
                address,
                certificate,
                key,
                client_roots,
            }))
        }
        (_, Some(_), None) => bail!("--tls-cert-file needs --tls-key-file"),
        (_, None, Some(_)) => bail!("--tls-key-file needs --tls-cert-file"),
        (_, None, None) if client_roots.is_some() => {
            bail!("--ca-cert-file needs --tls-cert-file and --tls-key-file")
        }
        (Some(address), None, None) if given => {
            notes.push(format!(
                "secure xDS port {address} stays closed: give --tls-cert-file and --tls-key-file; own certificates \
                 come with the certificate authority, in a later release"
            ));
            Ok(None)
        }
        (Some(_), None, None) | (None, ..) => Ok(None),
    }
}

fn log(levels: &str, json: bool, targets: &[String], notes: &mut Vec<String>) -> Result<Log> {
    let levels = Levels::parse(levels)
        .map_err(|reason| anyhow::anyhow!("--log-level {levels:?}: {reason}"))?;
    let mut stdout = false;
    for target in targets {
        match target.as_str() {
            "stdout" => stdout = true,
            "stderr" => stdout = false,
            other => notes.push(format!(
                "--log-target {other} has no effect: the log goes to stderr or stdout"
            )),
        }
    }
    Ok(Log {
        levels,
        json,
        stdout,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Command, parse};

    fn resolve(args: &[&str], env: &Environment) -> Result<Settings> {
        let dir = std::env::temp_dir().display().to_string();
        let all = ["pilotfish", "serve", "--config-dir", &dir];
        let args = all.iter().chain(args).map(std::ffi::OsString::from);
        match parse(args).unwrap().command {
            Command::Serve(args) => Settings::resolve(*args, env, 2),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_written_can_be_chosen() {
        let writing = |args: &[&str], env: Environment| -> Option<(Vec<Part>, bool)> {
            let all = ["--kubeconfig", "x"].iter().chain(args).copied();
            let settings = resolve(&all.collect::<Vec<_>>(), &env).unwrap();
            let writing = settings.kubernetes?.writing?;
            Some((writing.parts, writing.lease.is_some()))
        };
        let none = Environment::default;
        let all = Part::ALL.to_vec();
        assert_eq!(writing(&[], none()), Some((all.clone(), true)));
        let some = writing(&["--kube-writes", "addresses"], none());
        assert_eq!(some, Some((vec![Part::Addresses], true)));
        assert_eq!(writing(&["--kube-writes", "none"], none()), None);
        assert_eq!(writing(&["--kube-writes="], none()), None);
        let env = || Environment::of([("ENABLE_LEADER_ELECTION", "false")]);
        assert_eq!(writing(&[], env()), Some((all.clone(), false)));
        let flag = writing(&["--leader-election", "true"], env());
        assert_eq!(flag, Some((all, true)), "flags go before variables");
        let error = resolve(&["--kubeconfig", "x", "--kube-writes", "all"], &none());
        assert!(
            error
                .unwrap_err()
                .to_string()
                .contains("addresses,findings,events")
        );
        let files = resolve(&[], &none()).unwrap();
        assert!(files.kubernetes.is_none(), "files are never written to");
    }

    #[test]
    fn a_cluster_may_have_other_names() {
        let of = |flags: &[&str]| {
            let settings = resolve(flags, &Environment::default());
            settings.map(|settings| settings.treatment.aliases)
        };
        let flags = [
            "--clusterAliases",
            "old=east,older=east",
            "--cluster-aliases",
            "x=west",
        ];
        let aliases = of(&flags).unwrap();
        let names = ["old", "older", "x", "east", ""].map(|name| aliases.get(name));
        assert_eq!(
            names,
            [Some("east"), Some("east"), Some("west"), None, None]
        );
        assert_eq!(of(&["--clusterAliases="]).unwrap(), Aliases::default());
        for bad in ["old", "=east", "old=", "old=a,old=b"] {
            let error = of(&["--cluster-aliases", bad]).unwrap_err().to_string();
            assert!(error.contains("--cluster-aliases"), "{bad}: {error}");
        }
    }

    #[test]
    fn defaults_are_those_of_istiod_but_for_pace() {
        let settings = resolve(&[], &Environment::default()).unwrap();
        // Ours: the first change waits 2 ms, and new streams are admitted as they cost.
        assert_eq!(
            settings.debounce,
            Debounce {
                first: Duration::from_millis(2),
                after: Duration::from_millis(100),
                max: Duration::from_secs(10),
                endpoints: true
            }
        );
        assert_eq!(settings.push.concurrent, 25);
        assert_eq!(settings.push.streams_per_second, None);
        assert_eq!(settings.push.keepalive_interval, Duration::from_secs(30));
        assert_eq!(settings.push.max_connection_age, None);
        assert_eq!(settings.push.send_timeout, None);
        assert_eq!(&*settings.mesh.cluster, "Kubernetes");
        assert_eq!(settings.grpc.unwrap().to_string(), ":15010");
        assert!(settings.secure.is_none());
        assert_eq!(settings.audit_interval, Some(Duration::from_mins(1)));
        let silent = resolve(&["--audit-interval", "0"], &Environment::default()).unwrap();
        assert_eq!(silent.audit_interval, None);
        assert_eq!(settings.notes, Vec::<String>::new());
    }

    #[test]
    fn a_debounce_that_was_set_holds_for_the_first_change_too() {
        let env = Environment::of([("PILOT_DEBOUNCE_AFTER", "300ms")]);
        let first = |flags: &[&str]| resolve(flags, &env).unwrap().debounce.first;
        assert_eq!(first(&[]), Duration::from_millis(300));
        assert_eq!(
            first(&["--first-change-wait", "20ms"]),
            Duration::from_millis(20)
        );
        assert_eq!(
            first(&["--first-change-wait", "2s"]),
            Duration::from_millis(300)
        );
    }

    #[test]
    fn flags_win_over_variables() {
        let env = Environment::of([
            ("CLUSTER_ID", "a"),
            ("GRPC_KEEPALIVE_INTERVAL", "5s"),
            ("ISTIO_DUAL_STACK", "1"),
        ]);
        let settings = resolve(&["--cluster-id", "b", "--http-addr", ""], &env).unwrap();
        assert_eq!(&*settings.mesh.cluster, "b");
        assert_eq!(settings.push.keepalive_interval, Duration::from_secs(5));
        assert!(settings.mesh.dual_stack && settings.http.is_none());
    }

    #[test]
    fn errors_say_what_to_change() {
        let none = Environment::default();
        let message = |args: &[&str]| resolve(args, &none).unwrap_err().to_string();
        assert!(message(&["--config-dir", "/nowhere"]).contains("/nowhere"));
        assert!(message(&["--mesh-config", "/nowhere"]).contains("--mesh-config /nowhere"));
        assert!(message(&["--grpc-addr", "15010"]).contains("--grpc-addr"));
        assert!(message(&["--log-level", "ads:loud"]).contains("loud"));
        assert!(message(&["--tls-cert-file", "/x"]).contains("--tls-key-file"));
        let error = Settings::resolve(ServeArgs::default(), &none, 1)
            .unwrap_err()
            .to_string();
        assert!(error.contains("--config-dir"), "{error}");
    }

    #[test]
    fn a_secure_port_that_was_asked_for_is_noted() {
        let settings = resolve(&["--secure-grpc-addr", ":15012"], &Environment::default()).unwrap();
        assert!(settings.secure.is_none());
        assert!(
            settings.notes[0].contains(":15012 stays closed"),
            "{:?}",
            settings.notes
        );
    }

    fn cluster(command: &[&str], env: &Environment) -> Result<Option<Kubernetes>> {
        let all = ["pilotfish"].iter().chain(command);
        let args = all.map(std::ffi::OsString::from);
        match parse(args).unwrap().command {
            Command::Serve(args) | Command::Discovery(args) => {
                Settings::resolve(*args, env, 2).map(|settings| settings.kubernetes)
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_cluster_is_read_where_one_is_meant() {
        let dir = std::env::temp_dir().display().to_string();
        let pod = || Environment::of([("KUBERNETES_SERVICE_HOST", "10.0.0.1"), ("REVISION", "r")]);
        let desk = || Environment::of([("KUBECONFIG", "/home/k")]);
        let nowhere = Environment::default();
        let access = |command: &[&str], env: &Environment| {
            cluster(command, env).unwrap().map(|found| found.access)
        };
        let file = |name: &str| Some(Access::Kubeconfig(vec![name.into()]));

        assert!(cluster(&["serve"], &nowhere).is_err());
        assert_eq!(access(&["serve", "--config-dir", &dir], &nowhere), None);
        assert_eq!(access(&["serve"], &desk()), file("/home/k"));
        assert_eq!(access(&["serve", "--kubeconfig", "x"], &desk()), file("x"));
        // Whoever names a directory means that, and may name a cluster too.
        assert_eq!(access(&["serve", "--config-dir", &dir], &desk()), None);
        assert_eq!(access(&["serve", "--config-dir", &dir], &pod()), None);
        let both = ["serve", "--config-dir", &dir, "--kubeconfig", "x"];
        assert_eq!(access(&both, &nowhere), file("x"));
        assert_eq!(access(&["serve"], &pod()), Some(Access::InCluster));
        let istiod = ["discovery", "--configDir", &dir];
        assert_eq!(access(&istiod, &pod()), Some(Access::InCluster));
        let other = ["discovery", "--configDir", &dir, "--registries", "Mock"];
        assert_eq!(access(&other, &pod()), None);

        let found = cluster(&["discovery", "-n", "mine"], &pod())
            .unwrap()
            .unwrap();
        assert_eq!(
            (found.namespace.as_str(), found.revision.as_str()),
            ("mine", "r")
        );
        assert!(found.mesh && found.networks && found.only.is_empty());
        let some = ["serve", "--namespaces", "shop,bank", "--namespaces", "shop"];
        let found = cluster(&some, &desk()).unwrap().unwrap();
        assert_eq!(found.only, ["bank", "istio-system", "shop"]);
        let found = cluster(&["serve"], &desk()).unwrap().unwrap();
        assert_eq!(
            (found.namespace.as_str(), found.revision.as_str()),
            ("istio-system", "")
        );
    }

    #[test]
    fn everything_that_is_read_is_waited_for() {
        let plan = |args: &[&str]| resolve(args, &Environment::default()).unwrap().plan();
        let files = plan(&[]);
        assert_eq!(
            (files.objects, files.mesh),
            (vec![Origin::Files], vec![Origin::Files])
        );
        let both = plan(&["--kubeconfig", "x"]);
        let all = [Origin::Files, Origin::Kubernetes, Origin::OtherClusters];
        assert_eq!(both.objects, all);
        assert_eq!(both.mesh, [Origin::Kubernetes]);
    }

    #[test]
    fn the_guard_can_be_set_and_turned_off() {
        let guard = |args: &[&str], env: &Environment| resolve(args, env).map(|all| all.guard);
        let env = Environment::of([
            ("PILOTFISH_LOSS_GUARD", "20"),
            ("PILOTFISH_LOSS_GUARD_TIME", "1m"),
        ]);
        let time = |seconds| Duration::from_secs(seconds);
        let (standard, of_env) = (guard(&[], &Environment::default()), guard(&[], &env));
        assert_eq!(
            standard.unwrap(),
            Guard {
                percent: 50,
                time: time(30)
            }
        );
        assert_eq!(
            of_env.unwrap(),
            Guard {
                percent: 20,
                time: time(60)
            }
        );
        assert_eq!(guard(&["--loss-guard", "0"], &env).unwrap().percent, 0);
        assert!(guard(&["--loss-guard", "101"], &env).is_err());
    }
}
