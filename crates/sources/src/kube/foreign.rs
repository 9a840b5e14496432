//! A kubeconfig that came in a Secret. Whoever may write such a Secret must not be able to make us run programs or show
//! files, and nothing of its content is ever shown: neither in an error nor by `Debug`.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use anyhow::anyhow;
use kube::Config;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig, KubeconfigError, NamedCluster};

/// A file of certificates, which istiod would read.
const AUTHORITY: &str = "certificateAuthority";

/// A kubeconfig that was found harmless. Cloning shares it.
#[derive(Clone)]
pub struct Foreign {
    text: Arc<[u8]>,
    parsed: Arc<Kubeconfig>,
}

impl fmt::Debug for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Foreign").finish_non_exhaustive()
    }
}

impl PartialEq for Foreign {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Foreign {}

impl Foreign {
    /// Reads a kubeconfig. `allowed` are the names of what is refused otherwise, as istiod knows them: `exec`, `tokenFile`,
    /// `clientKey`, `clientCertificate` and those of authentication providers, and `certificateAuthority`. The error says what is wrong with it.
    pub(super) fn read(text: &Arc<[u8]>, allowed: &BTreeSet<String>) -> Result<Self, String> {
        if text.is_empty() {
            return Err("it is empty".to_owned());
        }
        let no_yaml = "it is no kubeconfig: neither YAML nor JSON of that form";
        let as_text = str::from_utf8(text).map_err(|_| no_yaml.to_owned())?;
        let parsed = Kubeconfig::from_yaml(as_text).map_err(|_| no_yaml.to_owned())?;
        for user in &parsed.auth_infos {
            if let Some(option) = user.auth_info.as_ref().and_then(|u| refused(u, allowed)) {
                return Err(not_allowed(&option));
            }
        }
        let file = |c: &NamedCluster| c.cluster.as_ref()?.certificate_authority.clone();
        if parsed.clusters.iter().find_map(file).is_some() && !allowed.contains(AUTHORITY) {
            return Err(not_allowed(AUTHORITY));
        }
        complete(&parsed)?;
        Ok(Self {
            text: Arc::clone(text),
            parsed: Arc::new(parsed),
        })
    }

    /// Whether it is the same text.
    pub(super) fn is(&self, text: &[u8]) -> bool {
        *self.text == *text
    }

    pub(super) async fn config(&self) -> anyhow::Result<Config> {
        let parsed = Kubeconfig::clone(&self.parsed);
        Config::from_custom_kubeconfig(parsed, &KubeConfigOptions::default())
            .await
            .map_err(|error| anyhow!(part(&error)))
    }
}

fn not_allowed(option: &str) -> String {
    format!(
        "{option} is not allowed in it, unless PILOT_INSECURE_MULTICLUSTER_KUBECONFIG_OPTIONS names it"
    )
}

/// What a user says that is not allowed.
fn refused(user: &AuthInfo, allowed: &BTreeSet<String>) -> Option<String> {
    let provider = user.auth_provider.as_ref().map(|p| p.name.as_str());
    // OpenID Connect neither reads files nor runs anything.
    if let Some(name) = provider.filter(|name| *name != "oidc" && !allowed.contains(*name)) {
        let known = ["gcp", "azure", "exec", "openstack"];
        let shown = known.iter().find(|k| **k == name).unwrap_or(&"");
        return Some(
            format!("authentication provider {shown}")
                .trim_end()
                .to_owned(),
        );
    }
    [
        ("clientKey", user.client_key.is_some()),
        ("clientCertificate", user.client_certificate.is_some()),
        ("tokenFile", user.token_file.is_some()),
        ("exec", user.exec.is_some()),
    ]
    .into_iter()
    .find(|(name, there)| *there && !allowed.contains(*name))
    .map(|(name, _)| name.to_owned())
}

/// Whether the current context, and what it names, are there.
fn complete(config: &Kubeconfig) -> Result<(), String> {
    let current = config.current_context.as_deref().unwrap_or_default();
    let context = config.contexts.iter().find(|c| c.name == current);
    let Some(context) = context.and_then(|c| c.context.as_ref()) else {
        return Err("its current-context names no context of it".to_owned());
    };
    let clusters = config.clusters.iter();
    let cluster = clusters.clone().find(|c| c.name == context.cluster);
    let server = cluster.and_then(|c| c.cluster.as_ref()?.server.as_ref());
    if server.is_none_or(String::is_empty) {
        return Err("its context names no cluster of it that has a server".to_owned());
    }
    let user = context.user.as_deref().unwrap_or_default();
    if !user.is_empty() && !config.auth_infos.iter().any(|u| u.name == user) {
        return Err("its context names no user of it".to_owned());
    }
    Ok(())
}

/// Which part of a kubeconfig is wrong.
fn part(error: &KubeconfigError) -> &'static str {
    match error {
        KubeconfigError::ParseClusterUrl(_) => "the address of its server is none",
        KubeconfigError::ParseProxyUrl(_) => "the address of its proxy is none",
        KubeconfigError::LoadCertificateAuthority(_) | KubeconfigError::ParseCertificates(_) => {
            "its certificate authority cannot be read"
        }
        KubeconfigError::LoadClientCertificate(_) => "its client certificate cannot be read",
        KubeconfigError::LoadClientKey(_) => "its client key cannot be read",
        _ => "it cannot be used",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_user(user: &str) -> Arc<[u8]> {
        let text = format!(
            "{{apiVersion: v1, kind: Config, current-context: c, clusters: [{{name: c, cluster: {{server: 'https://api:6443'}}}}], \
             contexts: [{{name: c, context: {{cluster: c, user: u}}}}], users: [{{name: u, user: {user}}}]}}"
        );
        Arc::from(text.into_bytes())
    }

    fn read(text: &Arc<[u8]>, allowed: &[&str]) -> Result<Foreign, String> {
        let allowed = allowed.iter().map(|name| (*name).to_owned()).collect();
        Foreign::read(text, &allowed)
    }

    #[test]
    fn what_runs_or_reads_something_is_refused() {
        assert!(read(&with_user("{token: secret}"), &[]).is_ok());
        assert!(read(&with_user("{auth-provider: {name: oidc}}"), &[]).is_ok());
        for (user, option) in [
            ("{exec: {command: /bin/false, apiVersion: v1}}", "exec"),
            ("{tokenFile: /etc/shadow}", "tokenFile"),
            ("{client-key: /etc/shadow}", "clientKey"),
            ("{client-certificate: /etc/shadow}", "clientCertificate"),
            ("{auth-provider: {name: gcp}}", "gcp"),
        ] {
            let reason = read(&with_user(user), &[]).unwrap_err();
            assert!(reason.contains(option), "{reason}");
            assert!(
                !reason.contains("shadow") && !reason.contains("false"),
                "{reason}"
            );
            assert!(read(&with_user(user), &[option]).is_ok(), "{option}");
        }
    }

    #[test]
    fn a_file_of_certificates_is_refused_too() {
        let text = String::from_utf8(with_user("{token: secret}").to_vec()).unwrap();
        let text = text.replace("{server:", "{certificate-authority: /etc/shadow, server:");
        let text = Arc::from(text.into_bytes());
        let reason = read(&text, &[]).unwrap_err();
        assert!(
            reason.contains(AUTHORITY) && !reason.contains("shadow"),
            "{reason}"
        );
        assert!(read(&text, &[AUTHORITY]).is_ok());
    }

    #[test]
    fn nothing_of_it_is_shown() {
        let secrets: [&[u8]; 5] = [
            b"",
            b"hunter2: [",
            b"\xffhunter2",
            b"{current-context: hunter2}",
            b"{users: [{name: u, user: {token: [hunter2]}}]}",
        ];
        for text in secrets {
            let reason = read(&Arc::from(text), &[]).unwrap_err();
            assert!(
                !reason.contains("hunter2") && !reason.is_empty(),
                "{reason}"
            );
        }
        let good = read(&with_user("{token: hunter2}"), &[]).unwrap();
        assert!(!format!("{good:?}").contains("hunter2"));
    }
}
