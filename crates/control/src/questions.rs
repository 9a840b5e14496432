//! What istioctl asks over xDS: the debug pages, and two of them as messages. Who may ask what is decided here.
//!
//! - In plain text, only this host asks, as on the HTTP ports.
//! - Over TLS, a workload of the control plane's namespace sees everything, any other one what concerns proxies of its own
//!   namespace. Who shows neither a certificate nor a token sees nothing.

mod dump;
mod syncz;

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use pilotfish_mesh::Text;
use pilotfish_protos::google::protobuf::Any;
use pilotfish_xds::{Answer, Answering, Answers, Peer, Question};
use tonic::Status;
use tower::ServiceExt as _;

use crate::debug::{self, Visible};
use crate::http::Pages;
use crate::identity::Identity;
use crate::tls::Encrypted;

const DEBUG: &str = "istio.io/debug";
/// Pages about one proxy, which the workloads of its namespace may see.
const OF_ONE_PROXY: [&str; 3] = ["config_dump", "edsz", "ndsz"];
/// More than any page, and less than what would take the server down.
const LARGEST: usize = 512 << 20;

/// Knows the answers. Cloning shares it.
#[derive(Clone)]
pub(crate) struct Questions {
    pages: Pages,
    /// The pages without the guard that they have over HTTP.
    router: Router,
    /// The namespace of the control plane.
    system: Text,
    /// What this replica is called.
    instance: Arc<str>,
}

impl Questions {
    pub(crate) fn new(pages: Pages, system: &str, instance: &str) -> Self {
        let router = debug::router().fallback(unknown).with_state(pages.clone());
        Self {
            router,
            pages,
            system: Text::from(system),
            instance: Arc::from(instance),
        }
    }

    /// What somebody may see.
    fn visible(&self, peer: &Peer) -> Result<Visible, Status> {
        if !self.pages.debug.enabled {
            return Err(Status::permission_denied(
                "there are no debug pages (ENABLE_DEBUG_ON_HTTP)",
            ));
        }
        visible(peer, &self.system)
    }

    async fn reply(&self, question: Question, peer: &Peer) -> Result<Answer, Status> {
        let visible = self.visible(peer)?;
        let one = |names: Vec<String>| match <[String; 1]>::try_from(names) {
            Ok([name]) => Ok(name),
            Err(names) => Err(Status::invalid_argument(format!(
                "exactly one name is needed, {} were given",
                names.len()
            ))),
        };
        let below = question.type_url.strip_prefix(DEBUG);
        match below.map(|rest| rest.strip_prefix('/').unwrap_or(rest)) {
            Some("syncz") => Ok(syncz::answer(&self.pages, &visible, &self.instance)),
            Some("config_dump") => {
                let proxy = one(question.names)?;
                dump::answer(&self.pages, &visible, &proxy).await
            }
            Some("") => self.page(one(question.names)?, visible).await,
            Some(page) => self.page(page.to_owned(), visible).await,
            None => self.page("connections".to_owned(), visible).await,
        }
    }

    /// What a page shows, as it would over HTTP.
    async fn page(&self, page: String, visible: Visible) -> Result<Answer, Status> {
        let wrong = |_| Status::invalid_argument(format!("{page:?} is no name of a debug page"));
        let uri: Uri = format!("/debug/{page}").parse().map_err(wrong)?;
        let name = uri.path().trim_start_matches("/debug/");
        if name.is_empty() {
            return Err(Status::invalid_argument(
                "name a debug page; `list` names them",
            ));
        }
        if matches!(visible, Visible::Namespace(_)) && !OF_ONE_PROXY.contains(&name) {
            return Err(Status::permission_denied(format!(
                "{name} is for the control plane's namespace only; {} can be seen of proxies of one's own namespace",
                OF_ONE_PROXY.join(", ")
            )));
        }
        let mut request = Request::new(Body::empty());
        *request.uri_mut() = uri;
        request.extensions_mut().insert(visible);
        let Ok(response) = self.router.clone().oneshot(request).await;
        let body = to_bytes(response.into_body(), LARGEST)
            .await
            .map_err(|error| Status::internal(format!("the page cannot be shown: {error}")))?;
        let any = Any {
            type_url: DEBUG.to_owned(),
            value: body,
        };
        Ok(Answer {
            control_plane: None,
            resources: vec![(page, any)],
        })
    }
}

/// istioctl looks for the first words, and then shows which pages there are.
async fn unknown(uri: Uri) -> Response {
    let name = uri.path().trim_start_matches("/debug/");
    let text = format!("404 page not found: there is no debug page {name:?}; `list` names them\n");
    (StatusCode::NOT_FOUND, text).into_response()
}

fn visible(peer: &Peer, system: &str) -> Result<Visible, Status> {
    if let Some(identity) = peer.extensions.get::<Identity>() {
        let namespace = identity.namespace.clone();
        return Ok(if *namespace == *system {
            Visible::Everything
        } else {
            Visible::Namespace(namespace)
        });
    }
    if peer.extensions.get::<Encrypted>().is_some() {
        return Err(Status::unauthenticated(
            "authentication required: show the client certificate of a workload, or the token of a service account",
        ));
    }
    if peer
        .address
        .is_some_and(|address| address.ip().to_canonical().is_loopback())
    {
        return Ok(Visible::Everything);
    }
    Err(Status::unauthenticated(
        "authentication required: ask over TLS with the client certificate of a workload or the token of a service \
         account, or from this host (kubectl port-forward)",
    ))
}

impl Answers for Questions {
    fn answer(&self, question: Question, peer: Peer) -> Answering {
        let this = self.clone();
        Box::pin(async move { this.reply(question, &peer).await })
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    fn peer(address: &str) -> Peer {
        Peer {
            address: address.parse().ok(),
            ..Peer::default()
        }
    }

    fn over_tls(namespace: Option<&str>) -> Peer {
        let mut peer = peer("127.0.0.1:1");
        peer.extensions.insert(Encrypted);
        if let Some(namespace) = namespace {
            peer.extensions.insert(Identity {
                namespace: Text::from(namespace),
                service_account: Text::from("default"),
            });
        }
        peer
    }

    #[test]
    fn who_may_see_what() {
        let sees = |peer: &Peer| visible(peer, "istio-system").map_err(|status| status.code());
        assert_eq!(sees(&peer("127.0.0.1:1")), Ok(Visible::Everything));
        assert_eq!(sees(&peer("[::ffff:127.0.0.1]:1")), Ok(Visible::Everything));
        assert_eq!(sees(&peer("10.0.0.1:1")), Err(Code::Unauthenticated));
        assert_eq!(sees(&Peer::default()), Err(Code::Unauthenticated));
        // Over TLS, being on this host proves nothing.
        assert_eq!(sees(&over_tls(None)), Err(Code::Unauthenticated));
        assert_eq!(
            sees(&over_tls(Some("istio-system"))),
            Ok(Visible::Everything)
        );
        let shop = Visible::Namespace(Text::from("shop"));
        assert_eq!(sees(&over_tls(Some("shop"))), Ok(shop));
    }
}
