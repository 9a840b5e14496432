//! `istio.io/debug/syncz`: what `istioctl proxy-status` shows.

use std::time::SystemTime;

use pilotfish_protos::any;
use pilotfish_protos::envoy::admin::v3::UpdateFailureState;
use pilotfish_protos::envoy::config::core::v3::{ControlPlane, Node};
use pilotfish_protos::envoy::service::status::v3::client_config::GenericXdsConfig;
use pilotfish_protos::envoy::service::status::v3::{ClientConfig, ConfigStatus};
use pilotfish_protos::google::protobuf::value::Kind;
use pilotfish_protos::google::protobuf::{Struct, Timestamp, Value};
use pilotfish_xds::{Answer, ConnectionInfo, TypeStatus};
use serde_json::json;

use crate::debug::{Visible, proxies};
use crate::http::Pages;
use crate::nodes::NodeInfo;
use crate::version;

/// Every stream of a proxy that may be seen, and who says so.
pub(super) fn answer(pages: &Pages, visible: &Visible, instance: &str) -> Answer {
    let resources = proxies::visible(pages, visible)
        .iter()
        .map(|connection| {
            let shown = show(connection, &pages.nodes.get(&connection.node_id));
            let id = proxies::short_id(&connection.node_id);
            (id.to_owned(), any(&shown))
        })
        .collect();
    Answer {
        control_plane: Some(control_plane(instance)),
        resources,
    }
}

/// istioctl reads this as JSON; the role is called as it expects, the build is ours.
fn control_plane(instance: &str) -> ControlPlane {
    let identifier = json!({
        "Component": "istiod",
        "ID": instance,
        "Info": {
            "version": format!("pilotfish-{}", version::VERSION),
            "revision": version::REVISION,
            "golang_version": "",
            "status": version::build(),
            "tag": version::VERSION,
        },
    });
    ControlPlane {
        identifier: identifier.to_string(),
    }
}

fn show(connection: &ConnectionInfo, info: &NodeInfo) -> ClientConfig {
    let metadata = [
        ("CLUSTER_ID", &info.cluster_id),
        ("ISTIO_VERSION", &info.istio_version),
        ("NAMESPACE", &info.namespace),
    ];
    let fields = metadata
        .into_iter()
        .filter(|(_, text)| !text.is_empty())
        .map(|(key, text)| {
            let kind = Some(Kind::StringValue(text.clone()));
            (key.to_owned(), Value { kind })
        })
        .collect();
    let mut types: Vec<_> = connection.types.iter().map(status).collect();
    types.sort_by(|a, b| a.type_url.cmp(&b.type_url));
    ClientConfig {
        node: Some(Node {
            id: proxies::short_id(&connection.node_id).to_owned(),
            metadata: Some(Struct { fields }),
            ..Node::default()
        }),
        generic_xds_configs: types,
        ..ClientConfig::default()
    }
}

fn status(status: &TypeStatus) -> GenericXdsConfig {
    let last_updated = status.sent_at.and_then(timestamp);
    let config_status = if status.rejected.is_some() {
        ConfigStatus::Error
    } else if status.sent.is_none() {
        ConfigStatus::NotSent
    } else if status.sent == status.acked {
        ConfigStatus::Synced
    } else {
        ConfigStatus::Stale
    };
    GenericXdsConfig {
        type_url: status.type_url.as_str().to_owned(),
        config_status: config_status.into(),
        error_state: status
            .rejected
            .as_ref()
            .map(|rejection| UpdateFailureState {
                details: rejection.message.clone(),
                last_update_attempt: last_updated,
                ..UpdateFailureState::default()
            }),
        last_updated,
        ..GenericXdsConfig::default()
    }
}

fn timestamp(time: SystemTime) -> Option<Timestamp> {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    Some(Timestamp {
        seconds: i64::try_from(since.as_secs()).ok()?,
        nanos: i32::try_from(since.subsec_nanos()).ok()?,
    })
}
