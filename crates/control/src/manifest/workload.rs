//! What runs: the Deployment, and what belongs to it.

use serde_json::{Value, json};

use super::Options;

/// Nobody in particular; the user that istiod runs as, too.
const USER: u32 = 1337;
/// How busy replicas are on average when another one is started.
const BUSY_PERCENT: u32 = 80;
/// Where the certificate for xDS over TLS is.
const TLS: &str = "/var/run/secrets/istiod/tls";

/// The mesh configuration, the Service, the Deployment, and how many of it there must be.
pub(super) fn objects(options: &Options) -> Vec<Value> {
    let mut all = vec![
        mesh(options),
        service(options),
        deployment(options),
        budget(options),
    ];
    if is_scaled(options) {
        all.push(autoscaler(options));
    }
    all
}

fn is_scaled(options: &Options) -> bool {
    options.max_replicas > options.replicas
}

/// The labels that tell our pods from those of other revisions.
fn selector(options: &Options) -> Value {
    match options.revision.as_str() {
        "" => json!({"app": "istiod", "istio": "pilot"}),
        revision => json!({"app": "istiod", "istio.io/rev": revision}),
    }
}

/// The labels by which the Deployment knows its pods. They cannot be changed, so that one that is to take the place of
/// istiod's needs the same.
fn owned(options: &Options) -> Value {
    match options.revision.as_str() {
        "" => json!({"istio": "pilot"}),
        _ => selector(options),
    }
}

fn mesh(options: &Options) -> Value {
    let address = format!("{}.{}.svc:15012", options.name(), options.namespace);
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": options.own(&options.with_revision("istio")),
        "data": {
            "mesh": format!(
                "defaultConfig:\n  discoveryAddress: {address}\nrootNamespace: {}\ntrustDomain: cluster.local\n",
                options.namespace
            ),
            "meshNetworks": "networks: {}\n",
        },
    })
}

/// istiod's names and numbers, which proxies and tools know.
fn service(options: &Options) -> Value {
    let port = |name: &str, port: u16, target: u16| json!({"name": name, "port": port, "protocol": "TCP", "targetPort": target});
    let mut metadata = options.own(&options.name());
    metadata["labels"]["istio"] = json!("pilot");
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {
            "ports": [
                port("grpc-xds", 15010, 15010),
                port("https-dns", 15012, 15012),
                port("https-webhook", 443, 15017),
                port("http-monitoring", 15014, 15014),
            ],
            "selector": selector(options),
        },
    })
}

fn deployment(options: &Options) -> Value {
    let mut labels = options.labels();
    // The selector's labels, and none that would make us a part of the mesh that we serve.
    labels["istio"] = json!(if options.revision.is_empty() {
        "pilot"
    } else {
        "istiod"
    });
    labels["istio.io/dataplane-mode"] = json!("none");
    labels["sidecar.istio.io/inject"] = json!("false");
    let mut pod = json!({
        "containers": [container(options)],
        "securityContext": {"fsGroup": USER},
        "serviceAccountName": options.name(),
        "topologySpreadConstraints": [{
            "labelSelector": {"matchLabels": selector(options)},
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
        }],
    });
    if let Some(secret) = &options.tls_secret {
        pod["volumes"] = json!([{"name": "tls", "secret": {"secretName": secret}}]);
    }
    let mut spec = json!({
        "selector": {"matchLabels": owned(options)},
        // Proxies that lose one replica find another that is ready.
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "100%", "maxUnavailable": 0}},
        "template": {
            "metadata": {
                "annotations": {"prometheus.io/port": "15014", "prometheus.io/scrape": "true"},
                "labels": labels,
            },
            "spec": pod,
        },
    });
    // Where there is an autoscaler the number is its own, and applying this again must not reset it.
    if !is_scaled(options) {
        spec["replicas"] = json!(options.replicas);
    }
    let mut metadata = options.own(&options.name());
    metadata["labels"]["istio"] = json!("pilot");
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec})
}

fn container(options: &Options) -> Value {
    let port =
        |name: &str, number: u16| json!({"containerPort": number, "name": name, "protocol": "TCP"});
    let field = |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}});
    let probe = |path: &str, every: u32| {
        json!({
            "failureThreshold": 3, "httpGet": {"path": path, "port": "http-debug"},
            "periodSeconds": every, "timeoutSeconds": 5,
        })
    };
    let mut container = json!({
        "name": "discovery",
        "image": options.image,
        "args": args(options),
        "env": [
            {"name": "REVISION", "value": options.revision_label()},
            {"name": "CLUSTER_ID", "value": options.cluster},
            field("POD_NAME", "metadata.name"),
            field("POD_NAMESPACE", "metadata.namespace"),
        ],
        "ports": [
            port("http-debug", 8080),
            port("grpc-xds", 15010),
            port("tls-xds", 15012),
            port("https-webhooks", 15017),
            port("http-monitoring", 15014),
        ],
        // Ready when everything is read. Being alive does not depend on the API server: proxies are served without it.
        "readinessProbe": probe("/ready", 3),
        "livenessProbe": probe("/healthz", 10),
        "resources": {"requests": {"cpu": "250m", "memory": "256Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": true,
            "runAsGroup": USER,
            "runAsNonRoot": true,
            "runAsUser": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    });
    if options.tls_secret.is_some() {
        container["volumeMounts"] = json!([{"mountPath": TLS, "name": "tls", "readOnly": true}]);
    }
    container
}

fn args(options: &Options) -> Vec<String> {
    let mut args = vec!["discovery".to_owned(), "--monitoringAddr=:15014".to_owned()];
    if !options.only.is_empty() {
        args.push(format!("--namespaces={}", options.only.join(",")));
    }
    if options.tls_secret.is_some() {
        args.extend(
            [
                ("tlsCertFile", "tls.crt"),
                ("tlsKeyFile", "tls.key"),
                ("caCertFile", "ca.crt"),
            ]
            .map(|(flag, file)| format!("--{flag}={TLS}/{file}")),
        );
    }
    args
}

fn budget(options: &Options) -> Value {
    json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": options.own(&options.name()),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": selector(options)}},
    })
}

fn autoscaler(options: &Options) -> Value {
    json!({
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": options.own(&options.name()),
        "spec": {
            "maxReplicas": options.max_replicas,
            "metrics": [{"type": "Resource", "resource": {
                "name": "cpu", "target": {"averageUtilization": BUSY_PERCENT, "type": "Utilization"},
            }}],
            "minReplicas": options.replicas,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": options.name()},
        },
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::super::tests::options;
    use super::*;
    use crate::cli::{Command, parse};

    fn find(kind: &str, flags: &[&str]) -> Option<Value> {
        let mut all = objects(&options(flags)).into_iter();
        all.find(|object| object["kind"] == kind)
    }

    #[test]
    fn pods_have_the_labels_that_select_them() {
        for flags in [&[][..], &["--revision", "canary"]] {
            let deployment = find("Deployment", flags).unwrap();
            let labels = &deployment["spec"]["template"]["metadata"]["labels"];
            let service = find("Service", flags).unwrap();
            let budget = find("PodDisruptionBudget", flags).unwrap();
            for selector in [
                &deployment["spec"]["selector"]["matchLabels"],
                &service["spec"]["selector"],
                &budget["spec"]["selector"]["matchLabels"],
            ] {
                for (key, value) in selector.as_object().unwrap() {
                    assert_eq!(&labels[key], value, "{key}");
                }
            }
        }
        // The pods of a revision are not those of the installation without one.
        let canary = find("Deployment", &["--revision", "canary"]).unwrap();
        assert_ne!(
            canary["spec"]["template"]["metadata"]["labels"]["istio"],
            "pilot"
        );
    }

    #[test]
    fn our_own_command_line_understands_the_arguments() {
        let flags = ["--namespaced", "shop", "--tls-secret", "istiod-tls"];
        let deployment = find("Deployment", &flags).unwrap();
        let args = &deployment["spec"]["template"]["spec"]["containers"][0]["args"];
        let args = args
            .as_array()
            .unwrap()
            .iter()
            .map(|arg| arg.as_str().unwrap());
        let args = std::iter::once("pilotfish").chain(args).map(OsString::from);
        let Command::Discovery(read) = parse(args).unwrap().command else {
            panic!("another command");
        };
        assert_eq!(read.notes, Vec::<String>::new());
        assert_eq!(read.namespaces, ["istio-system", "shop"]);
        assert!(read.tls_cert_file.is_some() && read.ca_cert_file.is_some());
    }

    #[test]
    fn either_an_autoscaler_or_a_number() {
        let replicas =
            |flags: &[&str]| find("Deployment", flags).unwrap()["spec"]["replicas"].clone();
        assert!(find("HorizontalPodAutoscaler", &[]).is_some() && replicas(&[]).is_null());
        let fixed = ["--replicas", "3", "--max-replicas", "3"];
        assert!(find("HorizontalPodAutoscaler", &fixed).is_none());
        assert_eq!(replicas(&fixed), 3);
    }
}
