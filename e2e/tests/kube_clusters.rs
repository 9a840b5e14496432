//! Other clusters come, get new credentials and go, while a proxy watches: no endpoint is ever missing, and nobody is told
//! anything that has not changed.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use pilotfish_e2e::config::Workspace;
use pilotfish_e2e::control::{ControlPlane, Options, Ports};
use pilotfish_e2e::endpoints::{Told, Watcher};
use pilotfish_e2e::kube::client::KubeClient;
use pilotfish_e2e::kube::{KubeServer, User};
use pilotfish_e2e::net::Net;
use pilotfish_e2e::proxy::Proxy;
use pilotfish_e2e::tls::Authority;
use pilotfish_e2e::wait::SOON;
use pilotfish_e2e::{case, tools, wait, xds};
use pilotfish_protos::envoy::service::discovery::v3::DiscoveryRequest;
use serde_json::{Value, json};
use tonic::Code;

const ROTATIONS: usize = 20;
const CLUSTER: &str = "outbound|80||web.shop.svc.cluster.local";
/// What a control plane reads of other clusters.
const RULES: &str = "[{apiGroups: [''], resources: [namespaces, nodes, services, pods, secrets, configmaps], verbs: [get, list, watch]}, \
                     {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [get, list, watch]}, \
                     {apiGroups: [networking.istio.io], resources: [workloadentries], verbs: [get, list, watch]}, \
                     {apiGroups: [apiextensions.k8s.io], resources: [customresourcedefinitions], verbs: [get, list, watch]}, \
                     {apiGroups: [authentication.k8s.io], resources: [tokenreviews], verbs: [create]}]";

#[test]
fn clusters_come_change_and_go() {
    case::on_loopback(come_change_and_go);
}

/// A control plane at home that also listens with TLS.
fn launch(
    workspace: &Workspace,
    kubeconfig: &Path,
    timeout: &str,
    (authority, port): (&Authority, u16),
) -> Result<ControlPlane> {
    let mut flags = vec!["--kubeconfig".to_owned(), kubeconfig.display().to_string()];
    let more = [
        "--kube-writes",
        "none",
        "--cluster-id",
        "home",
        "--cluster-aliases",
        "wild=west",
    ];
    flags.extend(more.map(str::to_owned));
    flags.extend(authority.flags(&workspace.place(&format!("tls-{port}")), port)?);
    let variable = (
        "PILOT_REMOTE_CLUSTER_TIMEOUT".to_owned(),
        timeout.to_owned(),
    );
    let options = Options {
        flags,
        environment: BTreeMap::from([variable]),
    };
    let ports = Ports::free(&Net::Host)?;
    let logs = workspace.logs();
    ControlPlane::launch(&Net::Host, Ipv4Addr::LOCALHOST, ports, None, &logs, options)
}

/// A service of one pod, in a region.
fn mesh(vip: &str, pod: &str, region: &str) -> Vec<Value> {
    let namespace =
        |name: &str| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    vec![
        namespace("istio-system"),
        namespace("shop"),
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": {"topology.kubernetes.io/region": region}}}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"clusterIP": vip, "selector": {"app": "web"}, "ports": [{"name": "tcp-web", "port": 80}]}}),
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web-1", "namespace": "shop", "labels": {"app": "web"}},
            "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "c"}]},
            "status": {"phase": "Running", "podIP": pod, "podIPs": [{"ip": pod}], "conditions": [{"type": "Ready", "status": "True"}]}}),
        slice(&[pod]),
    ]
}

fn slice(pods: &[&str]) -> Value {
    let endpoint = |(number, pod): (usize, &&str)| {
        // Only the first is a pod that there is.
        let reference = json!({"kind": "Pod", "name": "web-1", "namespace": "shop"});
        let mut endpoint = json!({"addresses": [pod], "conditions": {"ready": true}});
        if number == 0 {
            endpoint["targetRef"] = reference;
        }
        endpoint
    };
    let endpoints: Vec<Value> = pods.iter().enumerate().map(endpoint).collect();
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": "web-s", "namespace": "shop", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4", "ports": [{"name": "tcp-web", "port": 80, "protocol": "TCP"}], "endpoints": endpoints})
}

fn secret(name: &str, data: &[(&str, &[u8])]) -> Value {
    let data: BTreeMap<&str, String> = data
        .iter()
        .map(|(cluster, text)| (*cluster, BASE64_STANDARD.encode(text)))
        .collect();
    json!({"apiVersion": "v1", "kind": "Secret", "data": data,
        "metadata": {"name": name, "namespace": "istio-system", "labels": {"istio/multiCluster": "true"}}})
}

/// Names another cluster, with a token that was never used before.
fn name_cluster(home: &KubeClient, west: &KubeServer) -> Result<()> {
    let reader = west.user("reader", RULES)?;
    let kubeconfig = fs::read(west.kubeconfig(&reader)?)?;
    home.apply_objects(vec![secret("west-secret", &[("west", &kubeconfig)])])?;
    Ok(())
}

fn sidecar(cluster: &str, address: Ipv4Addr) -> Value {
    let mut node = Proxy::sidecar("shop", "client", "client", address).node();
    node["metadata"]["CLUSTER_ID"] = cluster.into();
    node
}

fn told(all: &[&str]) -> Told {
    all.iter().map(|text| (*text).to_owned()).collect()
}

fn wait_told(watcher: &Watcher, what: &str, all: &[&str]) -> Result<()> {
    wait::until(what, SOON, || {
        let last = watcher.last()?;
        ensure!(last == told(all), "{last:?}");
        Ok(())
    })
}

/// Codes and texts of what is wrong.
fn findings(plane: &ControlPlane) -> Result<Vec<(String, String)>> {
    let page = plane.page("/debug/diagnostics")?;
    let all = page.as_array().context("a list of findings")?.iter();
    let code = |finding: &Value| finding["code"].as_str().unwrap_or_default().to_owned();
    Ok(all
        .map(|finding| (code(finding), finding.to_string()))
        .collect())
}

/// When each watch of a cluster came to its state, if all are as they should be.
fn live_since(plane: &ControlPlane, cluster: &str) -> Result<Vec<String>> {
    let page = plane.page("/debug/kubernetes")?;
    let all = page.as_array().context("a list of watches")?.iter();
    let mut since = Vec::new();
    for watch in all.filter(|watch| watch["cluster"] == cluster) {
        // The other cluster has no CRDs at first.
        let absent = watch["state"] == "absent" && watch["resource"] == "WorkloadEntry";
        ensure!(watch["state"] == "live" || absent, "{watch}");
        since.push(watch["since"].as_str().unwrap_or_default().to_owned());
    }
    Ok(since)
}

/// The state of a cluster on istiod's page.
fn sync_status(plane: &ControlPlane, cluster: &str) -> Result<String> {
    let page = plane.page("/debug/clusterz")?;
    let mut all = page.as_array().context("a list of clusters")?.iter();
    let found = all.find(|shown| shown["id"] == cluster);
    let status = found.map(|shown| shown["syncStatus"].as_str().unwrap_or_default());
    Ok(status.unwrap_or("none").to_owned())
}

fn pushes(plane: &ControlPlane) -> Result<u64> {
    let page = plane.page("/debug/push_status")?;
    page["total"].as_u64().context("a number of pushes")
}

fn resident_kb(plane: &mut ControlPlane) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", plane.process().pid()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    Ok(number.context("VmRSS")?.parse()?)
}

fn come_change_and_go(workspace: &Workspace) -> Result<()> {
    let home = KubeServer::start(&Net::Host, "home", workspace)?;
    let mut west = KubeServer::start(&Net::Host, "west", workspace)?;
    let (admin, abroad) = (home.admin()?, west.admin()?);
    admin.apply_objects(mesh("10.96.9.1", "10.0.0.1", "here"))?;
    abroad.apply_objects(mesh("10.96.9.2", "10.8.0.1", "there"))?;
    let kubeconfig = home.kubeconfig(&User::admin())?;
    let (authority, port) = (Authority::new()?, Net::Host.free_port()?);
    let mut plane = launch(workspace, &kubeconfig, "5s", (&authority, port))?;
    plane.wait_ready()?;
    let node = sidecar("home", Ipv4Addr::new(10, 0, 0, 9));
    let watcher = Watcher::open(plane.xds(), &node, CLUSTER)?;
    wait_told(&watcher, "the endpoint at home", &["10.0.0.1 here"])?;

    name_cluster(&admin, &west)?;
    let both = ["10.0.0.1 here", "10.8.0.1 there"];
    wait_told(&watcher, "the endpoints of both clusters", &both)?;
    ensure!(sync_status(&plane, "west")? == "synced");
    ensure!(sync_status(&plane, "home")? == "synced");
    // Each sees the address of its own cluster.
    for (cluster, own, other) in [("home", 1, 2), ("west", 2, 1), ("wild", 2, 1)] {
        let all = xds::dump(plane.xds(), &sidecar(cluster, Ipv4Addr::new(10, 9, 0, 9)))?;
        let has = |vip: u8| all.contains_key(&("Listener", format!("10.96.9.{vip}_80")));
        ensure!(has(own) && !has(other), "{cluster}: {:?}", all.keys());
    }

    tokens(&authority, port, &home, &west)?;

    // One rotation before anything is measured: it makes what every later one reuses.
    let mut before = live_since(&plane, "west")?;
    let kinds = before.len();
    let mut rotate = |plane: &ControlPlane| -> Result<()> {
        name_cluster(&admin, &west)?;
        let newest = before.iter().max().cloned().unwrap_or_default();
        before = wait::until("the new connection is in use", SOON, || {
            let since = live_since(plane, "west")?;
            let fresh = since.iter().all(|since| *since > newest);
            ensure!(fresh && since.len() == kinds, "{since:?} after {newest}");
            Ok(since)
        })?;
        Ok(())
    };
    rotate(&plane)?;
    let (pushed, resident) = (pushes(&plane)?, resident_kb(&mut plane)?);
    let began = Instant::now();
    for _ in 0..ROTATIONS {
        rotate(&plane)?;
    }
    let (took, after) = (began.elapsed(), resident_kb(&mut plane)?);
    eprintln!("{ROTATIONS} rotations in {took:?}; {resident} kB before, {after} kB after");
    ensure!(pushes(&plane)? == pushed, "an unchanged object was pushed");
    ensure!(after < resident + 16_384, "{resident} kB became {after} kB");
    // The last connection is a live one.
    abroad.apply_objects(vec![slice(&["10.8.0.1", "10.8.0.2"])])?;
    let three = ["10.0.0.1 here", "10.8.0.1 there", "10.8.0.2 "];
    wait_told(&watcher, "the new endpoint abroad", &three)?;
    let all = watcher.all()?;
    let first = all
        .iter()
        .position(|told| told.len() == 2)
        .context("both")?;
    let kept = |told: &Told| both.iter().all(|endpoint| told.contains(*endpoint));
    ensure!(
        all[first..].iter().all(kept),
        "an endpoint was missing: {all:?}"
    );

    bad_secrets(&admin, &plane)?;
    wait_told(&watcher, "nothing is lost by bad Secrets", &three)?;
    trust_domain(&abroad, &plane)?;
    workload_entry(&abroad, &watcher, &three)?;

    // What is known of a server that is away stays, as long as the Secret does.
    west.kill_api();
    let another = Net::Host.free_port()?;
    let mut late = launch(workspace, &kubeconfig, "2s", (&authority, another))?;
    late.wait_ready()?;
    ensure!(sync_status(&late, "west")? == "timeout");
    ensure!(
        findings(&late)?
            .iter()
            .any(|(code, _)| code == "cluster-timeout")
    );
    let down =
        |(code, text): &(String, String)| code == "watch-down" && text.contains("cluster west");
    wait::until("a finding about the server that is away", SOON, || {
        ensure!(findings(&plane)?.iter().any(down));
        Ok(())
    })?;
    ensure!(watcher.last()? == told(&three));
    for name in ["west-secret", "bad"] {
        admin.remove("v1", "Secret", "istio-system", name)?;
    }
    wait_told(&watcher, "the cluster is gone", &["10.0.0.1 here"])?;
    ensure!(sync_status(&plane, "west")? == "none");
    ensure!(!findings(&plane)?.iter().any(down));
    Ok(())
}

/// A token is worth something where it is from: the server of the cluster that its bearer names is asked.
fn tokens(authority: &Authority, port: u16, home: &KubeServer, west: &KubeServer) -> Result<()> {
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": "operator", "namespace": "istio-system"}});
    let token = |server: &KubeServer| -> Result<String> {
        server.admin()?.apply_objects(vec![account.clone()])?;
        let token = server.token("istio-system", "operator", &["istio-ca"])?;
        Ok(format!("Bearer {token}"))
    };
    let (ours, theirs) = (token(home)?, token(west)?);
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    for (token, cluster, accepted) in [
        (&ours, "home", true),
        (&theirs, "west", true),
        (&theirs, "wild", true),
        (&theirs, "home", false),
        (&ours, "west", false),
        (&theirs, "nowhere", false),
    ] {
        let answer = runtime.block_on(async {
            let channel = authority.channel(address, None).await?;
            let question = DiscoveryRequest {
                type_url: "istio.io/debug/syncz".to_owned(),
                ..DiscoveryRequest::default()
            };
            let headers = [("authorization", token.as_str()), ("clusterid", cluster)];
            anyhow::Ok(xds::ask_with(channel, question, &headers).await)
        })?;
        match answer {
            Ok(_) => ensure!(
                accepted,
                "{cluster}: a token of another cluster is accepted"
            ),
            Err(status) => ensure!(
                !accepted && status.code() == Code::Unauthenticated,
                "{cluster}: {status}"
            ),
        }
    }
    Ok(())
}

/// The identities of workloads abroad are of the trust domain that their own cluster says.
fn trust_domain(abroad: &KubeClient, plane: &ControlPlane) -> Result<()> {
    let node = sidecar("home", Ipv4Addr::new(10, 9, 0, 9));
    let trusts = |domain: &str, wanted: bool| -> Result<()> {
        wait::until(&format!("{domain}: {wanted}"), SOON, || {
            let all = xds::dump(plane.xds(), &node)?;
            let cluster = all.get(&("Cluster", CLUSTER.to_owned()));
            let text = String::from_utf8_lossy(cluster.context("the cluster")?);
            let named = text.contains(&format!("spiffe://{domain}/ns/shop/sa/"));
            ensure!(named == wanted, "{text}");
            Ok(())
        })
    };
    trusts("west.example", false)?;
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "istio", "namespace": "istio-system"},
        "data": {"mesh": "trustDomain: west.example"}});
    abroad.apply_objects(vec![map])?;
    trusts("west.example", true)?;
    trusts("cluster.local", true)?;
    abroad.remove("v1", "ConfigMap", "istio-system", "istio")?;
    trusts("west.example", false)
}

/// A WorkloadEntry abroad is an endpoint of the Service there, as soon as there can be one.
fn workload_entry(abroad: &KubeClient, watcher: &Watcher, before: &[&str]) -> Result<()> {
    abroad.install_crds(&tools::crds()?)?;
    let entry = json!({"apiVersion": "networking.istio.io/v1", "kind": "WorkloadEntry", "metadata": {"name": "vm", "namespace": "shop"},
        "spec": {"address": "10.8.0.9", "labels": {"app": "web"}, "locality": "outside/z"}});
    abroad.apply_objects(vec![entry])?;
    let with: Vec<&str> = before.iter().copied().chain(["10.8.0.9 outside"]).collect();
    wait_told(watcher, "the workload outside of the cluster", &with)?;
    abroad.remove("networking.istio.io/v1", "WorkloadEntry", "shop", "vm")?;
    wait_told(watcher, "it is gone", before)
}

/// Secrets that cannot be used are findings that name them, and show nothing of them.
fn bad_secrets(admin: &KubeClient, plane: &ControlPlane) -> Result<()> {
    let exec = json!({"current-context": "c", "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "hunter2"}}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]});
    let exec = exec.to_string();
    let data: [(&str, &[u8]); 4] = [
        ("broken", b"hunter2: ["),
        ("program", exec.as_bytes()),
        ("west", b"hunter2"),
        ("home", b"hunter2"),
    ];
    admin.apply_objects(vec![secret("bad", &data)])?;
    let found = wait::until("findings about the Secret", SOON, || {
        let mut found = findings(plane)?;
        found.retain(|(_, text)| text.contains("Secret/istio-system/bad"));
        ensure!(found.len() == data.len(), "{found:?}");
        Ok(found)
    })?;
    let mut codes: Vec<&str> = found.iter().map(|(code, _)| code.as_str()).collect();
    codes.sort_unstable();
    let expected = [
        "bad-kubeconfig",
        "bad-kubeconfig",
        "duplicate-cluster",
        "own-cluster",
    ];
    ensure!(codes == expected, "{codes:?}");
    ensure!(
        !found.iter().any(|(_, text)| text.contains("hunter2")),
        "{found:?}"
    );
    ensure!(
        found.iter().any(|(_, text)| text.contains("exec")),
        "{found:?}"
    );
    Ok(())
}
