//! The project's examples: stock Envoy accepts everything that each of their proxies is sent.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pilotfish_e2e::backend::{Backend, Identity};
use pilotfish_e2e::client::Client;
use pilotfish_e2e::config::{self, Workspace};
use pilotfish_e2e::control::{ControlPlane, Ports};
use pilotfish_e2e::envoy::{Envoy, Protocol};
use pilotfish_e2e::mesh::{Mesh, Pod};
use pilotfish_e2e::net::Net;
use pilotfish_e2e::netns::Namespace;
use pilotfish_e2e::proxy::{Proxy, Role};
use pilotfish_e2e::{case, tools, wait};

const LOOPBACK: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// The one example whose proxy is not a Pod: the reader starts it by hand.
const TOUR: &str = "tour";

#[test]
fn every_proxy_of_the_examples_is_accepted() {
    let examples = examples().expect("the folder of examples");
    for example in examples.iter().filter(|dir| !dir.ends_with(TOUR)) {
        case::run(|workspace| {
            accepted(workspace, example).with_context(|| example.display().to_string())
        });
    }
}

fn examples() -> Result<Vec<PathBuf>> {
    let folder = tools::workspace().join("examples");
    let mut dirs = Vec::new();
    for entry in fs::read_dir(&folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            dirs.push(entry.path());
        }
    }
    dirs.sort();
    ensure!(!dirs.is_empty(), "no examples in {}", folder.display());
    Ok(dirs)
}

fn accepted(workspace: &Workspace, example: &Path) -> Result<()> {
    let mut proxies = Vec::new();
    for object in config::objects(example)? {
        if object["kind"] == "Pod" {
            proxies.extend(Proxy::of_pod(&object)?);
        }
    }
    ensure!(!proxies.is_empty(), "an example without a proxy");
    workspace.copy(example, str::to_owned)?;
    let mesh = Mesh::serve(workspace)?;
    for protocol in [Protocol::Sotw, Protocol::Delta] {
        // All at once, as a mesh starts; then each is waited for.
        let pods: Vec<Pod> = proxies
            .iter()
            .map(|proxy| mesh.launch(proxy, protocol))
            .collect::<Result<_>>()?;
        for (proxy, mut pod) in proxies.iter().zip(pods) {
            pod.envoy
                .wait_configured()
                .with_context(|| format!("{} {protocol:?}", proxy.name))?;
            let admin = pod.envoy.admin();
            // Listeners that wait for their routes are not served yet: nothing may be left warming.
            wait::until("nothing warming", Duration::from_secs(5), || {
                let warming = admin.sum("total_listeners_warming$|warming_clusters$")?;
                ensure!(warming == 0, "{warming} listeners or clusters are warming");
                Ok(())
            })?;
            let rejected = admin.stats("update_rejected$")?;
            ensure!(
                rejected.values().all(|count| *count == 0),
                "{} {protocol:?} rejected {rejected:?}",
                proxy.name
            );
            let (listeners, clusters) = (
                admin.sum("total_listeners_active$")?,
                admin.sum("cluster_manager.active_clusters$")?,
            );
            ensure!(listeners > 0, "{} {protocol:?} has no listener", proxy.name);
            eprintln!(
                "{} {protocol:?}: {listeners} listeners, {clusters} clusters, nothing rejected",
                proxy.name
            );
        }
    }
    Ok(())
}

/// The tour of the README works as it is written: the same bootstrap, the same ports.
#[test]
fn the_tour_works_as_written() {
    case::run(tour);
}

fn tour(workspace: &Workspace) -> Result<()> {
    let tour = tools::workspace().join("examples").join(TOUR);
    let bootstrap = fs::read_to_string(tour.join("envoy.yaml"))?;
    let readme = fs::read_to_string(tools::workspace().join("README.md"))?;
    let mesh = fs::read_to_string(tour.join("mesh/hello.yaml"))?;
    ensure!(
        readme.contains(&bootstrap),
        "README.md and {TOUR}/envoy.yaml differ"
    );
    ensure!(
        readme.contains(&mesh),
        "README.md and {TOUR}/mesh/hello.yaml differ"
    );

    // A namespace with nothing but loopback is as good as the reader's machine, and all its ports are free.
    let net = Net::Inside(Arc::new(Namespace::new("tour")?));
    workspace.write("hello.yaml", &mesh)?;
    let control = ControlPlane::start(
        &net,
        LOOPBACK,
        Ports::ISTIOD,
        &workspace.config(),
        &workspace.logs(),
    )?;
    let _hello = Backend::start(
        &net,
        (LOOPBACK, 9000),
        Identity::new("hello", "v1", "hello-1"),
    )?;
    let bootstrap = serde_saphyr::from_str(&bootstrap)?;
    let admin = SocketAddr::from((LOOPBACK, 15000));
    let mut envoy = Envoy::start_with(
        "tour",
        &bootstrap,
        &net,
        Role::Router,
        admin,
        &workspace.logs(),
    )?;
    envoy.wait_configured()?;
    let response = Client::new(&net, (LOOPBACK, 10000), "hello.example").get("/")?;
    ensure!(
        response.status == 200 && response.json()["instance"] == "hello-1",
        "{response:?}"
    );
    let (from, to) = ("hosts: [hello.example]", "hosts: [hi.example]");
    let renames = readme.contains(r"sed -i 's/hosts: \[hello.example\]/hosts: [hi.example]/'");
    ensure!(
        renames && mesh.contains(from),
        "README.md renames another host"
    );
    workspace.write("hello.yaml", &mesh.replace(from, to))?;
    for (host, status) in [("hi.example", 200), ("hello.example", 404)] {
        wait::until(host, Duration::from_secs(5), || {
            let answer = Client::new(&net, (LOOPBACK, 10000), host).get("/")?;
            ensure!(answer.status == status, "answers {}", answer.status);
            Ok(())
        })?;
    }
    ensure!(envoy.admin().rejected()? == 0);
    drop(control);
    Ok(())
}
