//! Webhooks: validation of Istio's objects, and injection into pods.
//!
//! Their servers are not there yet. Until they are, a webhook that cannot be reached must not stand in anybody's way, so
//! that both are ignored when they fail.

use serde_json::{Value, json};

use super::Options;

const API: &str = "admissionregistration.k8s.io/v1";
const INJECT: &str = "sidecar.istio.io/inject";
const REVISION: &str = "istio.io/rev";
const INJECTION: &str = "istio-injection";

/// The name of the object about validation.
pub(super) fn validator(options: &Options) -> String {
    format!(
        "{}-{}",
        options.with_revision("istio-validator"),
        options.namespace
    )
}

/// The name of the object about injection.
pub(super) fn injector(options: &Options) -> String {
    let name = options.with_revision("istio-sidecar-injector");
    match options.namespace.as_str() {
        "istio-system" => name,
        namespace => format!("{name}-{namespace}"),
    }
}

/// Both.
pub(super) fn objects(options: &Options) -> Vec<Value> {
    vec![validation(options), injection(options)]
}

fn validation(options: &Options) -> Value {
    let groups = [
        "security.istio.io",
        "networking.istio.io",
        "telemetry.istio.io",
        "extensions.istio.io",
    ];
    let rule = json!({
        "apiGroups": groups, "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"], "resources": ["*"],
    });
    let mut hook = webhook(options, "rev.validation.istio.io", "/validate", &rule);
    hook["objectSelector"] = select(&[is_in(REVISION, options.revision_label())]);
    json!({
        "apiVersion": API, "kind": "ValidatingWebhookConfiguration",
        "metadata": options.outside(&validator(options)), "webhooks": [hook],
    })
}

/// Whether a pod is injected is said by its own labels or by those of its namespace; labels about revisions and those that
/// only say yes or no exclude each other.
fn injection(options: &Options) -> Value {
    let revision = options.revision_label();
    let not_refused = json!({"key": INJECT, "operator": "NotIn", "values": ["false"]});
    let mut cases = vec![
        (
            "rev.namespace",
            vec![is_in(REVISION, revision), is_absent(INJECTION)],
            vec![not_refused.clone()],
        ),
        (
            "rev.object",
            vec![is_absent(REVISION), is_absent(INJECTION)],
            vec![not_refused.clone(), is_in(REVISION, revision)],
        ),
    ];
    if options.revision.is_empty() {
        cases.push((
            "namespace",
            vec![is_in(INJECTION, "enabled")],
            vec![not_refused],
        ));
        cases.push((
            "object",
            vec![is_absent(INJECTION), is_absent(REVISION)],
            vec![is_in(INJECT, "true"), is_absent(REVISION)],
        ));
    }
    let rule = json!({
        "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"],
    });
    let hooks: Vec<Value> = cases
        .into_iter()
        .map(|(prefix, namespace, object)| {
            let name = format!("{prefix}.sidecar-injector.istio.io");
            let mut hook = webhook(options, &name, "/inject", &rule);
            hook["namespaceSelector"] = select(&namespace);
            hook["objectSelector"] = select(&object);
            hook["reinvocationPolicy"] = json!("Never");
            hook
        })
        .collect();
    json!({
        "apiVersion": API, "kind": "MutatingWebhookConfiguration",
        "metadata": options.outside(&injector(options)), "webhooks": hooks,
    })
}

fn webhook(options: &Options, name: &str, path: &str, rule: &Value) -> Value {
    let service = json!({
        "name": options.name(), "namespace": options.namespace, "path": path, "port": 443,
    });
    json!({
        "admissionReviewVersions": ["v1"],
        "clientConfig": {"service": service},
        "failurePolicy": "Ignore",
        "name": name,
        "rules": [rule],
        "sideEffects": "None",
    })
}

fn select(expressions: &[Value]) -> Value {
    json!({"matchExpressions": expressions})
}

fn is_in(key: &str, value: &str) -> Value {
    json!({"key": key, "operator": "In", "values": [value]})
}

fn is_absent(key: &str) -> Value {
    json!({"key": key, "operator": "DoesNotExist"})
}
