//! Short spellings of the Kubernetes objects that tests are made of.

use std::net::Ipv4Addr;

/// A Namespace.
pub fn namespace(name: &str) -> String {
    format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}}}\n---\n")
}

/// A Service with one port, and where it lies.
#[derive(Clone, Copy, Debug)]
pub struct Service<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// The label `app` of its Pods.
    pub app: &'a str,
    /// Its cluster IP.
    pub address: Ipv4Addr,
    /// The name of its port, which says the protocol: `http` or `tcp`.
    pub protocol: &'a str,
    /// Its port.
    pub port: u16,
    /// The port of its Pods.
    pub target: u16,
}

impl<'a> Service<'a> {
    /// HTTP on port 80, which is 9080 of the Pods of the same name.
    pub fn http(namespace: &'a str, name: &'a str, address: Ipv4Addr) -> Self {
        Self {
            namespace,
            name,
            app: name,
            address,
            protocol: "http",
            port: 80,
            target: 9080,
        }
    }

    /// The Service.
    pub fn object(&self) -> String {
        let Self {
            namespace,
            name,
            app,
            address,
            protocol,
            port,
            target,
        } = self;
        format!(
            "apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: {namespace}}}
spec:
  clusterIP: {address}
  selector: {{app: {app}}}
  ports: [{{name: {protocol}, port: {port}, targetPort: {target}}}]
---
"
        )
    }

    /// Its EndpointSlice, with the Pods at these addresses.
    pub fn endpoints(&self, addresses: &[Ipv4Addr]) -> String {
        let Self {
            namespace,
            name,
            app,
            protocol,
            target,
            ..
        } = self;
        let endpoints: Vec<String> = addresses
            .iter()
            .map(|address| {
                let pod = pod_name(app, *address);
                format!(
                    "- addresses: [{address}]
  conditions: {{ready: true}}
  targetRef: {{kind: Pod, name: {pod}, namespace: {namespace}}}
"
                )
            })
            .collect();
        format!(
            "apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: {name}-1
  namespace: {namespace}
  labels: {{kubernetes.io/service-name: {name}}}
addressType: IPv4
ports: [{{name: {protocol}, port: {target}}}]
endpoints:
{}---
",
            endpoints.concat()
        )
    }

    /// Both.
    pub fn with_endpoints(&self, addresses: &[Ipv4Addr]) -> String {
        self.object() + &self.endpoints(addresses)
    }
}

/// A ready Pod of an app and a version. Its name tells them and the address.
pub fn pod(namespace: &str, app: &str, version: &str, address: Ipv4Addr) -> String {
    let name = pod_name(app, address);
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: {namespace}, labels: {{app: {app}, version: {version}}}}}
spec: {{containers: [{{name: app, image: app}}]}}
status: {{podIP: {address}, phase: Running, conditions: [{{type: Ready, status: \"True\"}}]}}
---
"
    )
}

/// The Pod of a gateway: app `ingress`, with the label `istio: ingress` that Gateways select by.
pub fn gateway_pod(namespace: &str, address: Ipv4Addr) -> String {
    pod(namespace, "ingress", "v1", address).replace("labels: {", "labels: {istio: ingress, ")
}

/// The name of the Pod of an app at an address.
pub fn pod_name(app: &str, address: Ipv4Addr) -> String {
    format!("{app}-{}", address.to_string().replace('.', "-"))
}

/// A Gateway for all hosts on port 80 of the pods with the label `istio: ingress`.
pub fn gateway(namespace: &str, name: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {{name: {name}, namespace: {namespace}}}
spec:
  selector: {{istio: ingress}}
  servers: [{{port: {{number: 80, name: http, protocol: HTTP}}, hosts: [\"*\"]}}]
---
"
    )
}
