//! Certificates that Gateways and DestinationRules name: whether they are there, and hold what is needed.

use std::collections::BTreeSet;

use pilotfish_config::core::{ConfigMap, Secret};
use pilotfish_config::networking::{
    ClientTlsMode, ClientTlsSettings, DestinationRule, Gateway, ServerTlsMode, ServerTlsSettings,
};
use pilotfish_config::{Kind, Object, ObjectKey};
use pilotfish_mesh::Text;

use crate::gateways::served_by;
use crate::report::Report;
use crate::scene::Scene;

/// Names under which a key pair and an authority may stand, in the two forms that are read.
const PAIRS: [(&str, &str); 2] = [("cert", "key"), ("tls.crt", "tls.key")];
const AUTHORITIES: [&str; 2] = ["cacert", "ca.crt"];
/// What a secret with the authority of another is called.
const SUFFIX: &str = "-cacert";

fn secret<'w>(scene: &Scene<'w>, namespace: &str, name: &str) -> Option<&'w Secret> {
    scene
        .get(&ObjectKey::new(Kind::Secret, namespace, name))?
        .get()
}

fn has(secret: &Secret, key: &str) -> bool {
    secret
        .data
        .get(key)
        .is_some_and(|value| !value.0.is_empty())
}

fn has_authority(secret: &Secret) -> bool {
    AUTHORITIES.iter().any(|key| has(secret, key))
}

/// What a credential must hold.
#[derive(Clone, Copy)]
struct Needs {
    pair: bool,
    authority: bool,
}

/// What is wrong with a credential, if anything.
fn problem(
    scene: &Scene<'_>,
    namespace: &str,
    name: &str,
    needs: Needs,
) -> Option<(&'static str, String)> {
    let own = secret(scene, namespace, name);
    let apart = secret(scene, namespace, &format!("{name}{SUFFIX}"));
    if needs.pair {
        let Some(own) = own else {
            return Some((
                "unknown-secret",
                format!("there is no Secret/{namespace}/{name}"),
            ));
        };
        if !PAIRS
            .iter()
            .any(|(cert, key)| has(own, cert) && has(own, key))
        {
            let reason = format!(
                "Secret/{namespace}/{name} has neither tls.crt and tls.key nor cert and key"
            );
            return Some(("bad-secret", reason));
        }
    }
    if needs.authority {
        if own.is_none() && apart.is_none() {
            let reason = format!(
                "there is neither Secret/{namespace}/{name} nor Secret/{namespace}/{name}{SUFFIX}"
            );
            return Some(("unknown-secret", reason));
        }
        if !apart.or(own).is_some_and(has_authority) {
            let reason = format!(
                "neither Secret/{namespace}/{name} nor {name}{SUFFIX} has ca.crt or cacert"
            );
            return Some(("bad-secret", reason));
        }
    }
    None
}

/// Credentials of Gateways, in the namespaces of the workloads that serve them.
pub(crate) fn gateways(scene: &Scene<'_>, report: &mut Report) {
    if scene.gateways().is_empty() {
        return;
    }
    let running = scene.running();
    for (object, gateway) in scene.list::<Gateway>() {
        let serving = running
            .iter()
            .filter(|runs| served_by(scene, gateway, &object.key.namespace, runs));
        let mut namespaces: BTreeSet<Text> = serving.map(|runs| runs.namespace().clone()).collect();
        if namespaces.is_empty() {
            namespaces.insert(object.key.namespace.clone());
        }
        for (i, server) in gateway.servers.iter().enumerate() {
            if let Some(tls) = &server.tls {
                let at = format!("spec.servers[{i}].tls");
                for namespace in &namespaces {
                    server_credentials(scene, object, &at, tls, namespace, report);
                }
            }
        }
    }
}

fn server_credentials(
    scene: &Scene<'_>,
    object: &Object,
    at: &str,
    tls: &ServerTlsSettings,
    namespace: &Text,
    report: &mut Report,
) {
    const FAIL: &str = "clients cannot connect to this server";
    let terminates = matches!(
        tls.mode,
        ServerTlsMode::Simple | ServerTlsMode::Mutual | ServerTlsMode::OptionalMutual
    );
    if !terminates {
        return;
    }
    let mutual = tls.mode != ServerTlsMode::Simple;
    let needs = Needs {
        pair: true,
        authority: mutual && tls.ca_cert_credential_name.is_empty(),
    };
    let mut check = |field: String, written: &str, needs: Needs| {
        let Some((namespace, name)) = place(written, namespace) else {
            return;
        };
        if let Some((code, reason)) = problem(scene, &namespace, &name, needs) {
            report.error((code, object, &field), reason, FAIL);
        }
    };
    check(format!("{at}.credentialName"), &tls.credential_name, needs);
    for (i, name) in tls.credential_names.iter().enumerate() {
        // The authority is that of the first.
        let needs = Needs {
            authority: needs.authority && i == 0,
            ..needs
        };
        check(format!("{at}.credentialNames[{i}]"), name, needs);
    }
    if mutual && !tls.ca_cert_credential_name.is_empty() {
        let field = format!("{at}.caCertCredentialName");
        authority(
            scene,
            object,
            &field,
            &tls.ca_cert_credential_name,
            namespace,
            report,
        );
    }
}

/// Namespace and name of a credential; `None` if it is none of ours to look up.
fn place(written: &str, namespace: &Text) -> Option<(Text, String)> {
    let name = written.strip_prefix("kubernetes://").unwrap_or(written);
    if name.is_empty() || name.contains("://") {
        return None;
    }
    Some(match name.split_once('/') {
        Some((namespace, name)) => (Text::from(namespace), name.to_owned()),
        None => (namespace.clone(), name.to_owned()),
    })
}

/// An authority of its own: a Secret, or a ConfigMap.
fn authority(
    scene: &Scene<'_>,
    object: &Object,
    field: &str,
    written: &str,
    namespace: &Text,
    report: &mut Report,
) {
    let config_map = written.strip_prefix("configmap://");
    let Some((namespace, name)) = place(config_map.unwrap_or(written), namespace) else {
        return;
    };
    let found = if config_map.is_some() {
        let key = ObjectKey::new(Kind::ConfigMap, namespace.clone(), name.as_str());
        let map = scene.get(&key).and_then(|o| o.get::<ConfigMap>());
        map.is_some_and(|map| AUTHORITIES.iter().any(|key| map.data.contains_key(*key)))
    } else {
        secret(scene, &namespace, &name).is_some_and(has_authority)
    };
    if !found {
        report.error(
            ("bad-secret", object, field),
            format!("{namespace}/{name} is not there, or has neither ca.crt nor cacert"),
            "clients cannot connect to this server",
        );
    }
}

/// Credentials of DestinationRules that are for chosen workloads. Other sidecars do not follow them, and of gateways it
/// is not known which apply a rule.
pub(crate) fn destination_rule<'w>(scene: &Scene<'w>, object: &'w Object, report: &mut Report) {
    let Some(rule) = object.get::<DestinationRule>() else {
        return;
    };
    let mut all: Vec<(String, &ClientTlsSettings)> = Vec::new();
    let own = [(
        "spec.trafficPolicy".to_owned(),
        rule.traffic_policy.as_ref(),
    )];
    let subsets = rule.subsets.iter().enumerate();
    let subsets = subsets.map(|(i, s)| {
        (
            format!("spec.subsets[{i}].trafficPolicy"),
            s.traffic_policy.as_deref(),
        )
    });
    for (at, policy) in own.into_iter().chain(subsets) {
        let Some(policy) = policy else {
            continue;
        };
        all.extend(policy.tls.as_ref().map(|tls| (format!("{at}.tls"), tls)));
        for (i, port) in policy.port_level_settings.iter().enumerate() {
            let tls = port.tls.as_ref();
            all.extend(tls.map(|tls| (format!("{at}.portLevelSettings[{i}].tls"), tls)));
        }
    }
    for (at, tls) in all
        .iter()
        .filter(|(_, tls)| !tls.credential_name.is_empty())
    {
        let needs = match tls.mode {
            ClientTlsMode::Simple => Needs {
                pair: false,
                authority: true,
            },
            ClientTlsMode::Mutual => Needs {
                pair: true,
                authority: true,
            },
            _ => continue,
        };
        let field = format!("{at}.credentialName");
        if rule.workload_selector.is_none() {
            report.note(
                ("credential-for-gateways", object, &field),
                "sidecars follow it only in a rule with workloadSelector",
                "gateways use the credential, sidecars do not",
            );
            continue;
        }
        let Some((namespace, name)) = place(&tls.credential_name, &object.key.namespace) else {
            continue;
        };
        if let Some((code, reason)) = problem(scene, &namespace, &name, needs) {
            report.error(
                (code, object, &field),
                reason,
                "connections to the host fail",
            );
        }
    }
}
