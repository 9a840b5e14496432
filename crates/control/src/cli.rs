//! The command line. One set of flags, with two spellings: ours for `serve`, istiod's for `discovery`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::styling::{AnsiColor, Styles};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use pilotfish_config::Duration;

const ABOUT: &str = "Pilotfish, a control plane for service meshes made of Envoy proxies";

const SERVE_HELP: &str = "\
Examples:
  pilotfish serve --config-dir ./mesh
      Serve everything declared in ./mesh; edit the files and proxies follow.
  pilotfish serve --config-dir ./mesh --config-dir ./team --mesh-config mesh.yaml --log-level ads:debug
      Two directories (the first wins where both declare an object) and every xDS exchange in the log.
  pilotfish serve --config-dir ./mesh --grpc-addr 127.0.0.1:15010 --http-addr '' --secure-grpc-addr ''
      xDS on loopback only; an empty address closes a port.
  pilotfish serve --kubeconfig ~/.kube/config
      Serve what a Kubernetes cluster declares. With --config-dir too, the directory wins where both declare an object.
  pilotfish request GET /debug/syncz
      Ask a running server which proxy has acknowledged what.

Environment:
  PILOT_DEBOUNCE_AFTER=100ms      Quiet time to wait for after a change before it is pushed
  PILOT_DEBOUNCE_MAX=10s          Longest time that changes are collected before a push
  PILOT_ENABLE_EDS_DEBOUNCE=true  false: a change of endpoints alone is pushed at once
  PILOT_PUSH_THROTTLE=0           Pushes at a time; 0: 15 and 5 for each core, at most 100
  PILOT_MAX_REQUESTS_PER_SECOND=0 New streams a second; 0: as fast as the last ones could be configured
  PILOT_XDS_SEND_TIMEOUT=30s      A proxy that takes nothing of what is sent for so long is cut off
  PILOT_FLOW_CONTROL_TIMEOUT=15s  How long a push waits for the answer to the last one of its type
  PILOT_ENABLE_WORKLOAD_ENTRY_AUTOREGISTRATION=true  false: nobody is registered by a WorkloadGroup
  PILOT_ENABLE_WORKLOAD_ENTRY_HEALTHCHECKS=true  false: what agents say of the health of workloads is not used
  PILOT_WORKLOAD_ENTRY_GRACE_PERIOD=10s  How long a workload that registered itself may be away before it is removed
  ISTIO_WORKLOAD_ENTRY_VALIDATE_IDENTITY=true  false: anybody may register any workload
  GRPC_KEEPALIVE_INTERVAL=30s     Idle time before a connection is probed (--keepalive-interval)
  GRPC_KEEPALIVE_TIMEOUT=10s      How long a probe may go unanswered (--keepalive-timeout)
  ISTIO_GPRC_MAXSTREAMS=100000    Streams in all
  ISTIO_GPRC_MAXRECVMSGSIZE=4194304  Largest request in bytes
  ISTIO_DUAL_STACK=false          Listeners and endpoints for IPv4 and IPv6
  KUBECONFIG                      Default of --kubeconfig, if there is no --config-dir
  POD_NAMESPACE=istio-system      Default of --namespace
  POD_NAME=pilotfish              What istioctl and the Lease of those who write to the cluster call this replica
  REVISION                        Default of --revision
  SHARED_MESH_CONFIG              ConfigMap in --namespace with mesh settings, over which those of the ConfigMap istio are laid
  ENABLE_LEADER_ELECTION=true     Default of --leader-election
  PILOTFISH_KUBE_WRITES           Default of --kube-writes
  PILOTFISH_LEASE_DURATION=15s    How long after the death of the replica that writes another one takes over
  PILOTFISH_WATCH_SILENCE=90s     A watch of the cluster that says nothing for so long is opened again
  PILOTFISH_LOSS_GUARD=50         Default of --loss-guard
  PILOTFISH_LOSS_GUARD_TIME=30s   Default of --loss-guard-time
  CLUSTER_ID=Kubernetes           Default of --cluster-id
  PILOT_REMOTE_CLUSTER_TIMEOUT=30s  How long readiness waits for clusters that Secrets name (label istio/multiCluster=true
                                  in --namespace); 0: for ever
  PILOT_ENABLE_CROSS_CLUSTER_WORKLOAD_ENTRY=true  false: WorkloadEntries of these clusters are not read
  PILOT_INSECURE_MULTICLUSTER_KUBECONFIG_OPTIONS  What kubeconfigs in these Secrets may have that is refused otherwise,
                                  comma-separated: exec, tokenFile, clientKey, clientCertificate, gcp, azure, openstack
  TOKEN_AUDIENCES=istio-ca        What tokens of service accounts, which clients show over TLS, must be meant for, one of
                                  these, comma-separated; the API server of the cluster that is read says whose they are
  ENABLE_DEBUG_ON_HTTP=true       false: no /debug pages
  METRICS_LOCALHOST_ACCESS_ONLY=false  true: /metrics only for this host
  Other variables of istiod that shape what proxies are sent (PILOT_HTTP10, …) are read as istiod reads them.
  A value that cannot be read is an error that names the variable.

Exit codes: 0 after SIGTERM or SIGINT, 1 if it could not start or had to stop, 2 for a wrong command line.";

const DISCOVERY_HELP: &str = "\
The same server as `pilotfish serve`, with the spellings of istiod, so that an existing Deployment works; each flag
is accepted in both. What a flag of istiod does not do yet is said in the log at start.
See `pilotfish serve --help` for examples and environment variables.";

const ANALYZE_HELP: &str = "\
Reads everything, as `pilotfish serve` would, and reports what is refused, ignored, shadowed or missing: each finding with
its object, field, file and line, what is wrong, and what follows from it. Nothing is contacted and nothing is changed.

Examples:
  pilotfish analyze ./mesh
      A table of everything that is wrong with ./mesh.
  pilotfish analyze ./mesh ./team/new.yaml --fail-on warning
      What a new file would do to a mesh; warnings count as errors.
  kubectl get services,pods,endpointslices,vs,dr,gw,se,sidecars -A -o yaml | pilotfish analyze - --json
      The same for a live cluster, as JSON.
  pilotfish analyze ./mesh --ignore unused-gateway --show warning
      Without some kinds of findings, and without remarks.

Severities:
  error    Something that was asked for is not in effect
  warning  It is in effect, but perhaps not as meant
  info     Worth knowing

Exit codes: 0 if nothing is as bad as --fail-on says, 1 if something is, 2 if it could not be found out (wrong command
line, a path that cannot be read).";

const MANIFEST_HELP: &str = "\
Prints YAML and contacts nobody: ServiceAccount, roles, the mesh configuration (ConfigMap istio), Service, Deployment,
PodDisruptionBudget and HorizontalPodAutoscaler, with istiod's names, ports and selectors, so that proxies that know istiod
connect. Istio's CRDs are not included; kinds whose CRD is missing are picked up when it appears.

Examples:
  pilotfish manifest --create-namespace --image registry.example/pilotfish:1.0 | kubectl apply --server-side -f -
      Install into istio-system, or take the place of the istiod that is there.
  pilotfish manifest --revision canary | kubectl apply --server-side -f -
      Run beside another control plane, as istiod-canary; it reads objects that are labelled istio.io/rev=canary or not at all.
  pilotfish manifest --tls-secret istiod-tls | kubectl diff -f -
      What would change; with a certificate for xDS over TLS, which stays closed without one.
  pilotfish manifest --namespaced shop,bank
      Only what these two namespaces and istio-system declare: Roles there instead of rights in all namespaces.
  pilotfish manifest --revision canary | kubectl delete -f -
      Take it away again.

Rights: to read exactly the kinds that are watched; to write WorkloadEntries of virtual machines, the status of ServiceEntries
and WorkloadEntries, Events, ConfigMaps named istio-ca-root-cert and, in its own namespace, Leases; to have tokens and access
reviewed. --namespaced leaves a ClusterRole for what lives outside of namespaces: Namespaces, Nodes, CRDs and reviews.";

/// Everything the command line can say.
#[derive(Debug, Parser)]
#[command(name = "pilotfish", about = ABOUT, version, disable_version_flag = true, max_term_width = 120)]
#[command(styles = Styles::styled().header(AnsiColor::Green.on_default().bold()).usage(AnsiColor::Green.on_default().bold()).literal(AnsiColor::Cyan.on_default()))]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Read a directory of YAML or a Kubernetes cluster and serve it to proxies
    #[command(after_long_help = SERVE_HELP)]
    Serve(Box<ServeArgs>),
    /// The same as `serve`, with the flags of istiod
    #[command(after_long_help = DISCOVERY_HELP)]
    Discovery(Box<ServeArgs>),
    /// Say what is wrong with a configuration, without serving it
    #[command(after_long_help = ANALYZE_HELP)]
    Analyze(Box<AnalyzeArgs>),
    /// Print what installs Pilotfish in a Kubernetes cluster, in istiod's place
    #[command(after_long_help = MANIFEST_HELP)]
    Manifest(Box<ManifestArgs>),
    /// Ask a running server: pages, metrics, log levels
    Request(RequestArgs),
    /// Print the version
    Version(VersionArgs),
}

/// Flags of `serve` and `discovery`. Where istiod spells a flag otherwise, that is its alias here, and the other way
/// round in `discovery`. `None` means that the flag was not given; `settings.rs` knows the defaults.
#[derive(Debug, Args, Default)]
pub(crate) struct ServeArgs {
    /// Directory of YAML and JSON files, read recursively and watched; give it again for more
    #[arg(
        long,
        alias = "configDir",
        value_name = "DIR",
        help_heading = "Configuration"
    )]
    pub(crate) config_dir: Vec<PathBuf>,
    /// File with the mesh configuration, watched
    #[arg(
        long,
        alias = "meshConfig",
        value_name = "FILE",
        help_heading = "Configuration"
    )]
    pub(crate) mesh_config: Option<PathBuf>,
    /// File with the networks of the mesh, watched
    #[arg(
        long,
        alias = "networksConfig",
        value_name = "FILE",
        help_heading = "Configuration"
    )]
    pub(crate) mesh_networks: Option<PathBuf>,
    /// Name of the cluster the control plane serves [default: $CLUSTER_ID or Kubernetes]
    #[arg(
        long,
        alias = "clusterID",
        value_name = "NAME",
        help_heading = "Configuration"
    )]
    pub(crate) cluster_id: Option<String>,
    /// Other names under which proxies know their clusters: east-old=east says that those of east-old are in east. Several are
    /// separated by commas, or given one by one
    #[arg(
        long,
        alias = "clusterAliases",
        value_name = "ALIAS=NAME",
        value_delimiter = ',',
        help_heading = "Configuration"
    )]
    pub(crate) cluster_aliases: Vec<String>,
    /// DNS domain of Kubernetes services
    #[arg(
        long,
        value_name = "DOMAIN",
        default_value = "cluster.local",
        help_heading = "Configuration"
    )]
    pub(crate) domain: String,

    /// Read the Kubernetes cluster of this kubeconfig file's current context [default, without --config-dir: $KUBECONFIG,
    /// or the cluster that the server runs in]
    #[arg(long, value_name = "FILE", help_heading = CLUSTER)]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Namespace of the control plane, where the ConfigMap with the mesh configuration is [default: $POD_NAMESPACE or
    /// istio-system]
    #[arg(long, short, value_name = "NAME", help_heading = CLUSTER)]
    pub(crate) namespace: Option<String>,
    /// Revision of the control plane: Istio objects that are labelled with another istio.io/rev are left out, and the mesh
    /// configuration is in the ConfigMap istio-REVISION [default: $REVISION, or none]
    #[arg(long, value_name = "NAME", help_heading = CLUSTER)]
    pub(crate) revision: Option<String>,
    /// Read these namespaces only, comma-separated, and the one of the control plane; Namespaces and Nodes are read all the
    /// same [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', help_heading = CLUSTER)]
    pub(crate) namespaces: Vec<String>,
    /// What is written to the cluster, comma-separated: addresses (of hosts of ServiceEntries, into their status), findings
    /// (what is wrong with an object, into its status), events (the same as Events) and workloads (WorkloadEntries of proxies
    /// that register themselves, and their health); none [default: $PILOTFISH_KUBE_WRITES or
    /// addresses,findings,events,workloads]
    #[arg(long, value_name = "WHAT", help_heading = CLUSTER)]
    pub(crate) kube_writes: Option<String>,
    /// Whether replicas agree by a Lease which of them writes; false only if there is no other [default:
    /// $ENABLE_LEADER_ELECTION or true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", help_heading = CLUSTER)]
    pub(crate) leader_election: Option<bool>,
    /// Where services come from, comma-separated; without Kubernetes among them, no cluster is read
    #[arg(long, value_name = "NAMES", hide = true)]
    pub(crate) registries: Option<String>,

    /// xDS in plain text
    #[arg(long, alias = "grpcAddr", value_name = "ADDR", default_value = ":15010", help_heading = ADDRESSES)]
    pub(crate) grpc_addr: String,
    /// xDS over TLS; open if --tls-cert-file and --tls-key-file are given
    #[arg(long, alias = "secureGRPCAddr", value_name = "ADDR", default_value = ":15012", help_heading = ADDRESSES)]
    pub(crate) secure_grpc_addr: String,
    /// /ready and the debug pages
    #[arg(long, alias = "httpAddr", value_name = "ADDR", default_value = ":8080", help_heading = ADDRESSES)]
    pub(crate) http_addr: String,
    /// Webhooks (come with a later release)
    #[arg(long, alias = "httpsAddr", value_name = "ADDR", default_value = ":15017", help_heading = ADDRESSES)]
    pub(crate) https_addr: String,
    /// Metrics, the debug pages and log levels
    #[arg(long, alias = "monitoringAddr", value_name = "ADDR", default_value = ":15014", help_heading = ADDRESSES)]
    pub(crate) monitoring_addr: String,
    /// Who may see /debug pages and change log levels: this host, or anyone who reaches the port
    #[arg(long, value_name = "WHO", default_value = "local", value_enum, help_heading = ADDRESSES)]
    pub(crate) debug_access: DebugAccess,

    /// Certificate chain for xDS over TLS, PEM
    #[arg(long, alias = "tlsCertFile", value_name = "FILE", help_heading = "TLS")]
    pub(crate) tls_cert_file: Option<PathBuf>,
    /// Its private key, PEM
    #[arg(long, alias = "tlsKeyFile", value_name = "FILE", help_heading = "TLS")]
    pub(crate) tls_key_file: Option<PathBuf>,
    /// Authority whose client certificates are believed, PEM: a proxy that shows one is given the secrets of its namespace
    #[arg(long, alias = "caCertFile", value_name = "FILE", help_heading = "TLS")]
    pub(crate) ca_cert_file: Option<PathBuf>,
    /// For tests: believe proxies of this host who they say they are, and give them the secrets of their namespace.
    /// Needs a --grpc-addr on loopback
    #[arg(long, help_heading = "TLS")]
    pub(crate) insecure_trust_local_proxies: bool,

    /// How long the first change after a quiet time waits for others before it is pushed; changes that follow each other
    /// are pushed together as $PILOT_DEBOUNCE_AFTER and $PILOT_DEBOUNCE_MAX say [default: 2ms, or $PILOT_DEBOUNCE_AFTER if set]
    #[arg(long, value_name = "TIME", help_heading = CONNECTIONS)]
    pub(crate) first_change_wait: Option<Duration>,
    /// Send whole route tables to every proxy, instead of virtual hosts one by one to those that can take them
    #[arg(long, help_heading = CONNECTIONS)]
    pub(crate) whole_route_tables: bool,
    /// Idle time before a connection is probed [default: $GRPC_KEEPALIVE_INTERVAL or 30s]
    #[arg(long, alias = "keepaliveInterval", value_name = "TIME", help_heading = CONNECTIONS)]
    pub(crate) keepalive_interval: Option<Duration>,
    /// How long a probe may go unanswered [default: $GRPC_KEEPALIVE_TIMEOUT or 10s]
    #[arg(long, alias = "keepaliveTimeout", value_name = "TIME", help_heading = CONNECTIONS)]
    pub(crate) keepalive_timeout: Option<Duration>,
    /// Proxies are asked to reconnect after about this time, to spread over replicas [default: never]
    #[arg(long, alias = "keepaliveMaxServerConnectionAge", value_name = "TIME", help_heading = CONNECTIONS)]
    pub(crate) max_connection_age: Option<Duration>,
    /// Longest time to end connections in an orderly way when stopping
    #[arg(long, alias = "shutdownDuration", value_name = "TIME", default_value = "5s", help_heading = CONNECTIONS)]
    pub(crate) shutdown_duration: Duration,

    /// Hold a push back if more than this percentage of all services (of at least 10) would be lost at once; 0 turns it off
    /// [default: $PILOTFISH_LOSS_GUARD or 50]
    #[arg(long, value_name = "PERCENT", help_heading = GUARD)]
    pub(crate) loss_guard: Option<u8>,
    /// How long such a loss must last until it is pushed; `pilotfish request POST /debug/loss_guard` confirms it sooner
    /// [default: $PILOTFISH_LOSS_GUARD_TIME or 30s]
    #[arg(long, value_name = "TIME", help_heading = GUARD)]
    pub(crate) loss_guard_time: Option<Duration>,

    /// Pause between self-audits: each rebuilds a part of what proxies were given from scratch, compares, and repairs and
    /// logs what differs. Takes at most 0.5 % of one core's time, whatever is set here; 0 turns it off
    #[arg(
        long,
        value_name = "TIME",
        default_value = "1m",
        help_heading = "Self-audit"
    )]
    pub(crate) audit_interval: Duration,

    /// Levels by scope: none, error, warn, info, debug, such as `info` or `default:info,ads:debug`
    #[arg(long, alias = "log_output_level", value_name = "LEVELS", default_value = "default:info", help_heading = LOGGING)]
    pub(crate) log_level: String,
    /// One JSON object a line
    #[arg(long, alias = "log_as_json", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false", value_name = "BOOL", help_heading = LOGGING)]
    pub(crate) log_as_json: bool,
    /// stderr or stdout
    #[arg(long, alias = "log_target", value_name = "STREAM", default_value = "stderr", help_heading = LOGGING)]
    pub(crate) log_target: Vec<String>,

    #[command(flatten)]
    pub(crate) later: LaterArgs,
    /// Notes for the log about flags that were given and have no effect; filled in by [`parse`].
    #[arg(skip)]
    pub(crate) notes: Vec<String>,
    /// Whether --secure-grpc-addr was given, not taken from its default; filled in by [`parse`].
    #[arg(skip)]
    pub(crate) secure_given: bool,
    /// Whether istiod's command was used; filled in by [`parse`].
    #[arg(skip)]
    pub(crate) istiod: bool,
}

const ADDRESSES: &str = "Addresses (host:port or :port; empty closes the port)";
const CLUSTER: &str = "Kubernetes";
const CONNECTIONS: &str = "Connections";
const GUARD: &str = "Loss guard";
const LOGGING: &str = "Logging";

/// Flags of istiod that are accepted and do nothing yet, or need nothing done.
#[derive(Debug, Args, Default)]
pub(crate) struct LaterArgs {
    #[arg(long, alias = "ctrlz_port", hide = true)]
    ctrlz_port: Option<u16>,
    #[arg(long, alias = "ctrlz_address", hide = true)]
    ctrlz_address: Option<String>,
    #[arg(long, alias = "clusterRegistriesNamespace", hide = true)]
    cluster_registries_namespace: Option<String>,
    #[arg(long, alias = "cniNamespace", hide = true)]
    cni_namespace: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    profile: Option<bool>,
    #[arg(long, hide = true)]
    tls_cipher_suites: Vec<String>,
    #[arg(long, hide = true)]
    tls_min_version: Option<String>,
    #[arg(long, alias = "kubernetesApiQPS", hide = true)]
    kubernetes_api_qps: Option<f64>,
    #[arg(long, alias = "kubernetesApiBurst", hide = true)]
    kubernetes_api_burst: Option<u32>,
    #[arg(long, alias = "log_caller", hide = true)]
    log_caller: Option<String>,
    #[arg(long, alias = "log_stacktrace_level", hide = true)]
    log_stacktrace_level: Option<String>,
    #[arg(long, hide = true)]
    vklog: Option<String>,
}

/// What is to be said of a flag that has no effect yet, by id.
const LATER: &[(&str, &str)] = &[
    (
        "ctrlz_port",
        "there is no ControlZ; log levels are at /scopez of the monitoring port",
    ),
    (
        "ctrlz_address",
        "there is no ControlZ; log levels are at /scopez of the monitoring port",
    ),
    (
        "cluster_registries_namespace",
        "Secrets that name other clusters are read in --namespace",
    ),
    ("cni_namespace", "nothing here depends on it"),
    ("profile", "there are no profiling pages"),
    (
        "tls_cipher_suites",
        "the TLS library's default suites are used",
    ),
    ("tls_min_version", "TLS 1.2 and 1.3 are spoken"),
    (
        "kubernetes_api_qps",
        "a cluster is read with one watch a kind, which needs no limit",
    ),
    (
        "kubernetes_api_burst",
        "a cluster is read with one watch a kind, which needs no limit",
    ),
    (
        "log_caller",
        "log lines do not name their place in the source",
    ),
    ("log_stacktrace_level", "log lines carry no stack traces"),
    (
        "vklog",
        "--log-level kube:debug shows what is read from a cluster",
    ),
];

/// Who may see the debug pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub(crate) enum DebugAccess {
    /// Only requests from this host, as long as there is no authentication
    #[default]
    Local,
    /// Everybody who can reach the port
    Any,
}

/// Flags of `analyze`.
#[derive(Debug, Args)]
pub(crate) struct AnalyzeArgs {
    /// Directories (read recursively) and files of YAML and JSON; - is standard input. The first wins where two declare
    /// an object
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    /// File with the mesh configuration
    #[arg(long, alias = "meshConfig", value_name = "FILE")]
    pub(crate) mesh_config: Option<PathBuf>,
    /// File with the networks of the mesh
    #[arg(long, alias = "networksConfig", value_name = "FILE")]
    pub(crate) mesh_networks: Option<PathBuf>,
    /// DNS domain of Kubernetes services
    #[arg(long, value_name = "DOMAIN", default_value = "cluster.local")]
    pub(crate) domain: String,
    /// Name of the cluster the control plane serves [default: $CLUSTER_ID or Kubernetes]
    #[arg(long, alias = "clusterID", value_name = "NAME")]
    pub(crate) cluster_id: Option<String>,
    /// Print a JSON array instead of a table
    #[arg(long)]
    pub(crate) json: bool,
    /// The least severity that is shown
    #[arg(long, value_name = "SEVERITY", default_value = "info", value_enum)]
    pub(crate) show: Threshold,
    /// The least severity that makes the command fail
    #[arg(long, value_name = "SEVERITY", default_value = "error", value_enum)]
    pub(crate) fail_on: Threshold,
    /// Leave out findings of this code, such as unused-gateway; give it again for more
    #[arg(long, value_name = "CODE")]
    pub(crate) ignore: Vec<String>,
}

/// How bad a finding must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Threshold {
    /// Errors
    Error,
    /// Warnings and errors
    Warning,
    /// Everything
    Info,
    /// Nothing
    Never,
}

/// Flags of `manifest`.
#[derive(Debug, Args)]
pub(crate) struct ManifestArgs {
    /// Namespace of the control plane
    #[arg(long, short, value_name = "NAME", default_value = "istio-system", value_parser = label)]
    pub(crate) namespace: String,
    /// Make the namespace, too
    #[arg(long)]
    pub(crate) create_namespace: bool,
    /// Revision of the control plane, which becomes a part of all names [default: none]
    #[arg(long, value_name = "NAME", value_parser = label)]
    pub(crate) revision: Option<String>,
    /// Image to run [default: pilotfish:VERSION]
    #[arg(long, value_name = "IMAGE")]
    pub(crate) image: Option<String>,
    /// How many replicas run at least
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) replicas: u32,
    /// How many run at most, when they are busy; the same as --replicas: no autoscaler
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) max_replicas: u32,
    /// Name of the cluster, as proxies and other clusters know it
    #[arg(
        long,
        alias = "clusterID",
        value_name = "NAME",
        default_value = "Kubernetes"
    )]
    pub(crate) cluster_id: String,
    /// Secret with tls.crt and tls.key for xDS over TLS, and ca.crt, the authority of clients [default: no TLS]
    #[arg(long, value_name = "SECRET", value_parser = label)]
    pub(crate) tls_secret: Option<String>,
    /// Read and write these namespaces only, comma-separated, and the one of the control plane: Roles instead of rights in
    /// all namespaces
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = label)]
    pub(crate) namespaced: Vec<String>,
    /// Also print the webhooks for validation and injection. Their servers come with a later release: until then they are
    /// never answered, and the API server is told to go on without them
    #[arg(long)]
    pub(crate) webhooks: bool,
}

/// A name that Kubernetes takes for a namespace, and inside of other names.
fn label(text: &str) -> Result<String, String> {
    let is_inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let ends = [text.bytes().next(), text.bytes().last()];
    let good = text.len() <= 63
        && text.bytes().all(|b| is_inner(b) || b == b'-')
        && ends.iter().all(|end| end.is_some_and(is_inner));
    if good {
        Ok(text.to_owned())
    } else {
        Err("write up to 63 lowercase letters, digits and - between them".to_owned())
    }
}

/// Flags of `request`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pilotfish request GET /debug/syncz
  pilotfish request GET '/debug/config_dump?proxyID=web-0.shop'
  pilotfish request PUT /scopez/ads '{\"output_level\":\"debug\"}'")]
pub(crate) struct RequestArgs {
    /// GET, PUT, POST, …
    pub(crate) method: String,
    /// Path and query, such as /debug/connections
    pub(crate) path: String,
    /// Body to send
    pub(crate) body: Option<String>,
    /// The monitoring port of the server to ask
    #[arg(
        long,
        alias = "monitoringAddr",
        value_name = "ADDR",
        default_value = "127.0.0.1:15014"
    )]
    pub(crate) monitoring_addr: String,
}

/// Flags of `version`.
#[derive(Debug, Args)]
pub(crate) struct VersionArgs {
    /// Only the number
    #[arg(short, long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false", value_name = "BOOL")]
    pub(crate) short: bool,
    /// Print JSON, the same as `-o json`
    #[arg(long)]
    pub(crate) json: bool,
    /// text, json or yaml
    #[arg(short, long, value_name = "FORMAT", value_parser = ["text", "json", "yaml"], default_value = "text")]
    pub(crate) output: String,
}

/// The clap command, with istiod's spellings first in `discovery`.
pub(crate) fn command() -> clap::Command {
    Cli::command().mut_subcommand("discovery", |discovery| {
        discovery.mut_args(|arg| {
            let istiod = arg
                .get_all_aliases()
                .and_then(|all| all.first().map(|&alias| alias.to_owned()));
            match (istiod, arg.get_long().map(str::to_owned)) {
                (Some(istiod), Some(ours)) => arg.long(istiod).alias(ours),
                _ => arg,
            }
        })
    })
}

/// Reads a command line; the error is one to `exit` with.
pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let mut args: Vec<OsString> = args.into_iter().collect();
    let mut notes = Vec::new();
    let matches = loop {
        match command().try_get_matches_from(&args) {
            Ok(matches) => break matches,
            Err(error) => match unknown_flag(&error, &args) {
                Some(at) => notes.push(drop_flag(&mut args, at)),
                None => return Err(error),
            },
        }
    };
    let mut cli = Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command()))?;
    if let (Command::Serve(serve) | Command::Discovery(serve), Some((_, given))) =
        (&mut cli.command, matches.subcommand())
    {
        serve.istiod = matches.subcommand_name() == Some("discovery");
        serve.secure_given = is_given(given, "secure_grpc_addr");
        let later = LATER.iter().filter(|(id, _)| is_given(given, id));
        notes.extend(
            later.map(|(id, why)| format!("--{} has no effect: {why}", id.replace('_', "-"))),
        );
        serve.notes = notes;
    }
    Ok(cli)
}

fn is_given(matches: &ArgMatches, id: &str) -> bool {
    matches.value_source(id) == Some(ValueSource::CommandLine)
}

/// istiod skips flags that it does not know, so that a Deployment survives the removal of one; so does `discovery`.
fn unknown_flag(error: &clap::Error, args: &[OsString]) -> Option<usize> {
    if error.kind() != ErrorKind::UnknownArgument
        || args.get(1).is_none_or(|name| name != "discovery")
    {
        return None;
    }
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    if !flag.starts_with("--") {
        return None;
    }
    let name = |arg: &OsString| arg.to_string_lossy().split('=').next().map(str::to_owned);
    args.iter()
        .position(|arg| name(arg).as_deref() == flag.split('=').next())
}

/// Takes a flag and what seems to be its value off the command line; returns the note for the log.
fn drop_flag(args: &mut Vec<OsString>, at: usize) -> String {
    let flag = args.remove(at).to_string_lossy().into_owned();
    let is_value = |arg: &OsString| !arg.to_string_lossy().starts_with('-');
    if !flag.contains('=') && args.get(at).is_some_and(is_value) {
        args.remove(at);
    }
    let name = flag.split('=').next().unwrap_or(&flag);
    format!("{name} has no effect: neither Pilotfish nor a recent istiod has such a flag")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(args: &[&str]) -> Result<ServeArgs, clap::Error> {
        let args = std::iter::once("pilotfish")
            .chain(args.iter().copied())
            .map(OsString::from);
        match parse(args)?.command {
            Command::Serve(args) | Command::Discovery(args) => Ok(*args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_definition_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn both_spellings_mean_the_same() {
        for command in ["serve", "discovery"] {
            let ours = read(&[
                command,
                "--config-dir",
                "a",
                "--config-dir=b",
                "--grpc-addr",
                ":1",
                "--log-as-json",
            ]);
            let istiod = read(&[
                command,
                "--configDir",
                "a",
                "--configDir=b",
                "--grpcAddr",
                ":1",
                "--log_as_json=true",
            ]);
            for args in [ours.unwrap(), istiod.unwrap()] {
                assert_eq!(args.config_dir, [PathBuf::from("a"), PathBuf::from("b")]);
                assert_eq!(args.grpc_addr, ":1");
                assert!(args.log_as_json);
                assert_eq!(args.notes, Vec::<String>::new());
            }
        }
    }

    #[test]
    fn what_has_no_effect_is_noted() {
        let args = read(&[
            "discovery",
            "--ctrlz_port",
            "1",
            "--cniNamespace",
            "istio-system",
            "--keepaliveMaxServerConnectionAge=30m",
        ]);
        let args = args.unwrap();
        assert_eq!(args.notes.len(), 2);
        assert!(
            args.notes
                .iter()
                .any(|n| n.starts_with("--ctrlz-port has no effect: ")),
            "{:?}",
            args.notes
        );
        assert_eq!(args.max_connection_age, Some(Duration::from_secs(1800)));
        assert!(!args.secure_given);
        for (id, _) in LATER {
            assert!(
                Cli::command()
                    .find_subcommand("serve")
                    .unwrap()
                    .get_arguments()
                    .any(|a| a.get_id() == id),
                "{id}"
            );
        }
    }

    #[test]
    fn unknown_flags_are_errors_except_where_istiod_skips_them() {
        let error = read(&["serve", "--trust-domain=x"]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnknownArgument);
        let args = read(&[
            "discovery",
            "--appNamespace",
            "x",
            "--trust-domain=y",
            "--domain",
            "z",
        ])
        .unwrap();
        assert_eq!(args.domain, "z");
        assert_eq!(args.notes.len(), 2);
    }

    #[test]
    fn discovery_shows_the_spellings_of_istiod() {
        let mut command = command();
        let help = |name: &str, c: &mut clap::Command| {
            c.find_subcommand_mut(name)
                .unwrap()
                .render_long_help()
                .to_string()
        };
        let (serve, discovery) = (help("serve", &mut command), help("discovery", &mut command));
        assert!(
            serve.contains("--config-dir <DIR>") && serve.contains("PILOT_DEBOUNCE_AFTER"),
            "{serve}"
        );
        for flag in [
            "--configDir",
            "--meshConfig",
            "--networksConfig",
            "--secureGRPCAddr",
            "--log_output_level",
        ] {
            assert!(discovery.contains(flag), "{flag}\n{discovery}");
        }
    }
}
