//! Short spellings of the Kubernetes objects that tests are made of.

use std::net::Ipv4Addr;

/// A Namespace.
pub fn namespace(name: &str) -> String {
    format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}}}\n---\n")
}

/// A Service with one port: `port_name` says the protocol, as in `http` or `tcp-db`.
pub fn service(
    namespace: &str,
    name: &str,
    address: Ipv4Addr,
    port_name: &str,
    port: u16,
    target: u16,
) -> String {
    format!(
        "apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: {namespace}}}
spec:
  clusterIP: {address}
  selector: {{app: {name}}}
  ports: [{{name: {port_name}, port: {port}, targetPort: {target}}}]
---
"
    )
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

/// The name of the Pod of an app at an address.
pub fn pod_name(app: &str, address: Ipv4Addr) -> String {
    format!("{app}-{}", address.to_string().replace('.', "-"))
}

/// The EndpointSlice of a Service whose Pods are at these addresses.
pub fn endpoints(
    namespace: &str,
    service: &str,
    port_name: &str,
    port: u16,
    addresses: &[Ipv4Addr],
) -> String {
    let endpoints: Vec<String> = addresses
        .iter()
        .map(|address| {
            let pod = pod_name(service, *address);
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
  name: {service}-1
  namespace: {namespace}
  labels: {{kubernetes.io/service-name: {service}}}
addressType: IPv4
ports: [{{name: {port_name}, port: {port}}}]
endpoints:
{}---
",
        endpoints.concat()
    )
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
