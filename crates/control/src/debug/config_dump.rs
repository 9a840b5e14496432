//! What a proxy was given, in the shape of Envoy's `/config_dump`, so that the two can be compared.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Extension;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use pilotfish_protos::json::{JsonError, any_to_json};
use pilotfish_xds::{Resource, TypeUrl};
use serde_json::{Value, json as value};

use super::{Visible, proxies};
use crate::http::{Pages, json};

const REDACTED: &str = "W3JlZGFjdGVkXQ==";

pub(crate) type Held = BTreeMap<TypeUrl, Vec<Arc<Resource>>>;
type Asked = BTreeMap<String, String>;
type Seen = Option<Extension<Visible>>;

/// `?proxyID=` names the proxy; `include_eds` adds endpoints, `types=cds,lds` lists those types plainly.
pub(super) async fn page(
    State(pages): State<Pages>,
    seen: Seen,
    Query(asked): Query<Asked>,
) -> Response {
    let types = asked.get("types").cloned();
    answer(&pages, seen, &asked, types.as_deref()).await
}

pub(super) async fn endpoints(
    State(pages): State<Pages>,
    seen: Seen,
    Query(asked): Query<Asked>,
) -> Response {
    answer(&pages, seen, &asked, Some("eds")).await
}

pub(super) async fn names(
    State(pages): State<Pages>,
    seen: Seen,
    Query(asked): Query<Asked>,
) -> Response {
    answer(&pages, seen, &asked, Some("nds")).await
}

pub(super) async fn filters(
    State(pages): State<Pages>,
    seen: Seen,
    Query(asked): Query<Asked>,
) -> Response {
    answer(&pages, seen, &asked, Some("ecds")).await
}

async fn answer(pages: &Pages, seen: Seen, asked: &Asked, types: Option<&str>) -> Response {
    let visible = seen.map_or(Visible::Everything, |Extension(visible)| visible);
    let Some(proxy) = asked.get("proxyID").filter(|proxy| !proxy.is_empty()) else {
        return (
            StatusCode::BAD_REQUEST,
            "You must provide a proxyID in the query string; /debug/connections lists proxies\n",
        )
            .into_response();
    };
    let found = proxies::find(pages, &visible, proxy);
    let Some(held) = found.and_then(|node| pages.server.held(&node)) else {
        return proxies::not_connected(proxy);
    };
    let (types, with_endpoints) = (types.map(str::to_owned), asked.contains_key("include_eds"));
    // Thousands of resources are decoded here: not on a thread that serves proxies.
    let shown = tokio::task::spawn_blocking(move || match types {
        Some(types) => plain(&held, &types),
        None => dump(&held, with_endpoints),
    });
    match shown.await {
        Ok(shown) => json(&shown),
        Err(error) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("cannot show the resources: {error}\n"),
        )
            .into_response(),
    }
}

fn plain(held: &Held, types: &str) -> Value {
    let wanted: Vec<_> = types.split(',').map(str::trim).collect();
    let is_wanted = |type_url: &TypeUrl| {
        wanted
            .iter()
            .any(|name| type_url.short().eq_ignore_ascii_case(name) || type_url.as_str() == *name)
    };
    let configs: Vec<_> = held
        .iter()
        .filter(|(type_url, _)| is_wanted(type_url))
        .flat_map(|(_, all)| all)
        .map(|r| show(r))
        .collect();
    value!({"configs": configs})
}

fn dump(held: &Held, with_endpoints: bool) -> Value {
    let each = |type_url: &TypeUrl, field: &str| -> Vec<Value> {
        let all = held.get(type_url).map_or(&[][..], Vec::as_slice);
        all.iter().map(|r| value!({"versionInfo": r.version.to_string(), field: show(r), "sources": r.sources})).collect()
    };
    let listeners: Vec<_> = held.get(&TypeUrl::Listener).map_or(&[][..], Vec::as_slice).iter().map(|r| {
        value!({"name": &*r.name, "activeState": {"versionInfo": r.version.to_string(), "listener": show(r)}, "sources": r.sources})
    }).collect();
    let mut configs = vec![
        value!({"@type": of("Clusters"), "dynamicActiveClusters": each(&TypeUrl::Cluster, "cluster")}),
        value!({"@type": of("Listeners"), "dynamicListeners": listeners}),
        value!({"@type": of("Routes"), "dynamicRouteConfigs": routes(held)}),
        value!({"@type": of("Secrets"), "dynamicActiveSecrets": secrets(held)}),
        value!({"@type": of("Ecds"), "ecdsFilters": each(&TypeUrl::ExtensionConfig, "ecdsFilter")}),
    ];
    if with_endpoints {
        configs.insert(1, value!({"@type": of("Endpoints"), "dynamicEndpointConfigs": each(&TypeUrl::Endpoints, "endpointConfig")}));
    }
    value!({"configs": configs})
}

/// Route tables; hosts that came one by one stand in the table they belong to.
fn routes(held: &Held) -> Vec<Value> {
    let all = held.get(&TypeUrl::Route).map_or(&[][..], Vec::as_slice);
    let shown = |r: &Arc<Resource>| {
        let shown = table(held, r).unwrap_or_else(|| show(r));
        value!({"versionInfo": r.version.to_string(), "routeConfig": shown, "sources": r.sources})
    };
    all.iter().map(shown).collect()
}

/// A route table with the hosts that came one by one, if any did.
pub(crate) fn table(held: &Held, resource: &Resource) -> Option<Value> {
    let prefix = format!("{}/", resource.name);
    let hosts = held.get(&TypeUrl::VirtualHost)?.iter();
    let own: Vec<Value> = hosts
        .filter(|host| host.name.starts_with(&prefix))
        .map(|host| {
            let mut host = show(host);
            // It is of one type only here, which goes without saying.
            host.as_object_mut().map(|fields| fields.remove("@type"));
            host
        })
        .collect();
    (!own.is_empty()).then(|| {
        let mut shown = show(resource);
        shown["virtualHosts"] = own.into();
        shown
    })
}

/// A resource without what is secret in it; nothing, if nothing is. An error if that cannot be told.
pub(crate) fn redacted(resource: &Resource) -> Result<Option<Value>, JsonError> {
    let (type_url, body) = resource.parts();
    let plain = any_to_json(&type_url, &body)?;
    let mut shown = plain.clone();
    redact(&mut shown);
    Ok((shown != plain).then_some(shown))
}

fn of(what: &str) -> String {
    format!("type.googleapis.com/envoy.admin.v3.{what}ConfigDump")
}

fn secrets(held: &Held) -> Vec<Value> {
    let all = held.get(&TypeUrl::Secret).map_or(&[][..], Vec::as_slice);
    all.iter()
        .map(
            |r| value!({"name": &*r.name, "versionInfo": r.version.to_string(), "secret": show(r)}),
        )
        .collect()
}

/// A resource as JSON, without anything that is secret.
fn show(resource: &Resource) -> Value {
    let (type_url, body) = resource.parts();
    match any_to_json(&type_url, &body) {
        Ok(mut shown) => {
            redact(&mut shown);
            shown
        }
        Err(error) => {
            value!({"@type": type_url, "name": &*resource.name, "error": error.to_string()})
        }
    }
}

/// Private keys, passwords, session keys and tokens, wherever in a resource they are inlined.
fn redact(shown: &mut Value) {
    const SECRET: &[&str] = &[
        "privateKey",
        "password",
        "pkcs12",
        "sessionTicketKeys",
        "secret",
        "tokenSecret",
        "hmacSecret",
        "privateKeyProvider",
    ];
    match shown {
        Value::Object(fields) => {
            for (key, field) in fields.iter_mut() {
                if SECRET.contains(&key.as_str()) {
                    blank(field);
                } else if key == "keyValues" {
                    redact_environment(field);
                } else {
                    redact(field);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(redact),
        _ => {}
    }
}

/// Replaces inline data; files and other places that are only named stay.
fn blank(field: &mut Value) {
    match field {
        Value::Object(fields) => {
            for (key, value) in fields.iter_mut() {
                match key.as_str() {
                    "inlineBytes" => *value = Value::from(REDACTED),
                    "inlineString" => *value = Value::from("[redacted]"),
                    _ => blank(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(blank),
        _ => {}
    }
}

/// The pull secret of a Wasm module travels as an environment variable.
fn redact_environment(variables: &mut Value) {
    if let Some(variables) = variables.as_object_mut() {
        for (name, value) in variables.iter_mut() {
            if name.contains("SECRET") {
                *value = Value::from("[redacted]");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_redacted_and_names_are_not() {
        let mut shown = value!({
            "name": "kubernetes://shop-tls",
            "tlsCertificate": {
                "certificateChain": {"inlineBytes": "Y2VydA=="},
                "privateKey": {"inlineBytes": "a2V5"},
                "password": {"inlineString": "hunter2"},
            },
            "other": [{"privateKey": {"filename": "/etc/key"}}],
            "vm": {"keyValues": {"ISTIO_META_WASM_IMAGE_PULL_SECRET": "x", "A": "b"}},
        });
        redact(&mut shown);
        assert_eq!(
            shown["tlsCertificate"]["privateKey"]["inlineBytes"],
            REDACTED
        );
        assert_eq!(
            shown["tlsCertificate"]["password"]["inlineString"],
            "[redacted]"
        );
        assert_eq!(
            shown["tlsCertificate"]["certificateChain"]["inlineBytes"],
            "Y2VydA=="
        );
        assert_eq!(shown["other"][0]["privateKey"]["filename"], "/etc/key");
        assert_eq!(
            shown["vm"]["keyValues"],
            value!({"ISTIO_META_WASM_IMAGE_PULL_SECRET": "[redacted]", "A": "b"})
        );
    }

    #[test]
    fn the_shape_is_that_of_envoy() {
        let shown = dump(&Held::new(), true);
        let types: Vec<_> = shown["configs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|c| c["@type"].as_str().unwrap().rsplit('.').next().unwrap())
            .collect();
        assert_eq!(
            types,
            [
                "ClustersConfigDump",
                "EndpointsConfigDump",
                "ListenersConfigDump",
                "RoutesConfigDump",
                "SecretsConfigDump",
                "EcdsConfigDump"
            ]
        );
        assert_eq!(plain(&Held::new(), "cds"), value!({"configs": []}));
    }
}
