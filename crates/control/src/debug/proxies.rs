//! Connected proxies: who they are, what they watch, what they have acknowledged.

use std::collections::BTreeMap;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use pilotfish_xds::{ConnectionInfo, TypeStatus, TypeUrl};
use serde::Deserialize;
use serde_json::{Map, Value, json as value};

use super::Visible;
use crate::http::{Pages, json};
use crate::writer::Input;

#[derive(Debug, Deserialize)]
pub(super) struct Asked {
    #[serde(rename = "proxyID")]
    proxy: Option<String>,
    namespace: Option<String>,
    push: Option<String>,
}

/// Streams, ordered by proxy; of one proxy, or of one namespace, if asked for.
fn select(pages: &Pages, asked: &Asked) -> Vec<ConnectionInfo> {
    let mut all = pages.server.connections();
    all.retain(|c| {
        asked
            .proxy
            .as_deref()
            .is_none_or(|proxy| c.node_id.contains(proxy))
    });
    all.retain(|c| {
        asked
            .namespace
            .as_deref()
            .is_none_or(|namespace| namespace_of(&c.node_id) == namespace)
    });
    all.sort_by(|a, b| (&a.node_id, a.id).cmp(&(&b.node_id, b.id)));
    all
}

/// `sidecar~10.0.0.1~web-0.shop~shop.svc.cluster.local` is in `shop`.
fn namespace_of(node_id: &str) -> &str {
    node_id
        .split('~')
        .nth(2)
        .and_then(|id| id.rsplit_once('.'))
        .map_or("", |(_, namespace)| namespace)
}

pub(super) async fn syncz(State(pages): State<Pages>, Query(asked): Query<Asked>) -> Response {
    let shown: Vec<_> = select(&pages, &asked)
        .iter()
        .map(|connection| sync_status(&pages, connection))
        .collect();
    json(&shown)
}

fn sync_status(pages: &Pages, connection: &ConnectionInfo) -> Value {
    let info = pages.nodes.get(&connection.node_id);
    let mut shown = Map::new();
    let mut set = |key: &str, text: &str| {
        if !text.is_empty() {
            shown.insert(key.to_owned(), Value::from(text));
        }
    };
    set("cluster_id", &info.cluster_id);
    set("proxy", short_id(&connection.node_id));
    set(
        "proxy_type",
        connection.node_id.split('~').next().unwrap_or_default(),
    );
    set("proxy_version", &info.proxy_version);
    set("istio_version", &info.istio_version);
    let mut resources = Map::new();
    for status in &connection.types {
        let nonce = |nonce: Option<pilotfish_xds::Nonce>| {
            nonce.map_or_else(String::new, |nonce| nonce.to_string())
        };
        let (sent, acked) = (nonce(status.sent), nonce(status.acked));
        if let Some(name) = istiod_name(&status.type_url) {
            set(&format!("{name}_sent"), &sent);
            set(&format!("{name}_acked"), &acked);
        }
        let error = status
            .rejected
            .as_ref()
            .map(|rejection| rejection.message.as_str());
        let mut resource = Map::from_iter([
            ("sent".to_owned(), Value::from(sent)),
            ("acked".to_owned(), Value::from(acked)),
        ]);
        if let Some(error) = error {
            resource.insert("lastError".to_owned(), Value::from(error));
        }
        resource.insert("generation".to_owned(), Value::from(status.generation.0));
        resource.insert(
            "ackedGeneration".to_owned(),
            Value::from(status.acked_generation.0),
        );
        resources.insert(status.type_url.as_str().to_owned(), Value::Object(resource));
    }
    shown.insert("resources".to_owned(), Value::Object(resources));
    Value::Object(shown)
}

/// What istiod calls a type in `syncz`.
const fn istiod_name(type_url: &TypeUrl) -> Option<&'static str> {
    Some(match type_url {
        TypeUrl::Cluster => "cluster",
        TypeUrl::Listener => "listener",
        TypeUrl::Route => "route",
        TypeUrl::Endpoints => "endpoint",
        TypeUrl::ExtensionConfig => "extensionconfig",
        _ => return None,
    })
}

/// `web-0.shop` of a node id that has the four parts of Istio's; otherwise the id.
pub(crate) fn short_id(node_id: &str) -> &str {
    node_id
        .split('~')
        .nth(2)
        .filter(|id| !id.is_empty())
        .unwrap_or(node_id)
}

pub(super) async fn connections(
    State(pages): State<Pages>,
    Query(asked): Query<Asked>,
) -> Response {
    clients(select(&pages, &asked).iter().map(client))
}

/// Connections with all that is known of the proxy; with `?push=true`, pushes to all.
pub(super) async fn adsz(State(pages): State<Pages>, Query(asked): Query<Asked>) -> Response {
    if asked.push.as_deref().is_some_and(|push| push != "false") {
        return match pages.inputs.send(Input::Push).await {
            Ok(()) => {
                format!("pushing to {} streams\n", pages.server.connections().len()).into_response()
            }
            Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "stopping\n").into_response(),
        };
    }
    let selected = select(&pages, &asked);
    if selected.is_empty()
        && let Some(proxy) = &asked.proxy
    {
        return not_connected(proxy);
    }
    clients(selected.iter().map(|connection| {
        let mut shown = client(connection);
        let info = pages.nodes.get(&connection.node_id);
        shown["labels"] = value!(info.labels);
        shown["metadata"] = value!({
            "ISTIO_VERSION": info.istio_version, "CLUSTER_ID": info.cluster_id, "NAMESPACE": info.namespace,
            "ENVOY_VERSION": info.proxy_version,
        });
        shown["locality"] = value!(info.locality);
        shown["watches"] = value!(connection.types.iter().map(|t| (t.type_url.as_str(), watch(t))).collect::<BTreeMap<_, _>>());
        shown
    }))
}

fn clients(shown: impl Iterator<Item = Value>) -> Response {
    let clients: Vec<_> = shown.collect();
    json(&value!({"totalClients": clients.len(), "clients": clients}))
}

fn client(connection: &ConnectionInfo) -> Value {
    value!({
        "connectionId": format!("{}-{}", short_id(&connection.node_id), connection.id),
        "node": &*connection.node_id,
        "connectedAt": Timestamp::try_from(connection.connected_at).map(|time| time.to_string()).ok(),
        "address": connection.peer.map(|peer| peer.to_string()),
        "protocol": if connection.delta { "delta" } else { "state of the world" },
    })
}

fn watch(status: &TypeStatus) -> Value {
    value!({"wildcard": status.wildcard, "names": status.names, "version": status.version.map(|version| version.to_string())})
}

/// The streams that somebody may see, ordered by proxy.
pub(crate) fn visible(pages: &Pages, visible: &Visible) -> Vec<ConnectionInfo> {
    let mut all = pages.server.connections();
    if let Visible::Namespace(namespace) = visible {
        all.retain(|c| {
            let said = &pages.nodes.get(&c.node_id).namespace;
            let own = if said.is_empty() {
                namespace_of(&c.node_id)
            } else {
                said
            };
            *own == **namespace
        });
    }
    all.sort_by(|a, b| (&a.node_id, a.id).cmp(&(&b.node_id, b.id)));
    all
}

/// The node id of the proxy that `proxyID` names, among those that may be seen: the first whose id contains it.
pub(crate) fn find(pages: &Pages, seen: &Visible, proxy: &str) -> Option<String> {
    let all = visible(pages, seen);
    let exact = all
        .iter()
        .find(|c| &*c.node_id == proxy || short_id(&c.node_id) == proxy);
    exact
        .or_else(|| all.iter().find(|c| c.node_id.contains(proxy)))
        .map(|c| c.node_id.to_string())
}

pub(super) fn not_connected(proxy: &str) -> Response {
    let text = format!(
        "Proxy not connected to this Pilot instance. It may be connected to another instance.\nThere is no {proxy:?} here; \
         /debug/connections lists those that are.\n"
    );
    (StatusCode::NOT_FOUND, text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_taken_apart() {
        let id = "sidecar~10.0.0.1~web-0.shop~shop.svc.cluster.local";
        assert_eq!((short_id(id), namespace_of(id)), ("web-0.shop", "shop"));
        assert_eq!(
            (short_id("envoy-1"), namespace_of("envoy-1")),
            ("envoy-1", "")
        );
    }
}
