//! `istio.io/debug/config_dump`: what `istioctl proxy-status POD` compares with what the proxy says it has.

use pilotfish_protos::any;
use pilotfish_protos::envoy::admin::v3::clusters_config_dump::DynamicCluster;
use pilotfish_protos::envoy::admin::v3::ecds_config_dump::EcdsFilterConfig;
use pilotfish_protos::envoy::admin::v3::listeners_config_dump::{
    DynamicListener, DynamicListenerState,
};
use pilotfish_protos::envoy::admin::v3::routes_config_dump::DynamicRouteConfig;
use pilotfish_protos::envoy::admin::v3::secrets_config_dump::DynamicSecret;
use pilotfish_protos::envoy::admin::v3::{
    BootstrapConfigDump, ClustersConfigDump, EcdsConfigDump, ListenersConfigDump, RoutesConfigDump,
    ScopedRoutesConfigDump, SecretsConfigDump,
};
use pilotfish_protos::google::protobuf::Any;
use pilotfish_protos::json::from_json;
use pilotfish_xds::{Answer, Resource, TypeUrl};
use tonic::Status;

use crate::debug::config_dump::{self, Held};
use crate::debug::{Visible, proxies};
use crate::http::Pages;

/// What a proxy was given. Nothing, if it is not connected here: whoever asks may ask another replica.
pub(super) async fn answer(
    pages: &Pages,
    visible: &Visible,
    proxy: &str,
) -> Result<Answer, Status> {
    let found = proxies::find(pages, visible, proxy);
    let Some(held) = found.and_then(|node| pages.server.held(&node)) else {
        return Ok(Answer::default());
    };
    // Thousands of resources are looked through for secrets: not on a thread that serves proxies.
    let dump = tokio::task::spawn_blocking(move || configs(&held)).await;
    let configs = dump.map_err(|error| Status::internal(format!("cannot show it: {error}")))?;
    Ok(Answer {
        control_plane: None,
        resources: configs
            .into_iter()
            .map(|any| (String::new(), any))
            .collect(),
    })
}

/// The parts of an Envoy's own dump, in its order.
fn configs(held: &Held) -> Vec<Any> {
    let of = |type_url: &TypeUrl| held.get(type_url).map_or(&[][..], Vec::as_slice);
    let version = |r: &Resource| r.version.to_string();
    let clusters = of(&TypeUrl::Cluster).iter().map(|r| DynamicCluster {
        version_info: version(r),
        cluster: shown(r),
        ..DynamicCluster::default()
    });
    let listeners = of(&TypeUrl::Listener).iter().map(|r| DynamicListener {
        name: r.name.to_string(),
        active_state: Some(DynamicListenerState {
            version_info: version(r),
            listener: shown(r),
            ..DynamicListenerState::default()
        }),
        ..DynamicListener::default()
    });
    let routes = of(&TypeUrl::Route).iter().map(|r| DynamicRouteConfig {
        version_info: version(r),
        route_config: config_dump::table(held, r)
            .map_or_else(|| shown(r), |table| encode(r, &table)),
        ..DynamicRouteConfig::default()
    });
    let secrets = of(&TypeUrl::Secret).iter().map(|r| DynamicSecret {
        name: r.name.to_string(),
        version_info: version(r),
        secret: shown(r),
        ..DynamicSecret::default()
    });
    let filters = of(&TypeUrl::ExtensionConfig)
        .iter()
        .map(|r| EcdsFilterConfig {
            version_info: version(r),
            ecds_filter: shown(r),
            ..EcdsFilterConfig::default()
        });
    vec![
        any(&BootstrapConfigDump::default()),
        any(&ClustersConfigDump {
            dynamic_active_clusters: clusters.collect(),
            ..ClustersConfigDump::default()
        }),
        any(&ListenersConfigDump {
            dynamic_listeners: listeners.collect(),
            ..ListenersConfigDump::default()
        }),
        any(&ScopedRoutesConfigDump::default()),
        any(&RoutesConfigDump {
            dynamic_route_configs: routes.collect(),
            ..RoutesConfigDump::default()
        }),
        any(&SecretsConfigDump {
            dynamic_active_secrets: secrets.collect(),
            ..SecretsConfigDump::default()
        }),
        any(&EcdsConfigDump {
            ecds_filters: filters.collect(),
        }),
    ]
}

/// A resource as it was sent, or, if something in it is secret, without that. Nothing, if that cannot be told.
fn shown(resource: &Resource) -> Option<Any> {
    let (type_url, value) = resource.parts();
    match config_dump::redacted(resource).ok()? {
        None => Some(Any { type_url, value }),
        Some(json) => encode(resource, &json),
    }
}

fn encode(resource: &Resource, json: &serde_json::Value) -> Option<Any> {
    let mut json = json.clone();
    json.as_object_mut()?.remove("@type");
    from_json(&resource.parts().0, &json).ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pilotfish_protos::json::any_to_json;
    use serde_json::json;

    use super::*;

    const TLS: &str = "envoy.extensions.transport_sockets.tls.v3";

    fn resource(type_name: &str, name: &str, json: &serde_json::Value) -> Arc<Resource> {
        let any = from_json(type_name, json).unwrap();
        Resource::wrap(&any.type_url, name.into(), &any.value, Arc::from([]))
    }

    #[test]
    fn what_is_secret_is_left_out_and_the_rest_is_what_was_sent() {
        let secret = resource(
            &format!("{TLS}.Secret"),
            "web",
            &json!({"name": "web", "tlsCertificate": {
                "certificateChain": {"inlineString": "chain"}, "privateKey": {"inlineString": "hunter2"}}}),
        );
        let cluster = resource(
            "envoy.config.cluster.v3.Cluster",
            "c",
            &json!({"name": "c"}),
        );
        let held = Held::from([
            (TypeUrl::Secret, vec![secret]),
            (TypeUrl::Cluster, vec![Arc::clone(&cluster)]),
        ]);
        let configs = configs(&held);
        assert_eq!(shown(&cluster).unwrap().value, cluster.body());
        let all: Vec<_> = configs
            .iter()
            .map(|any| any_to_json(&any.type_url, &any.value).unwrap())
            .collect();
        let text = json!(all).to_string();
        assert!(
            text.contains("chain") && !text.contains("hunter2"),
            "{text}"
        );
        let secret = &all[5]["dynamicActiveSecrets"][0]["secret"];
        assert_eq!(
            secret["tlsCertificate"]["privateKey"]["inlineString"],
            "[redacted]"
        );
        assert_eq!(all[1]["dynamicActiveClusters"][0]["cluster"]["name"], "c");
    }

    #[test]
    fn hosts_that_came_one_by_one_are_in_their_table() {
        let table = resource(
            "envoy.config.route.v3.RouteConfiguration",
            "80",
            &json!({"name": "80"}),
        );
        let host = json!({"name": "80/a", "domains": ["a"]});
        let host = resource("envoy.config.route.v3.VirtualHost", "80/a", &host);
        let held = Held::from([
            (TypeUrl::Route, vec![table]),
            (TypeUrl::VirtualHost, vec![host]),
        ]);
        let routes = &configs(&held)[4];
        let routes = any_to_json(&routes.type_url, &routes.value).unwrap();
        let shown = &routes["dynamicRouteConfigs"][0]["routeConfig"]["virtualHosts"];
        assert_eq!(shown[0]["domains"][0], "a");
    }
}
