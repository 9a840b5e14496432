//! The proxy of a pod: what Istio's agent would tell the control plane about it.

use std::net::Ipv4Addr;

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

/// The Istio release that the proxies claim; it decides which names and defaults they are sent.
const ISTIO_VERSION: &str = "1.31.0";

/// How a proxy stands to its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Beside an application, with interception.
    Sidecar,
    /// A gateway.
    Router,
}

/// The facts about a proxy that its node carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    /// The pod.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its address.
    pub address: Ipv4Addr,
    /// Sidecar or gateway.
    pub role: Role,
    /// The pod's labels.
    pub labels: Vec<(String, String)>,
    /// The pod's service account.
    pub service_account: String,
    /// Whether certificate files that users name are on its host.
    pub local_files: bool,
}

impl Proxy {
    /// A sidecar of a pod with one label, `app`.
    pub fn sidecar(namespace: &str, name: &str, app: &str, address: Ipv4Addr) -> Self {
        Self {
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            address,
            role: Role::Sidecar,
            labels: vec![("app".to_owned(), app.to_owned())],
            service_account: "default".to_owned(),
            local_files: false,
        }
    }

    /// A gateway whose pod has one label, `istio`.
    pub fn router(namespace: &str, name: &str, label: &str, address: Ipv4Addr) -> Self {
        let labels = vec![("istio".to_owned(), label.to_owned())];
        Self {
            role: Role::Router,
            labels,
            ..Self::sidecar(namespace, name, name, address)
        }
    }

    /// The proxy that Istio's injector would give this Pod; `None` where the Pod refuses one.
    pub fn of_pod(pod: &Value) -> Result<Option<Self>> {
        let meta = &pod["metadata"];
        let annotation = |name: &str| meta["annotations"][name].as_str();
        let name = meta["name"].as_str().context("a Pod without a name")?;
        let labels: Vec<(String, String)> = meta["labels"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned()))
            .collect();
        if labels
            .iter()
            .any(|(key, value)| key == "sidecar.istio.io/inject" && value == "false")
        {
            return Ok(None);
        }
        let address = pod["status"]["podIP"]
            .as_str()
            .with_context(|| format!("Pod {name} has no podIP"))?;
        let role = match annotation("inject.istio.io/templates") {
            Some("gateway") => Role::Router,
            _ => Role::Sidecar,
        };
        Ok(Some(Self {
            name: name.to_owned(),
            namespace: meta["namespace"].as_str().unwrap_or("default").to_owned(),
            address: address
                .parse()
                .with_context(|| format!("podIP of {name}"))?,
            role,
            labels,
            service_account: pod["spec"]["serviceAccountName"]
                .as_str()
                .unwrap_or("default")
                .to_owned(),
            local_files: false,
        }))
    }

    /// The node it sends.
    pub fn node(&self) -> Value {
        let Self {
            name,
            namespace,
            address,
            ..
        } = self;
        let kind = match self.role {
            Role::Sidecar => "sidecar",
            Role::Router => "router",
        };
        let labels: Map<String, Value> = self
            .labels
            .iter()
            .map(|(key, value)| (key.clone(), json!(value)))
            .collect();
        let mut metadata = json!({
            "CLUSTER_ID": "Kubernetes",
            "INSTANCE_IPS": address,
            "ISTIO_VERSION": ISTIO_VERSION,
            "LABELS": labels,
            "MESH_ID": "cluster.local",
            "NAME": name,
            "NAMESPACE": namespace,
            "SERVICE_ACCOUNT": self.service_account,
            "WORKLOAD_NAME": name,
        });
        if self.local_files {
            metadata["LOCAL_FILES"] = json!("true");
        }
        if self.role == Role::Sidecar {
            metadata["INTERCEPTION_MODE"] = json!("REDIRECT");
        }
        let mut node = json!({
            "id": format!("{kind}~{address}~{name}.{namespace}~{namespace}.svc.cluster.local"),
            "cluster": format!("{name}.{namespace}"),
            "metadata": metadata,
        });
        if let Some(locality) = self.locality() {
            node["locality"] = locality;
        }
        node
    }

    /// Where the label `istio-locality` says that the pod is: `region.zone.subzone`.
    fn locality(&self) -> Option<Value> {
        let (_, place) = self
            .labels
            .iter()
            .find(|(key, _)| key == "istio-locality")?;
        let mut parts = place.split('.').map(str::to_owned);
        Some(json!({"region": parts.next(), "zone": parts.next(), "sub_zone": parts.next()}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_says_which_proxy_it_gets() {
        let mut pod = json!({
            "metadata": {"name": "web-1", "namespace": "shop", "labels": {"app": "web"}},
            "status": {"podIP": "10.0.0.1"},
        });
        let proxy = Proxy::of_pod(&pod).unwrap().unwrap();
        assert_eq!(
            proxy,
            Proxy::sidecar("shop", "web-1", "web", Ipv4Addr::new(10, 0, 0, 1))
        );
        assert_eq!(
            proxy.node()["id"],
            "sidecar~10.0.0.1~web-1.shop~shop.svc.cluster.local"
        );

        pod["metadata"]["annotations"] = json!({"inject.istio.io/templates": "gateway"});
        assert_eq!(Proxy::of_pod(&pod).unwrap().unwrap().role, Role::Router);

        pod["metadata"]["labels"]["sidecar.istio.io/inject"] = json!("false");
        assert_eq!(Proxy::of_pod(&pod).unwrap(), None);
    }
}
