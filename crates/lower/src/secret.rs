//! Secrets a proxy may have: which names it may ask for, and what stands behind them.
//!
//! A scope exists only for a proxy whose identity was verified. It may read the Secrets of its own namespace, and what
//! Gateways of its own namespace name; roots in ConfigMaps are not secret and may be read by whoever is told to.

use std::collections::BTreeSet;

use pilotfish_config::Kind;
use pilotfish_config::core::{ConfigMap, Secret as KubeSecret};
use pilotfish_ir::Text;
use pilotfish_ir::secret::{Secret, SecretContent};
use pilotfish_ir::tls::SecretSource;
use pilotfish_mesh::Reader;

use crate::{SecretScope, gateway, server_tls};

/// Roots stand beside a certificate under its name with this ending.
pub(crate) const ROOTS: &str = "-cacert";
/// Stands for the workload's own certificate.
const OWN: &str = "builtin://";
/// Names nothing, and is asked for as it is.
const INVALID: &str = "invalid://";

/// The secret that a `credentialName` names.
pub(crate) fn credential(name: &str) -> SecretSource {
    const KINDS: [&str; 3] = ["kubernetes://", "kubernetes-gateway://", "configmap://"];
    // Without a secret server of the user's own, its secrets are looked for in the cluster.
    let name = name.strip_prefix("sds://").unwrap_or(name);
    if name == OWN || name.strip_prefix(OWN) == Some(ROOTS) {
        SecretSource::Workload
    } else if name.starts_with(INVALID) {
        SecretSource::Credential(Text::from(INVALID))
    } else if KINDS.iter().any(|kind| name.starts_with(kind)) {
        SecretSource::Credential(Text::from(name))
    } else {
        SecretSource::Credential(Text::from(format!("kubernetes://{name}")))
    }
}

/// The names a proxy may ask for, whether something stands behind them or not.
pub fn names(reader: &Reader<'_>, scope: &SecretScope) -> BTreeSet<Text> {
    let mut out = BTreeSet::new();
    for object in reader.secrets(&scope.cluster, &scope.namespace) {
        let name = &object.key.name;
        out.insert(Text::from(format!("kubernetes://{name}")));
        if !name.ends_with(ROOTS) {
            out.insert(Text::from(format!("kubernetes://{name}{ROOTS}")));
        }
    }
    for (object, tls) in gateway::tls_settings(reader, &scope.client, &scope.instances) {
        let foreign = object.key.namespace != scope.namespace;
        for source in server_tls::credentials(tls) {
            let SecretSource::Credential(name) = source else {
                continue;
            };
            let Some(reference) = Reference::parse(&name, &scope.namespace) else {
                continue;
            };
            let own = reference.namespace == scope.namespace;
            if reference.kind == Kind::ConfigMap || (own && !(reference.by_gateway && foreign)) {
                out.insert(name);
            }
        }
    }
    out
}

/// What stands behind one of these names.
pub fn secret(reader: &Reader<'_>, scope: &SecretScope, name: &Text) -> Option<Secret> {
    let reference = Reference::parse(name, &scope.namespace)?;
    Some(Secret {
        name: name.clone(),
        content: content(reader, scope, &reference)?,
    })
}

/// A name taken apart.
struct Reference {
    kind: Kind,
    namespace: Text,
    name: Text,
    /// Of the form only Gateways of the proxy's own namespace may use.
    by_gateway: bool,
}

impl Reference {
    fn parse(name: &str, own: &Text) -> Option<Self> {
        let (scheme, rest) = name.split_once("://")?;
        let (kind, by_gateway) = match scheme {
            "kubernetes" => (Kind::Secret, false),
            "kubernetes-gateway" => (Kind::Secret, true),
            "configmap" => (Kind::ConfigMap, false),
            _ => return None,
        };
        let (namespace, name) = match rest.split_once('/') {
            Some((namespace, name)) => (Text::from(namespace), name),
            None if scheme == "kubernetes" => (own.clone(), rest),
            None => return None,
        };
        (!name.is_empty() && !name.contains('/')).then(|| Self {
            kind,
            namespace,
            name: Text::from(name),
            by_gateway,
        })
    }
}

fn content(reader: &Reader<'_>, scope: &SecretScope, r: &Reference) -> Option<SecretContent> {
    let owner = r.name.strip_suffix(ROOTS);
    if r.kind == Kind::ConfigMap {
        let name = owner.unwrap_or(&r.name);
        let map = reader.secret(&scope.cluster, Kind::ConfigMap, &r.namespace, name)?;
        let data = &map.get::<ConfigMap>()?.data;
        return roots(|key| data.get(key).map(String::as_bytes));
    }
    let get = |name: &str| {
        let object = reader.secret(&scope.cluster, Kind::Secret, &r.namespace, name)?;
        object.get::<KubeSecret>()
    };
    match owner {
        // A secret of that very name goes before the roots in the secret of the certificate.
        Some(owner) => {
            let secret = get(&r.name).or_else(|| get(owner))?;
            roots(|key| secret.data.get(key).map(|v| &*v.0))
        }
        None => certificate(get(&r.name)?),
    }
}

/// The certificate of a generic secret, else of a TLS secret.
fn certificate(secret: &KubeSecret) -> Option<SecretContent> {
    let get = |key: &str| secret.data.get(key).map(|v| v.0.clone());
    [
        ("cert", "key", None),
        ("tls.crt", "tls.key", Some("tls.ocsp-staple")),
    ]
    .into_iter()
    .find_map(|(chain, key, staple)| {
        Some(SecretContent::Certificate {
            chain: get(chain).filter(|v| !v.is_empty())?,
            key: get(key).filter(|v| !v.is_empty())?,
            staple: staple.and_then(get),
        })
    })
}

/// Roots under the key of a generic secret, else of a TLS secret, each with its own list of revoked certificates.
fn roots<'a>(get: impl Fn(&str) -> Option<&'a [u8]>) -> Option<SecretContent> {
    [("cacert", "crl"), ("ca.crt", "ca.crl")]
        .into_iter()
        .find_map(|(roots, revoked)| {
            let certificates = get(roots).filter(|v| !v.is_empty())?;
            Some(SecretContent::Roots {
                certificates: certificates.to_vec(),
                revoked: get(revoked).map(<[u8]>::to_vec),
            })
        })
}
