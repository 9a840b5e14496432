//! What istioctl asks over xDS, asked by a client of our own: what is answered, to whom, and what is not.

use std::fs;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pilotfish_e2e::config::Workspace;
use pilotfish_e2e::control::{ControlPlane, Options, Ports};
use pilotfish_e2e::net::Net;
use pilotfish_e2e::proxy::Proxy;
use pilotfish_e2e::tls::Authority;
use pilotfish_e2e::{case, xds};
use pilotfish_protos::envoy::admin::v3::ClustersConfigDump;
use pilotfish_protos::envoy::config::cluster::v3::Cluster;
use pilotfish_protos::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use pilotfish_protos::envoy::service::status::v3::client_config::GenericXdsConfig;
use pilotfish_protos::envoy::service::status::v3::{ClientConfig, ConfigStatus};
use prost::Message as _;
use serde_json::Value;
use tonic::transport::Endpoint;
use tonic::{Code, Status};

const SERVICE: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\n\
                       spec: {clusterIP: 10.96.9.1, ports: [{name: http, port: 80}]}\n";

type Answered = Result<DiscoveryResponse, Status>;

#[test]
fn questions_of_this_host() {
    case::on_loopback(|workspace| {
        let plane = start(workspace, None)?;
        let proxies = [proxy(&plane, "shop")?, proxy(&plane, "bank")?];
        let address = plane.xds();
        block(async {
            let ask = async |type_url: &str, names: &[&str]| {
                let channel = Endpoint::from_shared(format!("http://{address}"))?;
                anyhow::Ok(xds::ask(channel.connect().await?, question(type_url, names)).await)
            };
            // Their last answers are on the way yet.
            let mut answer = ask("istio.io/debug/syncz", &[]).await??;
            for _ in 0..100 {
                if statuses(&answer)?
                    .iter()
                    .all(|status| *status == ConfigStatus::Synced)
                {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
                answer = ask("istio.io/debug/syncz", &[]).await??;
            }
            ensure!(
                proxies_of(&answer)? == ["client.bank", "client.shop"],
                "{answer:?}"
            );
            let identifier = answer.control_plane.context("who answers")?.identifier;
            let who: Value = serde_json::from_str(&identifier)?;
            ensure!(
                who["Component"] == "istiod" && who["ID"] == "replica-7",
                "{who}"
            );
            let shown = ClientConfig::decode(&*answer.resources[1].value)?;
            for config in &shown.generic_xds_configs {
                let synced = i32::from(ConfigStatus::Synced);
                ensure!(config.config_status == synced, "{config:?}");
                ensure!(config.last_updated.is_some(), "{config:?}");
            }
            ensure!(shown.generic_xds_configs.len() >= 2, "{shown:?}");

            let dump = ask("istio.io/debug/config_dump", &["client.shop"]).await??;
            ensure!(clusters(&dump)? == sent(&proxies[0]), "as it was sent");
            let none = ask("istio.io/debug/config_dump", &["nobody.shop"]).await??;
            ensure!(none.resources.is_empty(), "a proxy that is not here");
            for names in [&[][..], &["a", "b"]] {
                let wrong = ask("istio.io/debug/config_dump", names).await?;
                ensure!(code(&wrong) == Code::InvalidArgument, "{wrong:?}");
            }

            // Every page by its name, in either place.
            let list = ask("istio.io/debug", &["list"]).await??;
            let pages: Vec<String> = serde_json::from_str(&text(&list))?;
            ensure!(pages.iter().any(|page| page == "ndsz"), "{pages:?}");
            for page in &pages {
                let page = format!("{page}?proxyID=client.shop");
                let (named, typed) = (
                    text(&ask("istio.io/debug", &[&page]).await??),
                    text(&ask(&format!("istio.io/debug/{page}"), &[]).await??),
                );
                ensure!(
                    !named.contains("404") && !typed.contains("404"),
                    "{page}: {named}"
                );
            }
            let connections = text(&ask("istio.io/connections", &[]).await??);
            ensure!(connections.contains("client.shop"), "{connections}");

            // In words that istioctl knows.
            for (page, words) in [
                ("nonsense", "404 page not found"),
                ("edsz", "You must provide a proxyID in the query string"),
                (
                    "edsz?proxyID=nobody",
                    "Proxy not connected to this Pilot instance.",
                ),
            ] {
                let said = text(&ask("istio.io/debug", &[page]).await??);
                ensure!(said.contains(words), "{page}: {said}");
            }
            for strange in ["\u{0}", " ", "../../ready", "a\nb", "%%", "list#x", "?", ""] {
                let said = ask("istio.io/debug", &[strange]).await?;
                let fine = match &said {
                    Ok(answer) => text(answer).contains("404") || strange == "list#x",
                    Err(status) => status.code() == Code::InvalidArgument,
                };
                ensure!(fine, "{strange:?}: {said:?}");
            }
            // Whoever only asked was never one of the proxies.
            let after = ask("istio.io/debug/syncz", &[]).await??;
            ensure!(proxies_of(&after)?.len() == 2, "{after:?}");
            anyhow::Ok(())
        })?;
        drop(proxies);
        Ok(())
    });
}

#[test]
fn questions_over_tls() {
    case::on_loopback(|workspace| {
        let authority = Authority::new()?;
        let port = Net::Host.free_port()?;
        let plane = start(workspace, Some((&authority, port)))?;
        let proxies = [proxy(&plane, "shop")?, proxy(&plane, "bank")?];
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        block(async {
            let ask = async |namespace: Option<&str>, type_url: &str, name: &str| {
                let channel = authority.channel(address, namespace).await?;
                let names: &[&str] = if name.is_empty() { &[] } else { &[name] };
                anyhow::Ok(xds::ask(channel, question(type_url, names)).await)
            };
            let (syncz, dump, page) = (
                "istio.io/debug/syncz",
                "istio.io/debug/config_dump",
                "istio.io/debug",
            );
            // Nobody in particular.
            for (type_url, name) in [(syncz, ""), (dump, "client.shop"), (page, "list")] {
                let answer = ask(None, type_url, name).await?;
                ensure!(code(&answer) == Code::Unauthenticated, "{answer:?}");
            }
            // The control plane's namespace.
            let system = Some("istio-system");
            let all = ask(system, syncz, "").await??;
            ensure!(
                proxies_of(&all)? == ["client.bank", "client.shop"],
                "{all:?}"
            );
            ensure!(
                !ask(system, dump, "client.bank")
                    .await??
                    .resources
                    .is_empty()
            );
            ensure!(text(&ask(system, page, "registryz").await??).contains("web.shop"));
            // Another one sees its own proxies.
            let shop = Some("shop");
            ensure!(proxies_of(&ask(shop, syncz, "").await??)? == ["client.shop"]);
            ensure!(!ask(shop, dump, "client.shop").await??.resources.is_empty());
            ensure!(ask(shop, dump, "client.bank").await??.resources.is_empty());
            // A part of a name that fits a proxy of another namespace finds one's own.
            let own = ask(shop, dump, "client").await??;
            ensure!(clusters(&own)? == sent(&proxies[0]));
            for name in ["edsz", "ndsz", "config_dump"] {
                let own = ask(shop, page, &format!("{name}?proxyID=client.shop")).await??;
                ensure!(text(&own).contains("configs"), "{}", text(&own));
                let other = ask(shop, page, &format!("{name}?proxyID=client.bank")).await??;
                ensure!(
                    text(&other).contains("Proxy not connected"),
                    "{}",
                    text(&other)
                );
            }
            for name in ["registryz", "adsz", "syncz", "configz", "list", "nonsense"] {
                let refused = ask(shop, page, name).await?;
                ensure!(
                    code(&refused) == Code::PermissionDenied,
                    "{name}: {refused:?}"
                );
            }
            let refused = ask(shop, "istio.io/connections", "").await?;
            ensure!(code(&refused) == Code::PermissionDenied, "{refused:?}");
            anyhow::Ok(())
        })
    });
}

/// A control plane with one service; with an authority, its TLS port is open.
fn start(workspace: &Workspace, tls: Option<(&Authority, u16)>) -> Result<ControlPlane> {
    let config = workspace.place("mesh");
    fs::create_dir_all(&config)?;
    fs::write(config.join("service.yaml"), SERVICE)?;
    let mut options = Options::default();
    let environment = &mut options.environment;
    environment.insert("POD_NAME".to_owned(), "replica-7".to_owned());
    if let Some((authority, port)) = tls {
        let flags = authority.flags(&workspace.place("tls"), port)?;
        options.flags.extend(flags);
    }
    let ports = Ports::free(&Net::Host)?;
    let address = Ipv4Addr::LOCALHOST;
    ControlPlane::start_with(
        &Net::Host,
        address,
        ports,
        &config,
        &workspace.logs(),
        options,
    )
}

fn proxy(plane: &ControlPlane, namespace: &str) -> Result<xds::Connected> {
    let node = Proxy::sidecar(namespace, "client", "client", Ipv4Addr::new(10, 0, 0, 9)).node();
    xds::connect(plane.xds(), &node)
}

fn block<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(future)
}

/// As istioctl asks: without a node that means anything, and with a nonce that it made up.
fn question(type_url: &str, names: &[&str]) -> DiscoveryRequest {
    DiscoveryRequest {
        type_url: type_url.to_owned(),
        resource_names: names.iter().map(|name| (*name).to_owned()).collect(),
        response_nonce: "2026-11-16 09:00:00.1 +0000 UTC m=+0.5".to_owned(),
        ..DiscoveryRequest::default()
    }
}

fn code(answer: &Answered) -> Code {
    answer.as_ref().map_or_else(Status::code, |_| Code::Ok)
}

fn text(answer: &DiscoveryResponse) -> String {
    let first = answer.resources.first();
    first.map_or_else(String::new, |any| {
        String::from_utf8_lossy(&any.value).into_owned()
    })
}

fn statuses(answer: &DiscoveryResponse) -> Result<Vec<ConfigStatus>> {
    let mut all = Vec::new();
    for any in &answer.resources {
        let shown = ClientConfig::decode(&*any.value)?;
        let configs = shown.generic_xds_configs.iter();
        all.extend(configs.map(GenericXdsConfig::config_status));
    }
    Ok(all)
}

fn proxies_of(answer: &DiscoveryResponse) -> Result<Vec<String>> {
    let id = |any: &pilotfish_protos::google::protobuf::Any| -> Result<String> {
        ensure!(any.type_url == "type.googleapis.com/envoy.service.status.v3.ClientConfig");
        Ok(ClientConfig::decode(&*any.value)?
            .node
            .context("a node")?
            .id)
    };
    answer.resources.iter().map(id).collect()
}

/// The clusters of a dump, in bytes.
fn clusters(answer: &DiscoveryResponse) -> Result<Vec<Vec<u8>>> {
    let is_clusters = |any: &&pilotfish_protos::google::protobuf::Any| {
        any.type_url.ends_with(".ClustersConfigDump")
    };
    let dump = answer
        .resources
        .iter()
        .find(is_clusters)
        .context("clusters")?;
    let dump = ClustersConfigDump::decode(&*dump.value)?;
    let all = dump.dynamic_active_clusters.into_iter();
    let mut all: Vec<Vec<u8>> = all
        .filter_map(|c| Some(c.cluster?.value.to_vec()))
        .collect();
    all.sort();
    ensure!(all.iter().all(|bytes| Cluster::decode(&**bytes).is_ok()));
    Ok(all)
}

fn sent(proxy: &xds::Connected) -> Vec<Vec<u8>> {
    let all = proxy
        .resources
        .iter()
        .filter(|((kind, _), _)| *kind == "Cluster");
    let mut all: Vec<Vec<u8>> = all.map(|(_, bytes)| bytes.clone()).collect();
    all.sort();
    all
}
