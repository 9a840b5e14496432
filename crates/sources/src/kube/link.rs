//! The connection to an API server, and how to get another with fresh credentials.

use pilotfish_config::Text;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use http::{HeaderName, HeaderValue};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::sync::watch;

use super::connect;
use super::foreign::Foreign;

/// What the API server's log shows.
const USER_AGENT: &str = concat!("pilotfish/", env!("CARGO_PKG_VERSION"));
/// How often credentials are read again at most.
const RENEW_EVERY: Duration = Duration::from_secs(5);

/// Where the API server is and who we are to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// As kubeconfig files say, in their current context; of several, the first that says something counts.
    Kubeconfig(Vec<PathBuf>),
    /// As Kubernetes tells the containers it runs.
    InCluster,
    /// As a kubeconfig says that somebody else has given us.
    Foreign(Foreign),
}

impl Access {
    /// What `--kubeconfig`, `$KUBECONFIG` and the surroundings say, in this order; `None` if nothing points to a cluster.
    pub fn find(
        flag: Option<&Path>,
        kubeconfig_variable: Option<&str>,
        in_cluster: bool,
    ) -> Option<Self> {
        let named = flag
            .filter(|path| !path.as_os_str().is_empty())
            .map(|path| vec![path.to_owned()])
            .or_else(|| kubeconfig_variable.map(|all| std::env::split_paths(all).collect()));
        match named {
            Some(paths) => Some(Self::Kubeconfig(paths)),
            None => in_cluster.then_some(Self::InCluster),
        }
    }

    /// Why no client can be made. What somebody else has given us is not shown.
    fn explain(&self, error: &(dyn std::error::Error + 'static)) -> anyhow::Error {
        match self {
            Self::Foreign(_) => anyhow!("its certificates, keys or address cannot be used"),
            _ => anyhow!(super::wire::chain(error)),
        }
    }

    async fn config(&self) -> anyhow::Result<Config> {
        let mut config = match self {
            Self::Kubeconfig(paths) => {
                let names: Vec<_> = paths.iter().map(|path| path.to_string_lossy()).collect();
                let shown = names.join(", ");
                let kubeconfig = read(paths).with_context(|| {
                    format!("kubeconfig {shown} cannot be used; name a readable kubeconfig file with --kubeconfig")
                })?;
                Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
                    .await
                    .with_context(|| {
                        format!("kubeconfig {shown} cannot be used; check its current-context, and the cluster and user it names")
                    })?
            }
            Self::Foreign(foreign) => foreign.config().await?,
            Self::InCluster => Config::incluster().context(
                "the credentials that Kubernetes gives to pods cannot be read; outside a cluster name a kubeconfig file \
                 with --kubeconfig, inside one do not set automountServiceAccountToken to false",
            )?,
        };
        config.connect_timeout = Some(Duration::from_secs(10));
        // Silence is judged where watches are read, and failures where they are understood.
        config.read_timeout = None;
        config.default_retry = false;
        config.headers.push((
            HeaderName::from_static("user-agent"),
            HeaderValue::from_static(USER_AGENT),
        ));
        Ok(config)
    }
}

fn read(paths: &[PathBuf]) -> anyhow::Result<Kubeconfig> {
    let mut all: Option<Kubeconfig> = None;
    for path in paths {
        let next = Kubeconfig::read_from(path)?;
        all = Some(match all {
            Some(all) => all.merge(next)?,
            None => next,
        });
    }
    all.context("no file is named")
}

/// A client that can be replaced by one with fresh credentials. Cloning shares it.
#[derive(Clone)]
pub struct Link {
    access: Arc<Access>,
    current: Arc<Mutex<Current>>,
    server: Text,
    /// How often the server was found again after it could not be reached.
    found: Arc<watch::Sender<u64>>,
    /// Whether the last request reached nobody.
    lost: Arc<AtomicBool>,
}

struct Current {
    client: Client,
    /// How often it was replaced.
    generation: u64,
    made: Instant,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link")
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}

impl Link {
    /// Reads the credentials. Nothing is sent yet: the server may start later than we do.
    pub async fn new(access: Access) -> anyhow::Result<Self> {
        let config = access.config().await?;
        // An address may have a name and password in it, which are not for showing.
        let url = &config.cluster_url;
        let server = format!(
            "{}://{}:{}",
            url.scheme_str().unwrap_or("https"),
            url.host().unwrap_or_default(),
            url.port_u16().unwrap_or(443)
        );
        let server = match access {
            Access::Foreign(_) => server,
            _ => url.to_string(),
        };
        let client = connect::client(config)
            .map_err(|error| access.explain(&*error))
            .with_context(|| format!("no connection to {server} can be made"))?;
        Ok(Self {
            access: Arc::new(access),
            current: Arc::new(Mutex::new(Current {
                client,
                generation: 0,
                made: Instant::now(),
            })),
            server: server.into(),
            found: Arc::new(watch::Sender::new(0)),
            lost: Arc::default(),
        })
    }

    /// Notes whether the server could be reached. Once it can again, all who wait for it go on.
    pub(super) fn note(&self, reached: bool) {
        if self.lost.swap(!reached, Ordering::Relaxed) && reached {
            self.found.send_modify(|times| *times += 1);
        }
    }

    /// Changes when the server was found again.
    pub(super) fn found(&self) -> watch::Receiver<u64> {
        self.found.subscribe()
    }

    /// The address of the API server.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// The client to use for the next request, and which one that is.
    pub(super) fn client(&self) -> (Client, u64) {
        let current = self.lock();
        (current.client.clone(), current.generation)
    }

    /// Reads the credentials again, unless somebody has since `used` was given out, or a moment ago.
    pub(super) async fn renew(&self, used: u64) {
        {
            let current = self.lock();
            if current.generation != used || current.made.elapsed() < RENEW_EVERY {
                return;
            }
        }
        let made = match self.access.config().await {
            Ok(config) => connect::client(config).map_err(|error| self.access.explain(&*error)),
            Err(error) => Err(error),
        };
        let mut current = self.lock();
        current.made = Instant::now();
        match made {
            Ok(client) if current.generation == used => {
                current.client = client;
                current.generation += 1;
                tracing::debug!(target: "kubernetes", server = &*self.server, "credentials were read again");
            }
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(target: "kubernetes", "credentials cannot be read again, the old ones stay: {error:#}");
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flag_goes_before_the_variable_and_both_before_the_cluster() {
        let file = |path: &str| Some(Access::Kubeconfig(vec![path.into()]));
        let flag = Some(Path::new("a"));
        assert_eq!(Access::find(flag, Some("b"), true), file("a"));
        assert_eq!(
            Access::find(Some(Path::new("")), Some("b"), true),
            file("b")
        );
        assert_eq!(Access::find(None, None, true), Some(Access::InCluster));
        assert_eq!(Access::find(None, None, false), None);
    }

    #[tokio::test]
    async fn a_bad_kubeconfig_says_what_to_do() {
        let error = Link::new(Access::Kubeconfig(vec!["/nowhere".into()]))
            .await
            .unwrap_err();
        let text = format!("{error:#}");
        assert!(
            text.contains("/nowhere") && text.contains("--kubeconfig"),
            "{text}"
        );
    }
}
