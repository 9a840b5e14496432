//! What `pilotfish manifest` prints: a real API server takes it, and it gives the rights that are needed, and no others.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use pilotfish_e2e::config::Workspace;
use pilotfish_e2e::control::{ControlPlane, Options, Ports};
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

#[test]
fn an_installation_has_the_rights_it_needs() {
    case::on_loopback(|workspace| {
        let server = KubeServer::start(&Net::Host, "kube", workspace)?;
        let admin = server.admin()?;
        admin.install_crds(&tools::crds()?)?;
        for (namespace, address) in [("shop", 1), ("bank", 2)] {
            admin.apply(&service(namespace, address))?;
        }
        whole_cluster(workspace, &server, &admin).context("of the whole cluster")?;
        some_namespaces(workspace, &server, &admin).context("of some namespaces")
    });
}

fn service(namespace: &str, address: u8) -> String {
    format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: web, namespace: {namespace}}}, \
         spec: {{clusterIP: 10.96.9.{address}, ports: [{{name: http, port: 80}}]}}}}"
    )
}

/// Applies what the command prints, in its order, without anybody's help.
fn install(admin: &KubeClient, flags: &[&str]) -> Result<Vec<Value>> {
    let output = Command::new(tools::pilotfish()?)
        .arg("manifest")
        .args(flags)
        .output()?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr));
    }
    let text = String::from_utf8(output.stdout)?;
    let objects: Vec<Value> = serde_saphyr::from_multiple(&text)?;
    for object in &objects {
        admin.apply_strictly(object)?;
    }
    Ok(objects)
}

/// A control plane with the token of the account that the manifest made.
fn run(
    workspace: &Workspace,
    kubeconfig: &Path,
    flags: &[&str],
) -> Result<(ControlPlane, BTreeMap<String, String>)> {
    let mut all = vec!["--kubeconfig".to_owned(), kubeconfig.display().to_string()];
    all.extend(flags.iter().map(|flag| (*flag).to_owned()));
    let options = Options {
        flags: all,
        environment: BTreeMap::new(),
    };
    let ports = Ports::free(&Net::Host)?;
    let place = Ipv4Addr::LOCALHOST;
    let mut plane =
        ControlPlane::launch(&Net::Host, place, ports, None, &workspace.logs(), options)?;
    plane.wait_ready()?;
    let page = plane.page("/debug/kubernetes")?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let watches = page.as_array().context("a list of watches")?.iter();
    let states = watches
        .map(|watch| (text(&watch["resource"]), text(&watch["state"])))
        .collect();
    Ok((plane, states))
}

/// Whether a sidecar is given the service of a namespace.
fn has(plane: &ControlPlane, namespace: &str) -> Result<bool> {
    let node = Proxy::sidecar("shop", "client", "client", Ipv4Addr::new(10, 0, 0, 9)).node();
    let cluster = format!("outbound|80||web.{namespace}.svc.cluster.local");
    Ok(xds::dump(plane.xds(), &node)?.contains_key(&("Cluster", cluster)))
}

fn whole_cluster(workspace: &Workspace, server: &KubeServer, admin: &KubeClient) -> Result<()> {
    let flags = [
        "--create-namespace",
        "--webhooks",
        "--tls-secret",
        "istiod-tls",
    ];
    let objects = install(admin, &flags)?;
    eprintln!("{} objects were taken", objects.len());
    // The same again changes nothing that cannot be changed.
    install(admin, &flags)?;
    let user = User {
        name: "istiod".to_owned(),
        token: server.token("istio-system", "istiod", &[])?,
    };
    let (authority, port) = (Authority::new()?, Net::Host.free_port()?);
    let secure = authority.flags(&workspace.place("tls"), port)?;
    let mut flags = vec!["--revision", "default"];
    flags.extend(secure.iter().map(String::as_str));
    let (mut plane, states) = run(workspace, &server.kubeconfig(&user)?, &flags)?;
    let (live, other): (Vec<_>, Vec<_>) = states.iter().partition(|(_, state)| *state == "live");
    eprintln!("live: {}, other: {other:?}", live.len());
    ensure!(
        other.iter().all(|(_, state)| *state == "absent"),
        "{other:?}"
    );
    ensure!(live.len() > 20, "{states:?}");
    ensure!(has(&plane, "shop")? && has(&plane, "bank")?);
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    tokens(server, admin, &authority, address).context("tokens of service accounts")?;
    plane.stop()?;

    let client = server.client(&user)?;
    allowed(&client, "istio-system", "shop")?;
    // Some of what istiod may do, and we need not.
    refused(&client, "GET", "/api/v1/serviceaccounts")?;
    refused(&client, "GET", "/api/v1/endpoints")?;
    refused(&client, "GET", "/apis/apps/v1/deployments")?;
    refused(&client, "DELETE", "/api/v1/namespaces/shop/services/web")?;
    refused(
        &client,
        "DELETE",
        "/api/v1/namespaces/istio-system/secrets/any",
    )?;
    let lease = lease("shop");
    let path = "/apis/coordination.k8s.io/v1/namespaces/shop/leases";
    ensure!(
        client.create(path, &lease)?.status == 403,
        "a lease elsewhere"
    );
    Ok(())
}

/// Whoever shows a token is who the API server says; with the rights of the installation, over TLS.
fn tokens(
    server: &KubeServer,
    admin: &KubeClient,
    authority: &Authority,
    address: SocketAddr,
) -> Result<()> {
    admin
        .apply("{apiVersion: v1, kind: ServiceAccount, metadata: {name: web, namespace: shop}}")?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let ask = |token: Option<&str>, page: &str| -> Result<(Code, String)> {
        let question = DiscoveryRequest {
            type_url: "istio.io/debug".to_owned(),
            resource_names: vec![page.to_owned()],
            ..DiscoveryRequest::default()
        };
        let bearer = token.map(|token| format!("Bearer {token}"));
        let headers = bearer.iter().map(|bearer| ("authorization", &**bearer));
        let headers: Vec<_> = headers.collect();
        let answer = runtime.block_on(async {
            let channel = authority.channel(address, None).await?;
            anyhow::Ok(xds::ask_with(channel, question, &headers).await)
        })?;
        Ok(match answer {
            Ok(_) => (Code::Ok, String::new()),
            Err(status) => (status.code(), status.message().to_owned()),
        })
    };
    let ca = &["istio-ca"];
    let own = server.token("istio-system", "istiod", ca)?;
    let other = server.token("shop", "web", &["elsewhere", "istio-ca"])?;
    let page = "config_dump?proxyID=none";
    for (token, page, expected) in [
        (&own, "registryz", Code::Ok),
        (&own, "registryz", Code::Ok),
        (&other, page, Code::Ok),
        (&other, "registryz", Code::PermissionDenied),
    ] {
        let (code, said) = ask(Some(token), page)?;
        ensure!(code == expected, "{page}: {code:?} {said}");
    }
    // Meant for the API server, or for somebody else; not a token; changed by somebody; none at all.
    let changed = own.replacen('.', ".e", 1);
    for wrong in [
        Some(server.token("istio-system", "istiod", &[])?),
        Some(server.token("istio-system", "istiod", &["elsewhere"])?),
        Some("nonsense".to_owned()),
        Some(String::new()),
        Some(changed),
        None,
    ] {
        let (code, said) = ask(wrong.as_deref(), "registryz")?;
        ensure!(code == Code::Unauthenticated, "{wrong:?}: {code:?} {said}");
        ensure!(said.contains("authentication"), "{said}");
    }
    Ok(())
}

fn some_namespaces(workspace: &Workspace, server: &KubeServer, admin: &KubeClient) -> Result<()> {
    let flags = [
        "--namespace",
        "lean-system",
        "--create-namespace",
        "--revision",
        "lean",
    ];
    let mut all = flags.to_vec();
    all.extend(["--namespaced", "shop"]);
    install(admin, &all)?;
    let user = User {
        name: "istiod-lean".to_owned(),
        token: server.token("lean-system", "istiod-lean", &[])?,
    };
    let flags = [
        "-n",
        "lean-system",
        "--revision",
        "lean",
        "--namespaces",
        "shop",
        "--secure-grpc-addr",
        "",
    ];
    let (mut plane, states) = run(workspace, &server.kubeconfig(&user)?, &flags)?;
    let forbidden = |(_, state): &(&String, &String)| !["live", "absent"].contains(&state.as_str());
    let wrong: Vec<_> = states.iter().filter(forbidden).collect();
    ensure!(wrong.is_empty(), "{wrong:?}");
    ensure!(states["Secret of shop"] == "live", "{states:?}");
    ensure!(states["Secret of lean-system"] == "live", "{states:?}");
    ensure!(has(&plane, "shop")?, "a namespace that is read");
    ensure!(!has(&plane, "bank")?, "a namespace that is not");
    // It follows what happens there.
    admin.remove("v1", "Service", "shop", "web")?;
    wait::until("the service is gone", SOON, || {
        ensure!(!has(&plane, "shop")?);
        Ok(())
    })?;
    plane.stop()?;

    let client = server.client(&user)?;
    allowed(&client, "lean-system", "shop")?;
    for path in [
        "/api/v1/secrets",
        "/api/v1/namespaces/bank/secrets",
        "/api/v1/namespaces/bank/pods",
    ] {
        refused(&client, "GET", path)?;
    }
    let elsewhere = "/apis/networking.istio.io/v1/namespaces/bank/serviceentries/none/status";
    let entry = json!({"apiVersion": "networking.istio.io/v1", "kind": "ServiceEntry",
        "metadata": {"name": "none", "namespace": "bank"}, "status": {"conditions": []}});
    ensure!(
        client.patch(elsewhere, &entry)?.status == 403,
        "a status elsewhere"
    );
    Ok(())
}

fn refused(client: &KubeClient, method: &str, path: &str) -> Result<()> {
    let answer = match method {
        "DELETE" => client.delete(path)?,
        _ => client.get(path)?,
    };
    ensure!(answer.status == 403, "{method} {path}: {}", answer.status);
    Ok(())
}

fn lease(namespace: &str) -> Value {
    json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "pilotfish-test", "namespace": namespace},
        "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15}})
}

/// What writers do, with the control plane in one namespace and a workload in another.
fn allowed(client: &KubeClient, own: &str, other: &str) -> Result<()> {
    let ok = |what: &str, answer: Result<pilotfish_e2e::kube::client::Answer>| -> Result<()> {
        answer?.ok().map(drop).with_context(|| what.to_owned())
    };
    let leases = format!("/apis/coordination.k8s.io/v1/namespaces/{own}/leases");
    ok("make a lease", client.create(&leases, &lease(own)))?;
    ok("read it", client.get(&format!("{leases}/pilotfish-test")))?;

    let event = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": {"generateName": "web-", "namespace": other},
        "regarding": {"kind": "Service", "namespace": other, "name": "web"},
        "eventTime": "2026-01-01T00:00:00.000000Z", "action": "Test", "reason": "Test", "note": "x", "type": "Warning",
        "reportingController": "pilotfish", "reportingInstance": "me"});
    let events = format!("/apis/events.k8s.io/v1/namespaces/{other}/events");
    ok("report", client.create(&events, &event))?;

    // One that is not there is not found by those who may write it.
    let networking = format!("/apis/networking.istio.io/v1/namespaces/{other}");
    let entry = json!({"apiVersion": "networking.istio.io/v1", "kind": "ServiceEntry",
        "metadata": {"name": "none", "namespace": other}, "status": {"conditions": []}});
    let answer = client.patch(&format!("{networking}/serviceentries/none/status"), &entry)?;
    ensure!(answer.status == 404, "a status: {}", answer.status);

    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "stray", "namespace": other}});
    let stray = client.patch(
        &format!("/api/v1/namespaces/{other}/configmaps/stray"),
        &map,
    )?;
    ensure!(stray.status == 403, "a ConfigMap: {}", stray.status);
    let stray = client.patch(&format!("{networking}/serviceentries/none"), &entry)?;
    ensure!(
        stray.status == 403,
        "a whole ServiceEntry: {}",
        stray.status
    );
    Ok(())
}
